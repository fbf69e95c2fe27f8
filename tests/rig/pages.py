"""A page of the documentation, as its reader follows it: the files that it shows and the lines that it has typed."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .processes import end_all, private_environment

ROOT = Path(__file__).parents[2]
#: a block of code, with the path of a file where the text before it ends with one
_BLOCK = re.compile(r"(?:`([\w./-]+)`:\n\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page(name: str) -> Path:
    """A page by its name, such as `howto/login`."""
    return ROOT / "docs" / f"{name}.md"


def blocks(path: Path) -> dict[str, str]:
    """The files that a page shows: path -> text."""
    return {file: text for file, _, text in _BLOCK.findall(path.read_text("utf-8")) if file}


def followed(path: Path) -> str:
    """A shell script that does what the page says, in its order.

    Blocks of `sh` are typed. A block whose text before it ends with the name of a file in backquotes is written to
    that file, behind what the file has already.
    """
    lines = ["set -em"]  # with job control, as in a terminal
    for file, language, text in _BLOCK.findall(path.read_text("utf-8")):
        if file:
            lines.append(
                f"mkdir -p $(dirname {file})\ncat >> {file} <<'END OF FILE'\n{text}END OF FILE"
            )
        elif language == "sh":
            lines.append(f"set -x\n{text}{{ set +x; }} 2>/dev/null")
    return "\n".join(lines) + "\n"


def follow(
    path: Path, folder: Path, *, replaced: Mapping[str, str], env: Mapping[str, str] | None = None
) -> str:
    """Follow a page in a folder, with other addresses and numbers; returns what was typed and said.

    All that the page leaves running is ended. AssertionError when one of its lines fails.
    """
    script = followed(path)
    for theirs, ours in replaced.items():
        assert theirs in script, f"{path.name} does not have {theirs!r}"
        script = script.replace(theirs, ours)
    home = folder.parent / f"{folder.name}-home"
    home.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    (home / "page.sh").write_text(script, encoding="utf-8")
    output = home / "output.txt"
    here = private_environment(
        home, {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(env or {})}
    )
    try:
        with output.open("w") as said:
            done = subprocess.run(
                ["bash", home / "page.sh"], cwd=folder, env=here, stdin=subprocess.DEVNULL,
                stdout=said, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
    finally:
        end_all(home)
    text = output.read_text("utf-8", "replace")
    assert done.returncode == 0, text
    return text
