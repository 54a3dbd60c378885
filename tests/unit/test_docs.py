"""README and help name what there is, and nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from pipeline.cutting import WAYS
from pipeline.settings import CONFIG, PREFIX, Settings
from tests.unit.test_infra import check_command
from workers.cli import COMMANDS, cli
from workers.options import decoding

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


DECODING = [p.opts for p in decoding(lambda: None).__click_params__]  # type: ignore[attr-defined]


def test_every_setting_that_the_readme_names_exists() -> None:
    named = {*re.findall(rf"\b{PREFIX}([A-Z0-9_]+)", README), *re.findall(r"`_([A-Z0-9_]+)`", README)}
    assert named - {name.upper() for name in Settings.model_fields} - {CONFIG.removeprefix(PREFIX)} == set()


def test_every_command_is_in_the_readme_and_every_one_there_exists() -> None:
    named = set(re.findall(r"spotscribe ([a-z]+)", README))
    assert named - set(COMMANDS) - {"db"} == set()
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", README), name


def test_every_option_of_a_source_is_on_its_page_and_every_one_there_exists() -> None:
    page = (ROOT / "docs" / "drop-folder.md").read_text(encoding="utf-8")
    ingest = {o for p in _command("ingest").params for o in p.opts if o.startswith("--")}
    others = {"--debug", "--every", "--label", "--priority", *(o for d in DECODING for o in d)}
    assert {o for o in ingest - others if o not in page} == set()
    known = ingest | {o for n in ("notices", "deliver") for p in _command(n).params for o in p.opts}
    assert set(re.findall(r"(--[a-z][a-z-]+)", page)) - known == set()


def _command(name: str) -> Command:
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert isinstance(command, Command)
    return command


def test_every_command_has_help_that_says_what_the_list_says() -> None:
    for name in COMMANDS:
        _command(name)
        assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_every_target_of_make_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_every_option_of_evaluate_is_on_its_page_and_every_one_there_exists() -> None:
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    options = {o for p in _command("evaluate").params for o in p.opts if o.startswith("--")}
    of_run = {"--debug", "--batch-size", "--device", *(o for d in DECODING for o in d)}
    assert {o for o in options - of_run if o not in page} == set()
    assert set(re.findall(r"(--[a-z][a-z-]+)", page)) - options == set()
    assert {w for w in WAYS if f"`{w}`" not in page} == set()


PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_in_the_code_blocks_of_a_page_parses(page: Path) -> None:
    for block in re.findall(r"(?:^(?: {4}.*)?\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
        for line in re.sub(r"\\\n", " ", block).splitlines():
            command = line.strip()
            if command.startswith("spotscribe "):
                check_command(shlex.split(re.split(r"\s[|>&]|\s\d?>", command)[0], comments=True)[1:])
