"""`make bench`: Spotscribe beside faster-whisper, WhisperS2T and whisper-ctranslate2, and beside its own engine alone.

Same recordings, model, compute type, beam and threads; each contender in a process of its own, in turn, several rounds.
Peers that are not among our dependencies get environments of their own (`.venv-bench-NAME`) when first asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from chunking.errors import UsageError
from pipeline.devices import cuda_devices
from pipeline.models import find_model
from pipeline.references import Reference
from pipeline.settings import Settings
from tests.benchmarks.bench_peers import (
    BATCHES,
    CEILING,
    PEERS,
    SPOTSCRIBE,
    Job,
    Ready,
    Run,
    engine_alone,
    ready,
    rotated,
    spotscribe,
)
from tests.benchmarks.bench_process import ROOT, CannotRun
from tests.benchmarks.bench_report import Results, rendered
from tests.benchmarks.bench_set import ClipSet, from_manifest, from_packages

REPORT = ROOT / "docs" / "benchmarks.md"
TRIAL_S = 120.0
"""Recordings that come to so much choose each batched peer's batch size, before the first round."""
OURS = ("ctranslate2", "faster-whisper", "onnxruntime", "numpy", "av")
Go = Callable[[Job, Path], Run]


def main(arguments: Sequence[str] | None = None) -> None:
    """The report on stdout and in a file; what is being done on stderr."""
    o = _options(arguments)
    out = o.out or (REPORT if o.manifest and not o.limit else None)
    try:
        for file in (out, o.json):
            if file and not file.absolute().parent.is_dir():
                raise UsageError(f"{file}: there is no such folder")
        clips = from_manifest(o.manifest, o.language, o.limit) if o.manifest else from_packages(o.language, o.limit)
        model = find_model(o.model, Settings().models)
        job = Job(clips.clips, o.language, model, o.compute_type, o.beam, o.threads, o.device)
        results = measure(job, clips, o)
    except UsageError as e:
        sys.exit(f"bench: {e}")
    except CannotRun as e:
        sys.exit(f"bench: Spotscribe itself {e}")
    report = rendered(results)
    print(report)
    if o.json:
        o.json.write_text(json.dumps(asdict(results), indent=1) + "\n")
    if out:
        out.write_text(report, encoding="utf-8")
        _say(f"written to {out}")


def measure(job: Job, recordings: ClipSet, o: argparse.Namespace) -> Results:
    """Warm up, then all rounds. A peer that fails once is out, and the report says why. Raises CannotRun of ours."""
    head = _head(job, recordings, o)
    peers, missing = _ready(o.peers)
    jobs = {name: _warm(peer, job, missing) for name, peer in peers.items()}
    contenders: dict[str, Go] = {SPOTSCRIBE: spotscribe, CEILING: engine_alone}
    contenders |= {name: peers[name].go for name, found in jobs.items() if found is not None}
    _once(spotscribe, replace(job, clips=job.clips[:1]))
    runs: dict[str, list[Run]] = {name: [] for name in contenders}
    for i in range(o.rounds):
        for name in rotated(list(contenders), i):
            if name in missing:
                continue
            try:
                run = _once(contenders[name], jobs.get(name) or job)
            except CannotRun as e:
                if name not in peers:
                    raise
                missing[name] = f"it {e}"
                _say(f"{name} {e}")
                continue
            runs[name].append(run)
            wer = f", WER {run.score.wer:.4f}" if run.score else ""
            _say(f"round {i + 1}: {name} {recordings.seconds / run.best_s:.1f}x{wer}, {run.usage.memory_mb:.0f} MB")
    words = next(r.score.words for r in runs[SPOTSCRIBE] if r.score)
    kept = {name: tuple(found) for name, found in runs.items() if name not in missing}
    notes = {n: _note(p, jobs[n]) for n, p in peers.items()}
    return Results(head, recordings.seconds, job.threads, words, kept, missing, notes)


def _ready(names: Sequence[str]) -> tuple[dict[str, Ready], dict[str, str]]:
    peers, missing = dict[str, Ready](), dict[str, str]()
    for name in names:
        try:
            peers[name] = ready(name)
        except CannotRun as e:
            missing[name] = f"it {e}"
            _say(f"{name} {e}")
    return peers, missing


