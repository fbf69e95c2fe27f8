"""What the documents tell to type is what the commands take."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli.commands import COMMANDS, load, walk

ROOT = Path(__file__).parents[2]


def typed_in(path: Path) -> list[str]:
    """The indented lines that begin with sdist, without what the shell does with them."""
    lines = re.findall(r"^    (sdist [^\n]*)$", path.read_text("utf-8"), re.MULTILINE)
    return [re.sub(r" (?:[|>;#]|&&) .*$", "", line) for line in lines]


EXAMPLES = [text for _, command in walk() for text in re.findall(r"^ *Example: (.*)$", command.help, re.MULTILINE)]
SHELL = [re.sub(r"(?<=\S) (?:[|>;#]|&&) .*$", "", example) for example in EXAMPLES if example.startswith("sdist ")]
DOCUMENTS = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("operating", "commands", "frontier", "throttle")),
]
LINES = sorted({*SHELL, *(line for path in DOCUMENTS for line in typed_in(path))})
#: usage, not something to type
PATTERNS = re.compile(r"\[OPTIONS\]|[A-Z]{4,}…")


@pytest.mark.parametrize("line", [line for line in LINES if not PATTERNS.search(line)])
def test_the_command_takes_it(line: str) -> None:
    words = shlex.split(line)[1:]
    if words in (["--help"], ["--version"]):
        return
    assert words[0] in COMMANDS, f"there is no command {words[0]}"
    command: Any = load(words[0])
    path, words = f"sdist {words[0]}", words[1:]
    while words and words[0] in getattr(command, "commands", {}):
        path, command = f"{path} {words[0]}", command.commands[words[0]]
        words = words[1:]
    command.make_context(path, words)
