"""What `make audit` hands to uv: all that is pinned, and nothing that is not."""

from __future__ import annotations

import re
import tomllib

from infra.audit import ROOT, project


def test_every_pin_is_audited_and_nothing_is_resolved_beyond_them() -> None:
    requirements, told = (ROOT / "requirements-dev.txt").read_text(), (ROOT / "pyproject.toml").read_text()
    made = tomllib.loads(project(requirements, told))
    pinned = set(re.findall(r"^([\w.-]+)(?:\[.*?\])?==", requirements, re.MULTILINE))
    assert {re.split(r"[=\[]", d)[0] for d in made["project"]["dependencies"]} == pinned
    assert any(" ; " in d for d in made["project"]["dependencies"])
    assert made["tool"]["uv"]["dependency-metadata"] == tomllib.loads(told)["tool"]["uv"]["dependency-metadata"]