def _warm(peer: Ready, job: Job, missing: dict[str, str]) -> Job | None:
    """One go over a few recordings, at each batch size where there is a choice: the job with the faster one."""
    sizes = BATCHES[job.device] if peer.peer.batched else ()
    few = _at_least(job, TRIAL_S)
    took: dict[int, float] = {}
    try:
        _once(peer.go, replace(job, clips=few[:1], batch=next(iter(sizes), None)))  # files come into memory
        for size in sizes:
            took[size] = _once(peer.go, replace(job, clips=few, batch=size)).best_s
    except CannotRun as e:
        missing[peer.name] = f"it {e}"
        _say(f"{peer.name} {e}")
        return None
    best = min(took, key=lambda s: took[s], default=None)
    _say(f"{peer.name} is warm" + (f": batches of {best}" if best else ""))
    return replace(job, batch=best)


def _at_least(job: Job, seconds: float) -> tuple[Reference, ...]:
    found, length = list[Reference](), 0.0
    for clip in job.clips:
        if length >= seconds:
            break
        found.append(clip)
        length += clip.seconds
    return tuple(found)


def _once(go: Go, job: Job) -> Run:
    with tempfile.TemporaryDirectory(prefix="spotscribe-bench-") as folder:
        return go(job, Path(folder))


def _note(peer: Ready, job: Job | None) -> str:
    sizes = " and ".join(map(str, BATCHES[job.device])) if job else ""
    batch = f", batches of {job.batch} (the faster of {sizes})" if job and job.batch else ""
    known = ", ".join(f"{k} {v}" for k, v in peer.versions.items())
    return f"{peer.peer.note}{batch}; {known}"


def _head(job: Job, recordings: ClipSet, o: argparse.Namespace) -> dict[str, str]:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = len(os.sched_getaffinity(0))
    model = Path(o.model).name if "/" in o.model else o.model
    clips = recordings.clips
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{cpu[1] if cpu else platform.machine()}, {cores} cores, {memory:.0f} GB, {platform.system()}",
        "commit": _commit(),
        "command": f"`{_command(o)}`",
        "recordings": f"{recordings.name}: {len(clips)}, {recordings.seconds:.0f} s, language {job.language}",
        "model": f"{model}, {job.compute_type}, beam {job.beam}, {job.device}, {job.threads} threads",
        "rounds": f"{o.rounds}; load average before them {os.getloadavg()[0]:.1f}",
        "versions": f"Python {platform.python_version()}, " + ", ".join(f"{p} {version(p)}" for p in OURS),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = " and changes that are not committed" if git("status", "--porcelain", "--untracked-files=no") else ""
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{changed}"


def _command(o: argparse.Namespace) -> str:
    """As it was called, with the last two parts of each path alone: a report is read on other machines."""
    given = [re.sub(r"^(.*/)(?=[^/]+/[^/]+$)", "…/", a) if "/" in a else a for a in o.given]
    words = " ".join(a if "…" in a else shlex.quote(a) for a in given)
    return f'make bench ARGS="{words}"' if given else "make bench"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="bench", description=__doc__.split("\n", 1)[0])
    add, cores, report = p.add_argument, len(os.sched_getaffinity(0)), REPORT.relative_to(ROOT)
    what = "JSONL: path (relative to it), text, language, seconds; else the clips that a package carries"
    told = "only recordings in it, and everybody is told; auto: all, and nobody is told"
    add("--manifest", type=Path, metavar="FILE", help=what)
    add("--language", default="en", metavar="CODE", help=told)
    add("--limit", type=_count, metavar="N", help="only the first N recordings")
    add("--model", default="tiny.en", help="a name or a directory in CTranslate2 form")
    add("--compute-type", default="int8")
    add("--beam", type=_count, default=1)
    add("--threads", type=_count, default=cores, help="of each contender; default: all cores")
    add("--device", choices=("cpu", "cuda"), default="cuda" if cuda_devices() else "cpu")
    add("--rounds", type=_count, default=3)
    add("--peers", type=_some_peers, default=tuple(PEERS), metavar="NAME,…", help=", ".join(PEERS))
    add("--out", type=Path, metavar="FILE", help=f"the report; default: {report} for all of a manifest, else none")
    add("--json", type=Path, metavar="FILE", help="each run's figures")
    o = p.parse_args(arguments)
    o.given = sys.argv[1:] if arguments is None else list(arguments)
    return o


def _count(given: str) -> int:
    number = int(given)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _some_peers(given: str) -> tuple[str, ...]:
    if unknown := [n for n in given.split(",") if n not in PEERS]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(PEERS)}")
    return tuple(given.split(","))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
