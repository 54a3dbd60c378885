"""Frozen dataclasses to JSON and back, checked on the way in."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from pydantic import TypeAdapter

T = TypeVar("T")


def to_record(value: Any) -> Any:
    """A dataclass as plain lists, dicts, strings and numbers."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_record(kind: type[T], record: Any) -> T:
    """The dataclass again. Raises pydantic's ValidationError where the record is not one."""
    return cast(T, _adapter(kind).validate_python(record))


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


_adapters: dict[Any, TypeAdapter[Any]] = {}
