"""What `make` runs is there, and can be imported: nobody measures or shows something every day."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

MAKEFILE = (Path(__file__).parent.parent.parent / "Makefile").read_text()
MODULES = sorted(set(re.findall(r"python -m ((?:infra|tests)\.[\w.]+)", MAKEFILE)))


@pytest.mark.parametrize("module", MODULES)
def test_a_target_is_a_module_that_can_be_imported(module: str) -> None:
    importlib.import_module(module)


def test_each_target_says_what_it_does() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)) - {"venv"}
    assert targets == set(re.findall(r"^([a-z-]+):[^\n]*## ", MAKEFILE, re.MULTILINE))
    [phony] = re.findall(r"^\.PHONY: (.*)", MAKEFILE, re.MULTILINE)
    assert targets | {"venv"} == set(phony.split())
