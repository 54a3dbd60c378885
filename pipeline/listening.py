"""Listening for languages, beside the loop that decodes: what was heard, what is kept of it, what jobs agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from chunking.errors import PermanentError
from pipeline.engine import Engine, Heard
from pipeline.ledger import Work
from pipeline.shards import OpenShard
from storage import plans
from storage.database import Database

KEPT = 8
"""Encodings of a shard's chunks that wait for their neighbours' languages. Of the others the encoder does it again."""


def listen(engine: Engine, works: Sequence[Work]) -> list[Heard | None]:
    """Have the model listen to them together; where that fails, to each alone, so that none takes others with it.

    None: it cannot be listened to. Raises what says nothing of the windows: OutOfMemory, DeviceLost.
    """
    try:
        return list(engine.listen([w.features for w in works if isinstance(w.features, np.ndarray)]))
    except PermanentError:
        return [x for w in works for x in listen(engine, [w])] if len(works) > 1 else [None]


def note(works: Sequence[Work], heard: Sequence[Heard | None], waiting: Sequence[Work]) -> None:
    """What was heard of `works`. Encodings of what goes on waiting, here and in `waiting`, are kept up to a limit."""
    for work, one in zip(works, heard, strict=True):
        work.hear(one)
    kept: Counter[OpenShard] = Counter()
    for work in (*works, *waiting):
        if work.heard is not None and not work.look():
            kept[work.shard] += 1
            if kept[work.shard] > KEPT:
                work.heard = None


def agree(database: Database, shards: Collection[OpenShard]) -> None:
    """Write the languages that shards have voted for; the first that was written for a job stands for all of it."""
    voted = {s.job: v for s in shards if (v := s.hearing.verdict)}
    if not voted:
        return
    with database.transaction() as tx:
        settled = {job: plans.set_language(tx, job, *verdict) for job, verdict in sorted(voted.items())}
    for shard in shards:
        if shard.job in settled:
            shard.hearing.settle(*settled[shard.job])
