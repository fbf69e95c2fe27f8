"""Help, manual and exit codes come from the code of the commands, and are whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scrapyd_dist.cli import app, main
from scrapyd_dist.cli.codes import CODES
from scrapyd_dist.cli.described import Described, describe
from scrapyd_dist.cli.helping import lines_here, lines_of
from scrapyd_dist.cli.manual import contents, pages
from scrapyd_dist.cli.setup.settingsknown import DEFAULTS

ROOT = Path(__file__).parents[2]
TREE = describe(app.program(), "sdist")
EVERY = list(TREE.walk())


@pytest.mark.parametrize("command", EVERY, ids=lambda command: command.path)
def test_every_command_has_an_example_its_exit_codes_and_words_for_all_it_takes(command: Described) -> None:
    assert command.summary.endswith((".", ":")) or len(command.summary) > 20
    assert command.path.removeprefix("sdist").strip() in CODES
    assert [one.name for one in command.parameters if not one.help] == []
    if not command.commands:
        assert command.examples
    assert all(command.path in example for example in command.examples)


def test_the_table_of_modules_is_what_they_register() -> None:
    assert [command.name for command in TREE.commands] == list(app.COMMANDS)
    for name in app.COMMANDS:
        assert name in app.program(name).commands


def test_exit_codes_are_only_of_commands_that_there_are() -> None:
    paths = {command.path.removeprefix("sdist").strip() for command in EVERY}
    assert sorted(set(CODES) - paths) == []


@pytest.mark.parametrize("width", [40, 80, 100])
def test_help_fits_the_terminal_and_swallows_no_brackets(width: int) -> None:
    for command in EVERY:
        lines = lines_of(command, width)
        copied = ("  Example: ", "Usage: ")
        # A word that is longer than its column stays whole.
        assert [line for line in lines if len(line) > max(width, 64) and not line.startswith(copied)] == []
        assert "\\[" not in "\n".join(lines)
    assert any("[deploy]" in line for line in lines_of(describe(app.program("deploy"), "sdist").commands[0], 100))


def test_the_pages_of_the_manual_are_those_of_the_code() -> None:
    folder = ROOT / "docs" / "commands"
    written = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")}
    texts = pages()
    assert sorted(written) == sorted(texts)
    assert [name for name in texts if written[name] != texts[name]] == [], "make docs writes them anew"


def test_the_list_that_help_shows_is_that_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert (ROOT / "cli" / "contents.py").read_text("utf-8") == contents(), "make docs writes it anew"
    assert main._called(["--help"]) == 0
    assert capsys.readouterr().out.splitlines() == lines_here(TREE)


def test_links_in_the_manual_lead_somewhere() -> None:
    texts = pages()
    for name, text in texts.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if target.startswith("#"):
                assert f"\n## {target[1:].replace('-', ' ')}\n" in text, (name, target)
            else:
                assert target in texts or (ROOT / "docs" / "commands" / target).resolve().exists(), (name, target)


def test_the_settings_that_config_knows_are_the_documented_ones() -> None:
    rows = re.findall(r"^\| `(DISTRIBUTED_\w+)` \|[^|]*\| *(?:`([^`]*)`)?[^|]*\|", _settings_table(), re.MULTILINE)
    assert dict(rows).keys() == DEFAULTS.keys()
    told = {name: default for name, default in rows if default and DEFAULTS[name]}
    assert {name: DEFAULTS[name] for name in told} == told


def _settings_table() -> str:
    return (ROOT / "docs" / "settings.md").read_text("utf-8").partition("## What jobs get")[0]
