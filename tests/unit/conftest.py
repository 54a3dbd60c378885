"""What the tests of parts share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunking.audio import DecoderPool


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool() as shared:
        yield shared
