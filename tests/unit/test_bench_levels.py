"""The benchmark of the repair of levels, in miniature, with real weights."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_levels import main


def test_the_repair_gives_quiet_speech_its_words_back(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--ways", "as it is", "50 dB quieter"])
    *_, clean, quiet = ([x.strip() for x in row.strip("|").split("|")] for row in capsys.readouterr().out.splitlines())
    assert clean[1:3] == clean[3:5]
    assert float(quiet[1]) > 0.9
    assert float(quiet[3]) == pytest.approx(float(clean[3]), abs=0.1)
