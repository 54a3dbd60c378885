"""The contenders of `make bench`: how Spotscribe, each peer and the engine alone go over the same recordings once."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pipeline.references import Reference
from pipeline.scoring import Score
from tests.benchmarks.bench_process import CannotRun, Usage, environment, made_environment, measured, versions
from tests.benchmarks.bench_set import AUTO, score

SPOTSCRIBE, CEILING = "spotscribe", "engine alone"
CHILD = Path(__file__).with_name("bench_child.py")
BATCHES = {"cpu": (8, 16), "cuda": (16, 64)}
"""What batched peers are tried at."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every contender is asked for, in the same way."""

    clips: tuple[Reference, ...]
    language: str
    """A code, or `auto`: nobody is told."""
    model: Path
    compute_type: str
    beam: int
    threads: int
    device: str
    batch: int | None = None
    """Of batched peers."""

    @property
    def told(self) -> str | None:
        return None if self.language == AUTO else self.language


@dataclass(frozen=True, slots=True)
class Run:
    """One contender, all recordings, once."""

    usage: Usage
    inside_s: float | None
    """From the first file read to the last text; None where only the whole process can be measured."""
    score: Score | None = None
    stage_s: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def best_s(self) -> float:
        """Without start and model load where that is known."""
        return self.usage.process_s if self.inside_s is None else self.inside_s


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that Spotscribe is measured beside."""

    go: Callable[[Job, Path, Path], Run]
    """Job, an empty folder, the Python that has it."""
    module: str
    packages: tuple[str, ...]
    """Whose versions belong into a report."""
    requirements: tuple[str, ...] = ()
    """Of an environment of its own; none: it is here."""
    batched: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A peer that runs here."""

    name: str
    peer: Peer
    python: Path
    versions: dict[str, str]

    def go(self, job: Job, folder: Path) -> Run:
        return self.peer.go(job, folder, self.python)


def ready(name: str) -> Ready:
    """Make its environment if need be, and see whether it can be imported. Raises CannotRun."""
    peer = PEERS[name]
    python = made_environment(name, peer.requirements) if peer.requirements else Path(sys.executable)
    return Ready(name, peer, python, versions(python, peer.module, peer.packages))


def spotscribe(job: Job, folder: Path) -> Run:
    """`spotscribe run` as a user calls it, with a fresh state."""
    (folder / "empty.toml").touch()
    env = environment(
        SPOTSCRIBE_HOME=str(folder / "home"),
        SPOTSCRIBE_CONFIG=str(folder / "empty.toml"),
        SPOTSCRIBE_CPU_THREADS=str(job.threads),
    )
    files = [str(c.file) for c in job.clips]
    command = [
        *(sys.executable, "-m", "workers", "run", *files, "--out", str(folder / "out"), "--formats", "txt", "--json"),
        *("--model", str(job.model), "--compute-type", job.compute_type, "--beam-size", str(job.beam)),
        *("--device", job.device, *(("--language", job.told) if job.told else ())),
    ]
    usage = measured(command, folder, env, fine=(0, 3))
    told = json.loads((folder / "stdout").read_text())
    written = {f["source"]: f["outputs"]["txt"] for f in told["files"] if "txt" in f["outputs"]}
    texts = [Path(written[f]).read_text(encoding="utf-8") if f in written else "" for f in files]
    counts = {k: told[k] for k in ("chunks_decoded", "batches", "mean_batch_fill")}
    counts["not_done"] = sum(f["state"] != "done" for f in told["files"])
    return Run(usage, told["wall_s"], score(job.clips, texts), told["stage_s"], counts)


def engine_alone(job: Job, folder: Path) -> Run:
    """The same windows in full batches, everything else done beforehand (bench_ceiling.py). It gives no texts."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_ceiling", str(folder / "result")]
    usage = measured(command, folder, environment(), given=_request(job))
    told = json.loads((folder / "result").read_text())
    return Run(usage, told["inside_s"], None, told["stage_s"], told["counts"])


def _child(kind: str) -> Callable[[Job, Path, Path], Run]:
    def go(job: Job, folder: Path, python: Path) -> Run:
        command = [str(python), str(CHILD), str(folder / "result")]
        usage = measured(command, folder, environment(), given=_request(job, peer=kind))
        told = json.loads((folder / "result").read_text())
        return Run(usage, told["inside_s"], score(job.clips, told["texts"]))

    return go


def _request(job: Job, **more: str) -> str:
    asked = {
        "files": [str(c.file) for c in job.clips],
        "languages": [c.language for c in job.clips],
        "language": job.told,
        "model": str(job.model),
        "compute_type": job.compute_type,
        "beam": job.beam,
        "threads": job.threads,
        "device": job.device,
        "batch": job.batch,
    }
    return json.dumps({**asked, **more})


def _whisper_ctranslate2(job: Job, folder: Path, python: Path) -> Run:
    """A command line: names of texts come from names of files, so each file gets one of its own."""
    (folder / "in").mkdir()
    links = [folder / "in" / f"{i:06d}{c.file.suffix}" for i, c in enumerate(job.clips)]
    for link, clip in zip(links, job.clips, strict=True):
        link.symlink_to(clip.file)
    asked = {
        "model_directory": job.model,
        "output_dir": folder / "out",
        "output_format": "txt",
        "verbose": False,
        "device": job.device,
        "threads": job.threads,
        "compute_type": job.compute_type,
        "beam_size": job.beam,
        "batched": True,
        "batch_size": job.batch,
        **({"language": job.told} if job.told else {}),
    }
    options = [part for key, value in asked.items() for part in (f"--{key}", str(value))]
    command = [str(python.with_name("whisper-ctranslate2")), *map(str, links), *options]
    usage = measured(command, folder, environment())
    texts = [(folder / "out" / f"{link.stem}.txt") for link in links]
    if missing := [t.name for t in texts if not t.is_file()]:
        raise CannotRun(f"wrote no text for {len(missing)} of {len(texts)} recordings")
    return Run(usage, None, score(job.clips, [t.read_text(encoding="utf-8") for t in texts]))


_CTRANSLATE2 = f"ctranslate2=={version('ctranslate2')}"
"""Peers compute with the library that we compute with."""
PEERS = {
    "faster-whisper-sequential": Peer(
        _child("faster-whisper"), "faster_whisper", ("faster-whisper", "ctranslate2"),
        note="one file after the other, `condition_on_previous_text=False`, else its defaults",
    ),
    "faster-whisper-batched": Peer(
        _child("faster-whisper"), "faster_whisper", ("faster-whisper", "ctranslate2"), batched=True,
        note="`BatchedInferencePipeline`, one file after the other",
    ),
    "whisper-s2t": Peer(
        _child("whisper-s2t"), "whisper_s2t", ("whisper-s2t-reborn", "ctranslate2", "torch"),
        ("whisper-s2t-reborn==1.8.0", "torch==2.13.0", _CTRANSLATE2), batched=True,
        note="`transcribe_with_vad` of all files in one call, batches across files; it detects no languages and is"
        " told them; its API turns int8 into float32, so the compute type is handed past it",
    ),
    "whisper-ctranslate2": Peer(
        _whisper_ctranslate2, "whisper_ctranslate2", ("whisper-ctranslate2", "faster-whisper", "ctranslate2"),
        ("whisper-ctranslate2==0.5.8", f"faster-whisper=={version('faster-whisper')}", _CTRANSLATE2), batched=True,
        note="a command line, so only the whole process can be measured; `--batched True`",
    ),
}  # fmt: skip


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Another one begins each round, so that nobody always runs on a machine that has just cooled down."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]
