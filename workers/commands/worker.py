"""`spotscribe worker`: a process of a fleet."""

from __future__ import annotations

import os
import socket
from typing import Any

import click

from chunking.errors import UsageError
from pipeline.devices import default_batch_size, engine_options
from storage.jobs import JobOptions
from workers.fleet import FleetOptions, FleetWorker
from workers.options import BATCH_SIZE, BEAM_SIZE, COMPUTE_TYPE, DEBUG, DEVICE, MODEL
from workers.presence import Presence
from workers.spot import by_name
from workers.wiring import Wiring, load_engine, make_folder, model_directory, read_settings

ROLES = ("cpu", "gpu")
CONNECTIONS = 8

EXIT_CODES = """\b
Exit codes:
  0   it was told to leave (SIGTERM, Ctrl-C, a notice of preemption), and has left
  2   the set-up is wrong, or a part of the fleet does not answer
  70  the model or its device hangs or is lost: start it again
"""


@click.command(epilog=EXIT_CODES)
@click.option("--roles", default="cpu,gpu", show_default=True, help="cpu: prepare, finish, deliver. gpu: transcribe, on whatever device there is.")  # fmt: skip # noqa: E501
@MODEL
@COMPUTE_TYPE
@BEAM_SIZE
@BATCH_SIZE
@DEVICE
@click.option("--cpu-threads", type=click.IntRange(1, 256), help="Recordings that are prepared at once.  [default: the cores, at least 2]")  # fmt: skip # noqa: E501
@DEBUG
def worker(
    roles: str,
    batch_size: int | None,
    device: str | None,
    cpu_threads: int | None,
    debug: bool,
    **asked: Any,
) -> None:
    """Work for a fleet, until told to leave: SIGTERM, Ctrl-C, or the cloud's notice that it takes the machine away.
    It leaves within ten seconds, and nothing is lost if it does not get so far.
    """
    settings = read_settings()
    asked_roles = tuple(dict.fromkeys(r.strip() for r in roles.split(",") if r.strip()))
    if not asked_roles or set(asked_roles) - set(ROLES):
        raise UsageError(f"--roles: {roles!r}; possible: {', '.join(ROLES)}")
    by_name(settings.cloud if settings.cloud != "auto" else "none", settings.metadata_url)
    name = asked["model"] or settings.model
    job = JobOptions(
        model=name, compute_type=asked["compute_type"] or settings.compute_type, beam_size=asked["beam_size"]
    )
    threads = cpu_threads or max(2, settings.cores)
    wiring = Wiring(settings, CONNECTIONS + threads, ping=False)  # it tries again by itself
    wiring.check_fleet()
    make_folder(settings.home, "SPOTSCRIBE_HOME")
    engine, how = None, engine_options(settings, device or settings.device, job.compute_type, job.beam_size)
    if "gpu" in asked_roles:
        engine = load_engine(settings, model_directory(settings, name), how)
    options = FleetOptions(asked_roles, job, batch_size or default_batch_size(how), threads, debug)
    with Presence(settings.home, f"{socket.gethostname()}-") as presence:
        code = FleetWorker(settings, wiring, wiring.app, presence, options, engine).run()
    os._exit(code)  # without waiting for a call that the model is still at
