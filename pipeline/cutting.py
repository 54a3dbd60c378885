"""The ways to cut recordings that a user may choose from; what they are worth: `spotscribe evaluate --windows`."""

from __future__ import annotations

from collections.abc import Mapping

from chunking.planner import PlanOptions

USUAL = "usual"
WAYS: Mapping[str, PlanOptions] = {
    USUAL: PlanOptions(),
    "chunks-14": PlanOptions(chunk_s=14.0),
    "chunks-24": PlanOptions(chunk_s=24.0),
    "chunks-29": PlanOptions(chunk_s=29.0),
    "steps-2.5": PlanOptions(windows=(10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0, 27.5, 30.0)),
    "from-8": PlanOptions(windows=(8.0, 10.0, 15.0, 20.0, 25.0, 30.0)),
    "all-30": PlanOptions(windows=(30.0,)),
}
"""Chunks of at most so many seconds; windows in finer steps, from 8 s on, or of 30 s alone as models were trained."""
