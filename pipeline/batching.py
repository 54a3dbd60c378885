"""Which chunks go through the model together. Pure.

Only windows of one length share a batch, and prompts of one length: CTranslate2 wants each transcript to begin at the
same position. Within it, chunks of like length of text sit together, since a batch decodes
until its longest text ends. The number of chunks that have begun and are not yet checkpointed never exceeds the batch
size, so that a kill costs at most one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T]):
    """Something that could be decoded now."""

    item: T
    window: float
    temperature: float
    expected_tokens: float
    again: bool = False
    """Decoded before and judged doubtful: it has begun already."""
    age: int = 0
    """Batches that have left since it came."""
    prompt: int = 0
    """Tokens of its prompt."""
    listen: bool = False
    """To be listened to, not decoded."""


def next_batch(
    waiting: Sequence[Waiting[T]], *, room: int, size: int, calls: int, more_to_come: bool
) -> list[Waiting[T]]:
    """The batch that should leave now, or none when it is better to wait for more.

    `room`: chunks that may still begin; `size`: windows that one call takes; `calls`: how many calls are
    free; `more_to_come`: whether waiting could fill a batch better. Old items and second attempts first, then the
    fullest group; what is left at the end, of whatever window, is shared out evenly to the free calls.
    """
    groups: dict[tuple[float, float, int, bool], list[Waiting[T]]] = {}
    for w in waiting:
        groups.setdefault((w.window, w.temperature, w.prompt, w.listen), []).append(w)

    most = size if more_to_come else min(size, -(-len(waiting) // calls))
    candidates = [c for g in groups.values() if (c := _fill(g, room, most))]
    if not candidates:
        return []
    best = max(candidates, key=lambda c: (_overdue(c), len(c), -c[0].window))
    if len(best) < size and more_to_come and not _overdue(best):
        return []
    return best


PATIENCE = 4
"""Batches that may overtake an item before it goes whatever the fill."""


def _overdue(candidate: Sequence[Waiting[T]]) -> bool:
    return any(w.age >= PATIENCE for w in candidate)


def _fill(group: Sequence[Waiting[T]], room: int, size: int) -> list[Waiting[T]]:
    """Up to `size` of one window: what has begun, then a run of neighbours by expected text around the oldest."""
    begun = [w for w in group if w.again][:size]
    fresh = sorted((w for w in group if not w.again), key=lambda w: w.expected_tokens)
    take = max(0, min(room, size - len(begun), len(fresh)))
    if not take:
        return begun
    oldest = max(range(len(fresh)), key=lambda i: fresh[i].age)
    first = min(max(0, oldest - take // 2), len(fresh) - take)
    return begun + fresh[first : first + take]
