"""Pure-Python requirements for the egg; rule: what is compiled, and what every node has, does not travel.

pip chooses and fetches them; only what it installed is read, by each distribution's own list of files.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REQUIREMENTS = "requirements.txt"
#: seconds for pip, which may have to fetch over a slow line
PIP_TIMEOUT = 600

_COMPILED = (".so", ".pyd", ".dylib", ".dll")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OTHER_FILE = re.compile(r"(-r|-c|--requirement|--constraint)[ =]*(\S+)")
#: of a distribution's metadata, what code may ask for at run time; the rest tells of the machine it was made on
_METADATA = {"METADATA", "entry_points.txt", "top_level.txt"}
#: what a node has, with all that these bring
_ON_EVERY_NODE = ("scrapy", "scrapyd", "scrapyd-dist", "setuptools", "pip")


def read_requirements(project_root: Path) -> dict[str, bytes]:
    """What requirements.txt names, as files for the egg: path -> content.

    Scrapy and what it brings are left out.

    Args:
        project_root: the folder that holds scrapy.cfg and requirements.txt.

    Raises:
        ConfigError: there is no such file, pip fails, or a requirement is compiled.
    """
    if not (project_root / REQUIREMENTS).is_file():
        raise ConfigError(
            f"--include-dependencies needs {project_root / REQUIREMENTS}, which is not there. Write the names of the "
            "requirements into it, one per line."
        )
    with tempfile.TemporaryDirectory(prefix="sdist-") as folder:
        known = _closure(_ON_EVERY_NODE)
        _install(project_root, Path(folder), known)
        wanted = [found for found in distributions(path=[folder]) if _normal(found.metadata["Name"]) not in known]
        _refuse_compiled(wanted)
        files = {name: content for found in wanted for name, content in _files(found, Path(folder))}
    return dict(sorted(files.items()))


def _install(project_root: Path, folder: Path, known: set[str]) -> None:
    text = _without(known, (project_root / REQUIREMENTS).read_text(encoding="utf-8", errors="replace"), project_root)
    options = ["--target", str(folder), "--no-compile", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--requirement", "/dev/stdin"]
    try:
        done = subprocess.run(
            command, cwd=project_root, capture_output=True, text=True, check=False, timeout=PIP_TIMEOUT,
            input=text,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ConfigError(f"pip did not end within {PIP_TIMEOUT} seconds; the egg was not built.") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        why = (lines or ["it gave no reason"])[-1].removeprefix("ERROR: ").rstrip(".")
        raise ConfigError(
            f"pip cannot install what {project_root / REQUIREMENTS} names: {why}. Correct that file, or deploy without "
            "--include-dependencies and install the requirements on the nodes."
        )


def _without(known: set[str], text: str, root: Path) -> str:
    """The requirements without those that need not be fetched, since every node has them."""
    kept = []
    for line in text.splitlines():
        name, other = _NAME.match(line.strip()), _OTHER_FILE.match(line.strip())
        if other is not None and "://" not in other[2]:
            # pip looks for it beside the list that names it, and this list has no folder.
            kept.append(f"{other[1]} {root / other[2]}")
        elif name is None or _normal(name[0]) not in known:
            kept.append(line)
    return "\n".join([*kept, ""])


def _refuse_compiled(found: Iterable[Distribution]) -> None:
    names = sorted(entry.metadata["Name"] for entry in found if _is_compiled(entry))
    if names:
        raise ConfigError(
            f"These requirements are compiled for one kind of machine and cannot travel in an egg: {', '.join(names)}. "
            f"Take them out of {REQUIREMENTS} and install them on each node: pip install {' '.join(names)}."
        )


def _is_compiled(found: Distribution) -> bool:
    wheel = found.read_text("WHEEL") or ""
    pure = "root-is-purelib: true" in wheel.lower()
    return not pure or any(name.endswith(_COMPILED) for name in _record(found))


def _files(found: Distribution, folder: Path) -> Iterator[tuple[str, bytes]]:
    for name in _record(found):
        top, _, rest = name.partition("/")
        if top.endswith(".dist-info") and rest not in _METADATA:
            continue
        # Scripts lie beside the packages; in an egg nobody would find them.
        if top in {"..", "bin"} or "__pycache__" in name or not (folder / name).is_file():
            continue
        yield name, (folder / name).read_bytes()


def _record(found: Distribution) -> list[str]:
    return [row[0] for row in csv.reader((found.read_text("RECORD") or "").splitlines()) if row]


def _closure(names: Iterable[str]) -> set[str]:
    """These distributions and all that they require, as far as this environment knows."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = _normal(queue.pop())
        if name in found:
            continue
        found.add(name)
        try:
            required = distribution(name).requires or ()
        except PackageNotFoundError:
            continue
        queue += [match[0] for text in required if "extra ==" not in text and (match := _NAME.match(text))]
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
