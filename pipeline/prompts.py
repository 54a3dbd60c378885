"""What a user has the model read before each window: words that may be said (hotwords), a text in the style wanted.

The model takes it for what was said just before, and spells as it does. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from chunking.errors import Code, PermanentError, UsageError

LONGEST_PROMPT = 223
"""Tokens that stand before a window at most (openai/whisper, decoding.py: half the text context, less one)."""
TIMES = 2
"""Of them timestamps, around the text: without, the model gives hardly any itself, and no unread tail is found."""
TOKENS_PER_SECOND = 4.0
"""As which the prompt is taken to have been spoken."""
TIMESTAMPS_PER_SECOND = 50
LONGEST_S = 30.0
_MARK = re.compile(r"<\|[^|<>]{0,40}\|>")


def cleaned(text: str | None) -> str | None:
    """A prompt as it is kept: white space made single spaces; None where nothing is left.

    Raises UsageError that says what of it the model may not read, or that it is too long for any model.
    """
    plain = " ".join((text or "").split())
    if odd := next((ch for ch in plain if unicodedata.category(ch) in {"Cc", "Cs"}), None):
        raise UsageError(f"it has a character that is no text: U+{ord(odd):04X}")
    if mark := _MARK.search(plain):
        raise UsageError(f"{mark[0]} is one of the model's own marks, and no text")
    if (words := len(plain.split())) > LONGEST_PROMPT - TIMES:
        raise UsageError(f"it has {words} words, and the model takes {LONGEST_PROMPT - TIMES} tokens; leave some out")
    return plain or None


def prompt_tokens(tokenizer: Any, text: str) -> tuple[int, ...]:
    """A cleaned text → what stands before a window: its tokens, between two timestamps.

    `tokenizer`: a model's own, of the library tokenizers. Raises PermanentError where it has more than LONGEST_PROMPT.
    """
    if not text:
        return ()
    marks = tokenizer.token_to_id("<|endoftext|>")
    found = [t for t in tokenizer.encode(f" {text}", add_special_tokens=False).ids if t < marks]
    if len(found) > LONGEST_PROMPT - TIMES:
        most = LONGEST_PROMPT - TIMES
        why = f"hotwords and initial prompt have {len(found)} tokens, and the model takes {most}; leave some out"
        raise PermanentError(why, code=Code.PROMPT_TOO_LONG)
    zero = tokenizer.token_to_id("<|notimestamps|>") + 1
    spoken = min(LONGEST_S, len(found) / TOKENS_PER_SECOND)
    return (zero, *found, zero + round(spoken * TIMESTAMPS_PER_SECOND))
