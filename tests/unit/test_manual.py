"""Help, manual, exit codes and the documents: all come from the commands, are whole, and can be typed."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rig.commands import Result
from rig.document_schemas import json_page, schemas
from scrapyd_dist.cli.commands import (
    ALIASES,
    CODES,
    COMMANDS,
    escape_markup,
    expand_alias,
    load,
    walk,
)
from scrapyd_dist.cli.manual import (
    differences_page,
    page,
    pages,
    read_notes,
    related_names_page,
    settings_page,
    write,
)

import scrapyd_dist
from scrapyd_dist.related_names import SETTINGS_OF
from scrapyd_dist.settings import GROUPS, SETTINGS

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]
EVERY = dict(walk())


def typed_in(path: Path) -> list[str]:
    """The lines of code that begin with sdist, without what the shell does with them."""
    lines = re.findall(r"^(?:    )?(sdist [^\n]*)$", path.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r" (?:[|>;#&]|&&|\|\|)(?: .*)?$", "", line) for line in lines]


EXAMPLES = [
    text
    for command in EVERY.values()
    for text in re.findall(r"^ *Example: (.*)$", command.help, re.MULTILINE)
]
SHELL = [
    re.sub(r"(?<=\S) (?:[|>;#]|&&) .*$", "", example)
    for example in EXAMPLES
    if example.startswith("sdist ")
]
DOCUMENTS = [
    ROOT / "README.md",
    *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "commands"),
]
LINES = sorted({*SHELL, *(line for path in DOCUMENTS for line in typed_in(path))})
#: usage, not something to type
PATTERNS = re.compile(r"\[OPTIONS\]|[A-Z]{4,}…")


@pytest.mark.parametrize("line", [line for line in LINES if not PATTERNS.search(line)])
def test_the_command_takes_it(line: str) -> None:
    words = shlex.split(line)[1:]
    if words in (["--help"], ["--version"]):
        return
    assert expand_alias(words) == words, "that is another name of it"
    assert words[0] in COMMANDS, f"there is no command {words[0]}"
    command: Any = load(words[0])
    path, words = f"sdist {words[0]}", words[1:]
    while words and words[0] in getattr(command, "commands", {}):
        path, command = f"{path} {words[0]}", command.commands[words[0]]
        words = words[1:]
    command.make_context(path, words, help_option_names=["-h", "--help"])


@pytest.mark.parametrize("path", EVERY)
def test_every_command_has_an_example_its_exit_codes_and_words_for_all_it_takes(path: str) -> None:
    command = EVERY[path]
    assert path in CODES
    assert [one.name for one in command.params if not getattr(one, "help", None)] == []
    examples = re.findall(r"^ *Example: (.*)$", command.help, re.MULTILINE)
    assert examples or command.commands
    assert all(f"sdist {path.removesuffix(' list')}" in example for example in examples)


def test_the_table_has_the_summary_that_each_command_begins_with_and_whole_panels() -> None:
    first = {name: EVERY[name].help.partition("\n\n")[0] for name in COMMANDS}
    assert {name: entry.summary for name, entry in COMMANDS.items()} == first
    panels = [entry.panel for entry in COMMANDS.values()]
    assert [
        panel
        for place, panel in enumerate(panels)
        if panel in panels[:place] and panels[place - 1] != panel
    ] == []
    assert sorted(set(CODES) - {"", *EVERY}) == [], "exit codes are of commands that there are"


@pytest.mark.parametrize("width", [80, 120])
def test_help_says_its_codes(width: int, sdist: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for path, command in EVERY.items():
        text = sdist(*path.split(), "--help").expect(0).out
        assert max(map(len, text.splitlines())) <= width
        assert "\\[" not in text
        assert ("Exit codes:" in text) == bool(command.epilog)
        cut = [line for line in text.splitlines() if re.search(r"--[\w-]*…", line)]
        assert cut == [], "an option's name is whole"


@pytest.mark.parametrize("path", EVERY)
def test_help_swallows_no_brackets(path: str, sdist: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    written = "".join([EVERY[path].help, *(one.help for one in EVERY[path].params)]).replace(
        "\\[", "["
    )
    shown = re.sub(r"[\s│]+", "", sdist("help", "--all", *path.split()).expect(0).out)
    for word in set(re.findall(r"\[[^\]]+\]", written)):
        assert shown.count(re.sub(r"\s+", "", word)) >= written.count(word), word
    assert path != "deploy" or written.count("[deploy]") == 2


def test_brackets_that_rich_takes_for_markup_are_escaped() -> None:
    assert escape_markup("[deploy] [deploy:NAME] [1] [A] [/x] [link=y] [") == (
        "\\[deploy] \\[deploy:NAME] [1] [A] \\[/x] \\[link=y] ["
    )


def test_the_pages_of_the_manual_are_those_of_the_code_and_their_links_lead_somewhere() -> None:
    folder = ROOT / "docs" / "reference" / "commands"
    texts = pages(read_notes(folder))
    written = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")}
    assert sorted(written) == sorted(texts)
    assert [name for name in texts if written[name] != texts[name]] == [], (
        "make manual writes them anew"
    )
    links = {target for text in texts.values() for target in re.findall(r"\]\(([^)]+)\)", text)}
    assert [
        target for target in links if not (folder / target.partition("#")[0]).resolve().exists()
    ] == []
    anchors = {f"{name}#{made[1:-1].replace(' ', '-')}" for name, text in texts.items()
               for made in re.findall(r"^#+ (`sdist [^`]+`)$", text, re.MULTILINE)}  # fmt: skip
    assert {target for target in links if "#" in target} <= anchors


def test_a_command_is_loaded_when_it_is_called_and_not_before(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def noted(name: str, **how: Any) -> Any:
        loaded.append(name)
        return load(name, **how)

    monkeypatch.setattr("scrapyd_dist.cli.commands.load", noted)
    sdist("--help").expect(0)
    sdist("--version").expect(0)
    assert loaded == []
    sdist("nodes", "--help").expect(0)
    assert loaded == ["nodes"]


def test_the_help_is_short_and_each_command_a_line_in_it(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    boxes = re.findall(r"^╭─ ([^─]+) ─+╮\n((?:│.*\n)+)", sdist("--help").out, re.MULTILINE)
    lines = [line for panel, text in boxes if panel != "Options" for line in text.splitlines()]
    assert [line.split()[1] for line in lines] == [*COMMANDS]
    assert len(lines) <= 26


@pytest.mark.parametrize("typed", ALIASES)
def test_another_name_of_a_command_is_understood_and_not_shown(sdist: Run, typed: str) -> None:
    words = ALIASES[typed].split()
    if words != ["--version"]:
        assert sdist(*typed.split(), "--help") == sdist(*words, "--help")
        assert words[-1] == "--node" or sdist(*typed.split(), "--help").expect(0).out
    assert typed not in EVERY


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("drain", "'nodes drain'?"),
        ("add", "'nodes add', 'frontier add' or 'strategy add'?"),
        ("crwl", "'crawl'"),
    ],
)
def test_a_name_that_is_none_is_answered_with_what_was_meant(
    sdist: Run, typed: str, near: str
) -> None:
    done = sdist(typed, "x").expect(2, f"There is no command {typed!r}. Did you mean {near}")
    assert (done.out, done.err.count("\n")) == ("", 1)


def test_a_group_alone_lists_and_takes_the_options_of_its_list(sdist: Run) -> None:
    for name in ("crawls", "jobs", "nodes", "frontier", "strategy"):
        assert sdist(name) == sdist(name, "list")
        assert sdist(name, "--no-such") == sdist(name, "list", "--no-such").expect(2)
    assert sdist("crawls", "--json").expect(0).json() == {"schema": 1, "crawls": []}
    assert "drain" in sdist("nodes", "--help").expect(0).out
    sdist("nodes", "--node", "x", "drain").expect(2, "drain")
    sdist("nodes", "drian").expect(2, "Did you mean 'nodes drain'?")


@pytest.mark.parametrize(
    "words", [["crawl"], ["throttle"], ["code"], ["code", "prune"], ["jobs", "cancel", "--on"]]
)
def test_a_command_without_a_word_that_it_needs_shows_its_help(
    sdist: Run, words: list[str]
) -> None:
    done = sdist(*words).expect(2)
    assert done.out == ""
    if "--on" not in words:
        assert "Usage: sdist" in done.err
        assert done.err.splitlines()[-1].startswith("sdist: Missing ")


@pytest.mark.parametrize("path", EVERY)
def test_the_help_of_a_command_is_one_screen_and_none_of_its_options_is_lost(
    sdist: Run, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = sdist(*path.split(), "--help").expect(0).out
    assert len(text.rstrip().splitlines()) <= 50
    whole = sdist("help", "--all", *path.split()).expect(0).out
    names = [name for param in EVERY[path].params for name in param.opts if name.startswith("--")]
    assert [name for name in names if f"{name} " not in whole] == []
    assert (f"options more: sdist {path} --help --all" in text) == (whole != text)
    assert sdist(*path.split(), "--help", "--all").out == whole


@pytest.mark.parametrize("path", EVERY)
def test_the_help_says_what_is_wanted_and_nothing_of_python(
    sdist: Run, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = sdist(*path.split(), "--help").expect(0).out
    whole = sdist(*path.split(), "--help", "--all").expect(0).out
    assert re.findall(r"<[a-z][\w|\[\]]*>|list\[|BOOLEAN", text + whole) == []
    for param in EVERY[path].params:
        wants = param.param_type_name == "argument" or not param.is_flag
        assert bool(param.metavar) == wants, param.name
    examples = " ".join(re.findall(r"^ *Example: (.*)$", EVERY[path].help, re.MULTILINE))
    used = set(re.findall(r"(?<=\s)--?[A-Za-z][\w-]*", examples))
    assert [option for option in sorted(used) if f"{option} " not in text] == []


def test_the_help_of_crawl_has_twelve_options_those_first_that_most_crawls_need(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    options = {}
    for path in ("crawl", "plan"):
        text = sdist(path, "--help").expect(0).out
        rows = re.findall(r"^│ (--[\w-]+)? +(-\w)? .*$", text, re.MULTILINE)
        options[path] = [row for row in rows if any(row)]
    assert len(options["crawl"]) == 12
    assert options["crawl"][:2] == [("--callback", ""), ("--overwrite-output", "-O")]
    assert options["plan"][:2] == options["crawl"][:2]
    assert options["crawl"][-2:] == [("--json", ""), ("--help", "-h")]


def test_help_is_a_word_too(sdist: Run) -> None:
    assert sdist("help", "nodes", "drain") == sdist("nodes", "drain", "--help")
    assert sdist("help", "cancel") == sdist("jobs", "cancel", "--help")
    assert sdist("help") == sdist("--help")
    done = sdist("help", "wtach").expect(2, "There is no command 'wtach'. Did you mean 'watch'?")
    assert (done.out, done.err.count("\n")) == ("", 1)
    assert sdist("-V") == sdist("--version") == sdist("version")


def test_what_is_written_by_hand_below_a_page_stays(tmp_path: Path) -> None:
    folder = tmp_path / "reference" / "commands"
    folder.mkdir(parents=True)
    (folder.parent / "settings.md").write_text("")
    frontera = tmp_path / "coming-from" / "frontera.md"
    frontera.parent.mkdir()
    frontera.write_text("")
    write(folder)
    plan = folder / "plan.md"
    generated = plan.read_text("utf-8")
    assert read_notes(folder) == dict.fromkeys(pages({}), "")

    texts = pages({"plan.md": "## Why\n\nBecause."})
    plan.write_text(texts["plan.md"])
    write(folder)
    assert plan.read_text("utf-8") == texts["plan.md"]
    assert texts["plan.md"].startswith(generated)
    assert texts["plan.md"].endswith("\n\n## Why\n\nBecause.\n")


def test_the_manual_has_each_option_below_the_panel_of_its_help(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = re.findall(r"^╭─ ([^─]+) ─+╮$", sdist("help", "--all", "crawl").out, re.MULTILINE)
    assert re.findall(r"^\*\*(.+)\*\*:$", page("crawl"), re.MULTILINE) == shown
    limits = page("crawl").partition("**Goals for the whole crawl**:")[2].partition("**")[0]
    names = re.findall(r"^\* `--max-(\w+) ", limits, re.MULTILINE)
    assert names == ["items", "time", "pages", "requests", "errors", "depth"]


def test_the_definitions_of_settings_are_those_of_the_registry() -> None:
    text = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    assert settings_page(text) == text, "make manual writes them anew"

    assert re.findall("^<!-- settings: (.+) -->$", text, re.MULTILINE) == list(GROUPS)
    assert re.findall("^### `(DISTRIBUTED_.+)`$", text, re.MULTILINE) == list(SETTINGS)


def test_the_names_of_related_systems_are_answered_as_by_the_commands() -> None:
    text = (ROOT / "docs" / "coming-from" / "frontera.md").read_text("utf-8")
    assert related_names_page(text) == text, "make manual writes them anew"
    assert re.findall("^<!-- names of (.+) -->$", text, re.MULTILINE) == list(SETTINGS_OF)


def test_the_page_of_what_changes_is_that_of_the_code() -> None:
    text = (ROOT / "docs" / "reference" / "what-changes.md").read_text("utf-8")
    assert differences_page() == text, "make manual writes it anew"


def test_the_schemas_of_documents_are_those_that_the_tests_hold_them_to() -> None:
    folder = ROOT / "docs" / "reference"
    text = (folder / "json.md").read_text("utf-8")
    assert json_page(text) == text, "make manual writes them anew"
    assert (folder / "schemas.json").read_text("utf-8") == schemas(), "make manual writes them anew"
    assert "$ref" in json.loads(schemas())["sdist crawls list"]["properties"]["crawls"]["items"]


def test_the_page_of_the_api_has_the_public_names_and_no_other() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    named = set(re.findall(r"^## `scrapyd_dist\.(\w+)`$", text, re.MULTILINE))
    assert named == {name for name in scrapyd_dist.__all__ if not name.startswith("_")}
