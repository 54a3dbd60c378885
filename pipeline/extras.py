"""Packages that not every installation has: what analysts need, and traces, are extras."""

from __future__ import annotations

import importlib
from types import ModuleType

from chunking.errors import UsageError


def needs(module: str, what: str, extra: str = "analytics") -> ModuleType:
    """The module, imported. Raises UsageError, with what to do, where its package is missing. `what`: needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name != module.partition(".")[0]:
            raise
        package = e.name
    raise UsageError(f"{what} needs the package {package}: pip install 'spotscribe[{extra}]'")
