"""What a fleet's CPU threads do: the steps' functions, made of what a worker has."""

from __future__ import annotations

from pathlib import Path

from chunking.audio import DecoderPool
from pipeline.errands import Errander
from pipeline.finish import Finisher
from pipeline.notices import Webhooks
from pipeline.prepare import PrepareOptions, Preparer
from pipeline.telemetry import Tally
from storage.leases import Step
from workers.steps import Do
from workers.wiring import Wiring


def cpu_steps(wiring: Wiring, decoder: DecoderPool, scratch: Path, tally: Tally) -> tuple[tuple[Step, Do], ...]:
    """Finish, deliver, prepare: most urgent first. The decoder is started, while the model loads."""
    s = wiring.settings
    options = PrepareOptions(max_duration_s=s.max_hours * 3600, max_bytes=round(s.max_gigabytes * 1e9))
    preparer = Preparer(
        wiring.database, wiring.store, decoder, scratch, tally=tally, readers=wiring.readers, options=options
    )
    finisher = Finisher(wiring.database, wiring.store, tally, wiring.destinations)
    decoder.start()
    return ((Step.FINISH, finisher.finish), (Step.DELIVER, finisher.deliver_leased), (Step.PREPARE, preparer.prepare))


def errand_steps(wiring: Wiring, tally: Tally) -> tuple[tuple[Step, Do], ...]:
    """Notices, and recordings that are put away. Clients are made when first needed."""
    webhooks = Webhooks(wiring.settings.webhook_secret)
    errander = Errander(wiring.database, webhooks, lambda: wiring.outbox, lambda: wiring.shelves, tally)
    return ((Step.ERRAND, errander.run),)
