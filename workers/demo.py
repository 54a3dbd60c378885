"""`make demo`: transcribe a few recordings that a package carries, and print what came of them.

Calls the command line as a user would; only the recordings' place is looked up here.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path

RECORDINGS = (
    ("moonshine_onnx", "assets/beckett.wav"),
    ("pytest_audioeval", "samples/audio/en/quick_brown_fox.wav"),
    ("pytest_audioeval", "samples/audio/en/counting.wav"),
    ("pytest_audioeval", "samples/audio/en/hello_world.wav"),
)


def recordings() -> list[Path]:
    """The files, found without importing the packages."""
    found = []
    for package, path in RECORDINGS:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            sys.exit(f"demo: the package {package} is not installed; run `make demo`")
        found.append(Path(spec.submodule_search_locations[0]) / path)
    return found


def main() -> None:
    out = Path("transcripts/demo")
    command = ["run", *map(str, recordings()), "--model", "tiny.en", "--out", str(out), "--formats", "txt,srt,vtt,json"]
    shown = shlex.join(["run", *(p.name for p in recordings()), *command[1 + len(RECORDINGS) :]])
    print(f"$ spotscribe {shown}", flush=True)
    ended = subprocess.run([sys.executable, "-m", "workers", *command], check=False)
    if ended.returncode:
        sys.exit(ended.returncode)
    for file in sorted(out.glob("*.txt")):
        print(f"\n{file}\n  {file.read_text(encoding='utf-8').strip()}")
    print("\nNext: .venv/bin/spotscribe run YOUR_FOLDER (and --help)")


if __name__ == "__main__":
    main()
