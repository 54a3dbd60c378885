"""One peer over all recordings, in a process of its own: JSON on stdin, JSON into the file that is named.

Nothing of Spotscribe is imported, since this runs in the peers' own environments too. `inside_s` goes from before the
first file is read to the last text, without start and model load.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def faster_whisper(job: dict[str, Any]) -> dict[str, Any]:
    """File after file, as its README shows; with a batch size its batched pipeline, else the sequential one."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    model = WhisperModel(
        job["model"], device=job["device"], compute_type=job["compute_type"], cpu_threads=job["threads"]
    )
    if job["batch"]:
        runner, more = BatchedInferencePipeline(model), {"batch_size": job["batch"]}
    else:
        runner, more = model, {"condition_on_previous_text": False}
    timed = job.get("words", False)
    began, texts, words = time.perf_counter(), [], []
    for file in job["files"]:
        found, _ = runner.transcribe(
            file, language=job["language"], beam_size=job["beam"], word_timestamps=timed, **more
        )
        segments = list(found)
        texts.append(" ".join(s.text.strip() for s in segments))
        words.append([(w.start, w.end, w.word, w.probability) for s in segments for w in s.words or ()])
    return {"inside_s": time.perf_counter() - began, "texts": texts, "words": words}


def whisper_s2t(job: dict[str, Any]) -> dict[str, Any]:
    """All files in one call, with its own VAD. It detects no languages: it is always told."""
    import torch
    import whisper_s2t as package
    from whisper_s2t.backends.ctranslate2 import model as backend

    torch.set_num_threads(job["threads"])
    backend._normalize_compute_type = str  # it knows no int8, and would quietly compute in float32
    model = package.load_model(
        job["model"],
        device=job["device"],
        compute_type=job["compute_type"],
        cpu_threads=job["threads"],
        asr_options={"beam_size": job["beam"]},
    )
    files = job["files"]
    began = time.perf_counter()
    found = model.transcribe_with_vad(
        files,
        lang_codes=job["languages"],
        tasks=["transcribe"] * len(files),
        initial_prompts=[None] * len(files),
        batch_size=job["batch"],
    )
    texts = [" ".join(u["text"] for u in one) for one in found]
    return {"inside_s": time.perf_counter() - began, "texts": texts}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    Path(sys.argv[1]).write_text(
        json.dumps({"faster-whisper": faster_whisper, "whisper-s2t": whisper_s2t}[asked["peer"]](asked))
    )
