"""README and help name what there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from click import Command
from click.testing import CliRunner

from pipeline.settings import CONFIG, PREFIX, Settings
from workers.cli import COMMANDS, cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_setting_is_in_the_readme_and_every_one_there_exists() -> None:
    named = {*re.findall(rf"\b{PREFIX}([A-Z0-9_]+)", README), *re.findall(r"`_([A-Z0-9_]+)`", README)}
    known = {name.upper() for name in Settings.model_fields}
    assert known - named == set()
    assert named - known - {CONFIG.removeprefix(PREFIX)} == set()


def test_every_command_is_in_the_readme_and_every_one_there_exists() -> None:
    named = set(re.findall(r"spotscribe ([a-z]+)", README))
    assert named - set(COMMANDS) - {"db"} == set()
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", README), name


def test_every_command_has_help_that_says_what_the_list_says() -> None:
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert isinstance(command, Command)
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_every_target_of_make_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
