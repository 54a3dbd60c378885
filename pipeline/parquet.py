"""Rows of segments as a Parquet file. The only importer of pyarrow: an extra, and asked for when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from pipeline.extras import needs
from pipeline.rows import COLUMNS, WORD, Row

_LEVEL = 3
"""Of zstd: its own default; higher ones take longer for a few per cent."""


class ParquetPart:
    """A file in memory: Arrow's columns as they come, and at the end one row group."""

    def __init__(self) -> None:
        """Raises UsageError where pyarrow is missing."""
        self._pa = needs("pyarrow", "Parquet")
        self._parquet = needs("pyarrow.parquet", "Parquet")
        self._types = _types(self._pa)
        self._schema = self._pa.schema([(c.name, self._types[c.kind]) for c in COLUMNS])
        self._batches: list[Any] = []

    def add(self, rows: Sequence[Row]) -> None:
        """These rows as well; at least one."""
        columns = [self._column(c.kind, values) for c, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)]
        self._batches.append(self._pa.record_batch(columns, schema=self._schema))

    def content(self) -> bytes:
        """The whole file."""
        table = self._pa.Table.from_batches(self._batches, self._schema)
        sink = self._pa.BufferOutputStream()
        self._parquet.write_table(table, sink, compression="zstd", compression_level=_LEVEL)
        return bytes(sink.getvalue())

    def _column(self, kind: str, values: Sequence[Any]) -> Any:
        if kind != "words":
            return self._pa.array(values, self._types[kind])
        pa, count = self._pa, 0
        offsets: list[int | None] = []
        for words in values:  # flat columns and offsets: a dict for each word would take ten times as long
            offsets.append(count if words is not None else None)
            count += len(words or ())
        flat = list(chain.from_iterable(w for w in values if w))
        word = self._types["words"].value_type
        fields = [pa.array([w[i] for w in flat], word.field(i).type) for i in range(len(WORD))]
        structs = pa.StructArray.from_arrays(fields, fields=[word.field(i) for i in range(len(WORD))])
        return pa.ListArray.from_arrays(pa.array([*offsets, count], pa.int32()), structs, type=self._types["words"])


def _types(pa: Any) -> dict[str, Any]:
    word = pa.struct([(name, pa.string() if name == "text" else pa.float64()) for name in WORD])
    return {
        "int": pa.int64(),
        "float": pa.float64(),
        "text": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "texts": pa.list_(pa.string()),
        "words": pa.list_(word),
    }
