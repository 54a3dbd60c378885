"""`make audit`: whether a version that we pin has a vulnerability that is known, by `uv audit` and the OSV database.

uv audits a project by resolving it, so the pins become one, in a temporary folder. Ends with 1 where something is
found, and with 0 and a word where the database cannot be reached, so that a machine without a network is not red.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parent.parent
PATIENCE_S = 300.0


def project(requirements: str, told: str) -> str:
    """A pyproject.toml that asks for those pins. `told`: the real one, for what it says in packages' stead."""
    pins = [m[0].strip() for m in re.finditer(r"^[\w.\-\[\]]+==[^ \\\n]+( ;[^\\\n]*)?", requirements, re.MULTILINE)]
    uv = tomllib.loads(told)["tool"]["uv"]
    without = ", ".join(f"{{ name = {json.dumps(p['name'])}, requires-dist = [] }}" for p in uv["dependency-metadata"])
    return (
        '[project]\nname = "pins"\nversion = "0"\nrequires-python = ">=3.11"\n'
        f"dependencies = {json.dumps(pins)}\n[tool.uv]\ndependency-metadata = [{without}]\n"
    )


def main(arguments: Sequence[str]) -> int:
    """The command; what follows goes to `uv audit`."""
    with tempfile.TemporaryDirectory() as folder:
        made = project((ROOT / "requirements-dev.txt").read_text(), (ROOT / "pyproject.toml").read_text())
        (Path(folder) / "pyproject.toml").write_text(made)
        command = [find_uv_bin(), "audit", "--project", folder, "--preview-features", "audit-command", *arguments]
        try:
            ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder)
        except subprocess.TimeoutExpired:
            print("not audited: no answer in five minutes")
            return 0
    said = f"{ran.stdout}{ran.stderr}".strip()
    if ran.returncode > 1 and "error sending request" in said:
        print("not audited: the database of vulnerabilities cannot be reached from here")
        return 0
    print(said)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
