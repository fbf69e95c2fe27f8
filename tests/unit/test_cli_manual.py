"""Help, manual and exit codes come from the code of the commands, and are whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli import main
from scrapyd_dist.cli.commands import CODES, COMMANDS, load, walk
from scrapyd_dist.cli.manual import pages, settings_page

from scrapyd_dist.settings import GROUPS

ROOT = Path(__file__).parents[2]
EVERY = dict(walk())


def first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


@pytest.mark.parametrize("path", EVERY)
def test_every_command_has_an_example_its_exit_codes_and_words_for_all_it_takes(path: str) -> None:
    command = EVERY[path]
    assert path in CODES
    assert [one.name for one in command.params if not getattr(one, "help", None)] == []
    examples = re.findall(r"^ *Example: (.*)$", command.help, re.MULTILINE)
    assert examples or command.commands
    assert all(f"sdist {path}" in example for example in examples)


def test_the_table_has_the_summary_that_each_command_begins_with() -> None:
    assert {name: entry.summary for name, entry in COMMANDS.items()} == {
        name: first_paragraph(EVERY[name].help) for name in COMMANDS
    }


def test_the_panels_of_the_table_are_whole() -> None:
    panels = [entry.panel for entry in COMMANDS.values()]
    assert [panel for place, panel in enumerate(panels) if panel in panels[:place] and panels[place - 1] != panel] == []


def test_exit_codes_are_only_of_commands_that_there_are() -> None:
    assert sorted(set(CODES) - {"", *EVERY}) == []


@pytest.mark.parametrize("width", [80, 120])
def test_help_says_its_codes_and_swallows_no_brackets(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    def shown(path: str) -> str:
        assert main._run([*path.split(), "--help"], debug=False) == 0
        return capsys.readouterr().out

    for path, command in EVERY.items():
        text = shown(path)
        assert max(map(len, text.splitlines())) <= width
        assert "\\[" not in text
        assert ("Exit codes:" in text) == bool(command.epilog)
        cut = [line for line in text.splitlines() if re.search(r"--[\w-]*…", line)]
        assert cut == [], "an option's name is whole"
        plain = re.sub(r"[^\w]+", "", text)
        assert all(re.sub(r"[^\w]+", "", word) in plain for word in re.findall(r"\\?\[\w+\]", command.help))
    assert "[deploy]" in shown("deploy")


def test_the_pages_of_the_manual_are_those_of_the_code() -> None:
    folder = ROOT / "docs" / "commands"
    written = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")}
    texts = pages()
    assert sorted(written) == sorted(texts)
    assert [name for name in texts if written[name] != texts[name]] == [], "make docs writes them anew"


def test_links_in_the_manual_lead_somewhere() -> None:
    texts = pages()
    for name, text in texts.items():
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert target in texts or (ROOT / "docs" / "commands" / target).resolve().exists(), (name, target)


def test_a_command_is_loaded_when_it_is_called_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def noted(name: str) -> Any:
        loaded.append(name)
        return load(name)

    monkeypatch.setattr("scrapyd_dist.cli.commands.load", noted)
    assert main._run(["--help"], debug=False) == 0
    assert main._run(["--version"], debug=False) == 0
    assert loaded == []
    assert main._run(["version"], debug=False) == 0
    assert loaded == ["version"]


def test_the_tables_of_settings_are_those_of_the_registry() -> None:
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert settings_page(page) == page, "make docs writes them anew"
    assert re.findall("^<!-- settings: (.+) -->$", page, re.MULTILINE) == list(GROUPS)
