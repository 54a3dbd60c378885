"""How many workers are wanted now: what the database says of the backlog, through the policy, and noted there."""

from __future__ import annotations

from sqlalchemy import Connection

from pipeline.scaling import Decision, Policy, Standing, decide
from pipeline.settings import Settings
from storage import backlog
from storage.backlog import Backlog
from storage.database import Database


def policy(settings: Settings) -> Policy:
    """As it is set."""
    s = settings
    return Policy(s.finish_within_s, s.min_workers, s.max_workers, s.scale_in_after_s, s.expected_rtfx)


def decisions(database: Database, wish: Policy) -> list[Decision]:
    """For each queue, in one transaction, so that those who ask at the same time hear the same."""
    with database.reading() as tx:
        loads = backlog.backlogs(tx)
    return database.again(lambda tx: _decided(tx, loads, wish))


def _decided(tx: Connection, loads: list[Backlog], wish: Policy) -> list[Decision]:
    before = backlog.said(tx, sorted(load.queue for load in loads))
    found = []
    for load in loads:
        decision = decide(load, wish, Standing(*before[load.queue]))
        backlog.say(tx, load.queue, decision.wanted, fewer=decision.fewer_for_s is not None)
        found.append(decision)
    return found
