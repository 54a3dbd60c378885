"""`spotscribe worker`: a process of a fleet."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from chunking.errors import UsageError
from pipeline import tracing
from pipeline.devices import EngineOptions, default_batch_size, engine_options
from pipeline.settings import Settings
from storage.jobs import JobOptions
from storage.urls import job_model
from workers.bootstrap import die_with
from workers.fleet import FleetOptions, FleetWorker
from workers.logs import Logs, leave_now
from workers.options import BATCH_SIZE, BEAM_SIZE, COMPUTE_TYPE, DEBUG, DEVICE, MODEL
from workers.pack import Pack, children
from workers.presence import Presence
from workers.served import Served
from workers.spot import by_name
from workers.wiring import Wiring, load_engine, make_folder, model_directory, read_settings

ROLES = ("cpu", "gpu")
CONNECTIONS = 8

EXIT_CODES = """\b
Exit codes:
  0   it was told to leave (SIGTERM, Ctrl-C, a notice of preemption), and has left
  2   the set-up is wrong, or a part of the fleet does not answer
  70  the model or its device hangs or is lost: start it again
Of several processes the worst code counts; what ends by itself is started again.
"""


@click.command(epilog=EXIT_CODES)
@click.option("--roles", default="cpu,gpu", show_default=True, help="cpu: prepare, finish, deliver. gpu: transcribe, on whatever device there is.")  # fmt: skip # noqa: E501
@MODEL
@COMPUTE_TYPE
@BEAM_SIZE
@BATCH_SIZE
@DEVICE
@click.option("--cpu-threads", type=click.IntRange(1, 256), help="Recordings that are prepared at once.  [default: the cores, at least 2]")  # fmt: skip # noqa: E501
@click.option("--processes", type=click.IntRange(1, 64), help="Processes on this machine, each with a GPU and a share of the cores.  [default: one for each GPU]")  # fmt: skip # noqa: E501
@click.option("--child-of", type=int, hidden=True)
@DEBUG
def worker(
    roles: str,
    batch_size: int | None,
    device: str | None,
    cpu_threads: int | None,
    processes: int | None,
    child_of: int | None,
    debug: bool,
    **asked: Any,
) -> None:
    """Work for a fleet, until told to leave: SIGTERM, Ctrl-C, or the cloud's notice that it takes the machine away.
    It leaves within ten seconds, and nothing is lost if it does not get so far. On a machine with several GPUs one
    process for each is started, and started again where it ends by itself.
    """
    if child_of is not None:
        die_with(child_of)
    settings = read_settings()
    asked_roles = tuple(dict.fromkeys(r.strip() for r in roles.split(",") if r.strip()))
    if not asked_roles or set(asked_roles) - set(ROLES):
        raise UsageError(f"--roles: {roles!r}; possible: {', '.join(ROLES)}")
    by_name(settings.cloud if settings.cloud != "auto" else "none", settings.metadata_url)
    model = asked["model"] or settings.model
    job = JobOptions(
        model=job_model(model),
        compute_type=asked["compute_type"] or settings.compute_type,
        beam_size=asked["beam_size"],
    )
    threads = cpu_threads or max(2, settings.cores)
    wiring = Wiring(settings, CONNECTIONS + threads, ping=False)  # it tries again by itself
    wiring.check_fleet()
    make_folder(settings.home, "SPOTSCRIBE_HOME")
    decoder = None
    if "gpu" in asked_roles:
        decoder = _decoder(settings, model, job, device, named=asked["compute_type"] is not None)
    gpus = decoder.gpus if decoder else 0
    if (number := processes or max(1, gpus)) > 1:
        wiring.database.close()
        Logs(settings).start(socket.gethostname())
        sys.exit(Pack(children(number, gpus, settings.cores, cpu_threads, settings.metrics_listen)).run())
    options = FleetOptions(asked_roles, job, batch_size or (decoder.batch_size if decoder else 1), threads, debug)
    served = Served(settings.metrics_listen) if settings.metrics_listen else None
    if served is not None:
        served.start()  # before the model is loaded, so that it can be seen to take its time
    engine = load_engine(settings, decoder.model, decoder.how) if decoder else None
    with Presence(settings.home, f"{socket.gethostname()}-") as presence:
        Logs(settings).start(presence.name)
        tracing.start(settings, presence.name)
        code = FleetWorker(settings, wiring, wiring.app, presence, options, engine, served).run()
    leave_now(code)  # without waiting for a call that the model is still at


@dataclass(frozen=True, slots=True)
class _Decoder:
    """A model that is here, and how it will be run."""

    model: Path | None
    how: EngineOptions

    @property
    def gpus(self) -> int:
        return self.how.parallel if self.how.device == "cuda" else 0

    @property
    def batch_size(self) -> int:
        return default_batch_size(self.how, self.model)


def _decoder(settings: Settings, model: str, job: JobOptions, device: str | None, *, named: bool) -> _Decoder:
    """Raises UsageError where the model or the device is not to be had."""
    how = engine_options(settings, device or settings.device, job.compute_type, job.beam_size, named=named)
    if how.notice:
        click.echo(how.notice, err=True)
    return _Decoder(model_directory(settings, model), how)
