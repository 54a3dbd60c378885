"""What the names in a transcript and on a job mean, and what is to be done, in words for whoever reads a page."""

from __future__ import annotations

from chunking.errors import Code

FLAGS = {
    "loop": "the same words over and over: what was kept may be one round of them",
    "repetitive": "repeats itself more than speech does",
    "crowded": "more letters than anybody says in that time",
    "sparse": "much speech, few words",
    "low_confidence": "the model is unsure of this",
    "beyond": "the model put text after the end of the sound; that text was dropped",
    "prompt_echo": "the model had said the prompt back; this is the answer without the prompt",
    "wider_window": "the answer of a second attempt",
    "tail": "left out at first, and decoded by itself",
    "gap": "left out at first, and decoded by itself",
    "unheard": "words where no speech was seen",
    "stock_phrase": "a phrase that models make up over silence",
}
"""By flag of a segment (docs/quality.md)."""
DOUBTFUL = ("loop", "repetitive", "crowded", "sparse", "low_confidence", "unheard", "stock_phrase")
"""Flags of segments that may be wrong still; the others say how an answer came about."""

ADVICE = {
    Code.OK: "",
    Code.NO_SPEECH: "Nobody was heard to speak. If somebody does, look at the channel and the track that were read.",
    Code.TRUNCATED: "The file ends early: what there was is transcribed. Upload it again, whole.",
    Code.DAMAGED: "Parts of the file are damaged: the rest is transcribed. Look for a better copy.",
    Code.EMPTY: "The file has no bytes. Upload it again.",
    Code.NOT_MEDIA: "This is no recording. Leave such files out by --include or --exclude.",
    Code.UNDECODABLE: "No decoder can read it. Convert it, and submit that.",
    Code.NO_AUDIO: "It has no audio track. Submit the file that has the sound.",
    Code.DRM: "It is protected. Submit a copy without protection.",
    Code.TOO_LONG: "Raise SPOTSCRIBE_MAX_HOURS, or cut it; then retry.",
    Code.TOO_LARGE: "Raise SPOTSCRIBE_MAX_GIGABYTES, or compress it; then retry.",
    Code.GONE: "It was deleted or overwritten. Submit what lies there now.",
    Code.DENIED: "Give the workers the right to read it, or restore it from its archive; then retry.",
    Code.DECODER_CRASHED: "The decoder died on it, and hurt nothing else. Convert it, and submit that.",
    Code.DECODER_TIMEOUT: "The decoder hung on it. Convert it, and submit that.",
    Code.QUARANTINED: "It ended several workers. Look at their logs before it is tried again.",
    Code.PROMPT_TOO_LONG: "Shorten --hotwords or --initial-prompt, and submit it anew.",
    Code.INTERNAL: "Something failed that should not. Retry; if it stays, report it with the error.",
}
"""By code of a job: what to do."""
