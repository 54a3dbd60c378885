"""A prompt is cleaned, counted in the model's own tokens, never cut, and never one of the model's own marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from chunking.errors import Code, PermanentError, UsageError
from pipeline.models import find_model
from pipeline.prompts import LONGEST_PROMPT, TIMES, cleaned, prompt_tokens
from pipeline.settings import Settings
from storage.jobs import JobOptions
from workers.options import job_options

MOST = LONGEST_PROMPT - TIMES
END, ZERO = 50256, 50363
"""`<|endoftext|>` and `<|0.00|>` of an English-only model."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Tokenizer.from_file(str(find_model("tiny.en", tmp_path_factory.mktemp("models")) / "tokenizer.json"))


@pytest.mark.parametrize("nothing", [None, "", "  \n\t "])
def test_nothing_is_no_prompt(nothing: str | None, tokenizer: Any) -> None:
    assert cleaned(nothing) is None
    assert prompt_tokens(tokenizer, "") == ()


def test_white_space_is_single_spaces_so_that_the_same_words_are_the_same_job() -> None:
    assert cleaned(" Kovacs,\n\tSpotscribe \u3000x\r\n") == "Kovacs, Spotscribe x"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a\0b", "U\\+0000"),
        ("\x1b[31mred", "U\\+001B"),
        ("\udcff", "U\\+DCFF"),
        ("Kovacs <|endoftext|>", "<\\|endoftext\\|> is one of the model's own marks"),
        ("<|startoftranscript|><|de|>", "marks"),
        ("<|1.00|>", "marks"),
        ("name " * (MOST + 1), f"{MOST + 1} words"),
    ],
)
def test_what_is_no_text_or_too_much_of_it_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        cleaned(text)


@given(st.text(max_size=300))
def test_whatever_is_said_is_refused_or_kept_in_one_line_and_stays_as_it_is(text: str) -> None:
    try:
        kept = cleaned(text)
    except UsageError:
        return
    assert "\n" not in (kept or "")
    assert cleaned(kept) == kept


@given(st.text(max_size=200) | st.sampled_from(["<|endoftext|> x <|startoftranscript|>", "<|0.00|><|notimestamps|>"]))
def test_no_text_becomes_a_mark_of_the_models_own(tokenizer: Any, text: str) -> None:
    """Also where nobody has looked at it before."""
    try:
        tokens = prompt_tokens(tokenizer, text)
    except PermanentError:
        return
    if tokens:
        first, *inner, last = tokens
        assert all(0 <= t < END for t in inner)
        assert first == ZERO < last <= ZERO + 1500
        assert len(tokens) <= LONGEST_PROMPT


def test_the_limit_is_whispers_and_nothing_is_cut(tokenizer: Any) -> None:
    assert len(prompt_tokens(tokenizer, " ".join(["name"] * MOST))) == LONGEST_PROMPT
    with pytest.raises(PermanentError, match=f"{MOST + 1} tokens, and the model takes {MOST}") as refused:
        prompt_tokens(tokenizer, " ".join(["name"] * (MOST + 1)))
    assert refused.value.code == Code.PROMPT_TOO_LONG


def test_hotwords_come_first() -> None:
    assert JobOptions(hotwords="Kovacs", initial_prompt="He said.").prompt == "Kovacs He said."
    assert JobOptions().prompt == ""


def test_jobs_without_a_prompt_are_the_jobs_that_they_were() -> None:
    """Asked for again after an update, a recording must not be decoded again; and an older worker reads its row."""
    assert JobOptions().digest == "0852f80215e6034a2fb60a23b4a4cab9"
    assert (
        JobOptions("large-v3", "float16", "de", "translate", "split", True, 5).digest
        == "3d3c9f597bc28d6c4c590146bfb087b1"
    )
    assert set(JobOptions().stored) == {
        "model", "compute_type", "language", "task", "channels", "word_timestamps", "beam_size",
    }  # fmt: skip
    one, other = JobOptions(hotwords="Kovacs"), JobOptions(initial_prompt="Kovacs")
    assert len({JobOptions().digest, one.digest, other.digest, JobOptions(track=0).digest}) == 4
    assert JobOptions(**one.stored) == one


def test_a_submitter_counts_where_the_model_is_here_and_else_leaves_it_to_the_worker(tmp_path: Path) -> None:
    asked = {
        "model": "tiny.en", "compute_type": None, "language": None, "task": "transcribe", "channels": "mix",
        "word_timestamps": False, "beam_size": 1, "hotwords": " ".join(["Spotscribe"] * 120),
        "initial_prompt": None, "track": None,
    }  # fmt: skip
    settings = Settings(home=tmp_path)
    with pytest.raises(UsageError, match=r"--initial-prompt: .* 240 tokens, and the model takes 221"):
        job_options(settings, None, asked)
    for elsewhere in ("/nowhere/model.en", "large-v3"):
        assert job_options(settings, None, asked | {"model": elsewhere}).hotwords == asked["hotwords"]
    with pytest.raises(UsageError, match="--initial-prompt: it has 222 words"):
        job_options(settings, None, asked | {"model": "large-v3", "initial_prompt": "x " * 222})
