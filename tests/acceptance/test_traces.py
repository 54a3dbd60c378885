"""One trace for each recording: of one machine's run, and of a fleet, whose worker dies in the middle."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import tracing
from tests.acceptance.command import run
from tests.collector import Collector, Seen, collecting, tree


@pytest.fixture
def collector(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as made:
        monkeypatch.setenv("SPOTSCRIBE_OTLP_ENDPOINT", made.endpoint)
        yield made


def whole(spans: list[Seen]) -> None:
    """One root, and everybody's parent is there."""
    ids = {s.id for s in spans}
    assert [s.name for s in spans if not s.parent] == ["submit"]
    assert all(s.parent in ids for s in spans if s.parent), tree(spans)


def test_a_recording_of_one_machine_is_one_trace(
    collector: Collector, home: Path, tmp_path: Path, english_clips: list[Path]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for clip in english_clips[:3]:
        (folder / clip.name).write_bytes(clip.read_bytes())
    assert run(folder, out=tmp_path / "out").code == 0
    traces = collector.traces()
    assert set(traces) == {c.name for c in english_clips[:3]}
    for spans in traces.values():
        whole(spans)
        names = [s.name for s in spans]
        for name in ("prepare", "fetch", "decode_media", "vad", "plan", "shards", "shard", "finish"):
            assert name in names, tree(spans)
    print(tree(traces["beckett.wav"]))
    shards = {s.id: name for name, spans in traces.items() for s in spans if s.name == "shard"}
    batches = [s for s in collector.spans if s.name == "batch"]
    linked = [{shards[x] for x in b.links} for b in batches]
    assert set().union(*linked) == set(traces)
    assert any(len(names) > 1 for names in linked)
    assert sum("checkpoint" in s.events for s in collector.spans) == len(shards)
    text = str([s.attributes for s in collector.spans])
    assert "ried" not in text  # no word of a transcript


def test_a_copy_is_linked_with_the_recording_that_is_decoded(
    collector: Collector, home: Path, tmp_path: Path, voice: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("one.wav", "copy.wav"):
        (folder / name).write_bytes(voice.read_bytes())
    assert run(folder, out=tmp_path / "out").code == 0
    traces = collector.traces()
    decoded, copied = sorted(traces.values(), key=lambda spans: "shard" not in {s.name for s in spans})
    [root] = [s.id for s in decoded if s.name == "submit"]
    assert "shard" not in {s.name for s in copied}
    assert [s.links for s in copied if s.name == "prepare"] == [{root}]


def test_a_share_of_none_traces_nothing(
    collector: Collector, home: Path, tmp_path: Path, voice: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPOTSCRIBE_TRACE_SHARE", "0")
    assert run(voice, out=tmp_path / "out").code == 0
    assert collector.spans == []


def test_a_collector_that_hangs_holds_up_nobody(collector: Collector, home: Path, tmp_path: Path, voice: Path) -> None:
    collector.hangs.set()
    began = time.monotonic()
    assert run(voice, out=tmp_path / "out").code == 0
    assert collector.asked > 0
    assert time.monotonic() - began < 50  # a request to it would hang for a minute


def test_without_the_setting_nothing_is_imported(home: Path) -> None:
    import subprocess

    code = "import workers.local, workers.fleet, sys; print([m for m in sys.modules if m.startswith('opentelemetry.exporter')])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    assert not tracing.on()


def test_urls_lose_what_may_be_secret() -> None:
    assert tracing.place("https://u:p@host/a/b.wav?X-Amz-Signature=abc") == "https://host/a/b.wav"
    assert tracing.place("s3://bucket/a b.wav") == "s3://bucket/a b.wav"
