"""Reads the packages that travel in the egg: pure-Python requirements, and the client of the store.

pip chooses and fetches the requirements; what it installed is read by each distribution's own list
of files. Compiled packages, and those that every node has, do not travel. An egg comes last on
Python's path, so a client installed on the node is preferred.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import NormalizedName, canonicalize_name

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.python_process import command_of_module
from scrapyd_dist.store.engines import find_engine

from .egg import package_files

REQUIREMENTS = "requirements.txt"
#: timeout of pip in seconds
PIP_TIMEOUT = 600
_COMPILED = (".so", ".pyd", ".dylib", ".dll")
_COMMENT = re.compile(r"(^|\s)#.*")
_OTHER_FILE = re.compile(r"(-r|-c|--requirement|--constraint)[ =]*(\S+)")
#: of a distribution's metadata, what code may ask for at run time; the rest is about the machine
#: that it was made on
_METADATA = {"METADATA", "entry_points.txt", "top_level.txt"}
#: what a node has, with all that these bring
_ON_EVERY_NODE = ("scrapy", "scrapyd", "scrapyd-dist", "setuptools", "pip")


def store_client(where: str) -> dict[str, bytes]:
    """Return the installed client of the store at this address: path inside the egg -> content.

    Its licence is with it. There is nothing where the engine needs no client. Raises ConfigError if
    the client is not installed here.
    """
    engine = find_engine(where)
    if engine is None or engine.client is None:
        return {}
    client = engine.client
    if find_spec(client.name) is None:
        raise ConfigError(
            f"The workers of a crawl whose store is {engine.title} need the package {client.name}, "
            f"and it is not installed here: pip install 'scrapyd-dist[{client.extra}]'."
        )
    found = dict(package_files(files(client.name), client.name, (".py",)))
    found |= client.stand_ins
    with suppress(PackageNotFoundError):
        for path in distribution(client.name).files or ():
            if path.name.upper().startswith("LICEN"):
                found[f"{client.name}/{path.name}"] = path.read_binary()
    return found


def read_requirements(project_root: Path) -> dict[str, bytes]:
    """Return what requirements.txt beside scrapy.cfg names, as files for the egg: path -> content.

    Scrapy and what it brings are left out. Raises ConfigError if there is no such file, pip fails,
    or a requirement is compiled.
    """
    if not (project_root / REQUIREMENTS).is_file():
        raise ConfigError(
            f"--include-dependencies needs {project_root / REQUIREMENTS}, which is not there. "
            "Write the names of the requirements into it, one per line."
        )
    with tempfile.TemporaryDirectory(prefix="sdist-") as folder:
        known = _closure(_ON_EVERY_NODE)
        _install(project_root, Path(folder), known)
        installed = distributions(path=[folder])
        wanted = [found for found in installed if _normal_name(found) not in known]
        _check_pure(wanted)
        pairs: list[tuple[str, bytes]] = []
        for found in wanted:
            pairs.extend(_files(found))
        return dict(sorted(pairs))


def _normal_name(found: Distribution) -> str:
    return canonicalize_name(found.metadata["Name"])


def _check_pure(wanted: Iterable[Distribution]) -> None:
    """Raise ConfigError if one of these distributions is compiled."""
    compiled = sorted(found.metadata["Name"] for found in wanted if _is_compiled(found))
    if compiled:
        raise ConfigError(
            "These requirements are compiled for one kind of machine and cannot travel in an egg: "
            f"{', '.join(compiled)}. Take them out of {REQUIREMENTS} and install them on each "
            f"node: pip install {' '.join(compiled)}."
        )


def _install(project_root: Path, folder: Path, known: set[str]) -> None:
    """Let pip install the project's requirements into this folder, except the `known` ones."""
    text = (project_root / REQUIREMENTS).read_text(encoding="utf-8", errors="replace")
    options = ["--no-compile", "--no-input", "--disable-pip-version-check", "--quiet"]
    target = ["--target", str(folder)]
    source = ["--requirement", "/dev/stdin"]
    command = command_of_module("pip", "install", *target, *options, *source)
    try:
        done = subprocess.run(
            command,
            cwd=project_root,
            capture_output=True,
            text=True,
            check=False,
            timeout=PIP_TIMEOUT,
            input=_without(known, text, project_root),
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"pip did not end within {PIP_TIMEOUT} seconds; the egg was not built."
        ) from None
    if done.returncode != 0:
        raise ConfigError(
            f"pip cannot install what {project_root / REQUIREMENTS} names: "
            f"{_reason_in(done.stderr)}. Correct that file, or deploy without "
            "--include-dependencies and install the requirements on the nodes."
        )


def _reason_in(stderr: str) -> str:
    """Return pip's last error message, else its last line, without the full stop."""
    reason = "it gave no reason"
    lines = stderr.splitlines()
    if lines:
        reason = lines[-1]
    for line in lines:
        if line.startswith("ERROR:"):
            reason = line
    return reason.removeprefix("ERROR: ").rstrip(".")


def _without(known: set[str], text: str, root: Path) -> str:
    """Return the lines of the requirements.txt in a folder that pip has to see.

    `known` are the distributions that every node has.
    """
    kept = []
    for line in text.replace("\\\n", "").splitlines():
        other = _OTHER_FILE.match(line.strip())
        if other is not None and "://" not in other[2]:
            # pip looks for it beside the list that names it, and this list has no folder.
            kept.append(f"{other[1]} {root / other[2]}")
        elif _name_in(line) not in known:
            kept.append(line)
    return "\n".join([*kept, ""])


def _name_in(line: str) -> str | None:
    """Return the distribution that a line names; None for options, paths and empty lines."""
    try:
        found = Requirement(_COMMENT.sub("", line).partition(" --")[0].strip())
    except InvalidRequirement:
        return None
    return canonicalize_name(found.name)


def _is_compiled(found: Distribution) -> bool:
    wheel = found.read_text("WHEEL") or ""
    if "root-is-purelib: true" not in wheel.lower():
        return True
    return any(path.name.endswith(_COMPILED) for path in found.files or ())


def _files(found: Distribution) -> Iterator[tuple[str, bytes]]:
    """Generate the files of a distribution that travel: path inside the egg, content."""
    for path in found.files or ():
        name = path.as_posix()
        top, _, rest = name.partition("/")
        if top.endswith(".dist-info") and rest not in _METADATA:
            continue
        # Scripts lie beside the packages; an egg has no place for them.
        if top not in {"..", "bin"} and "__pycache__" not in name and Path(path.locate()).is_file():
            yield name, path.read_binary()


def _closure(names: Iterable[str]) -> set[str]:
    """Return the names of these distributions and of all that they require here.

    What this environment does not know is left out.
    """
    closure: set[str] = set()
    seen: set[tuple[str, str]] = set()
    queue = [(canonicalize_name(name), "") for name in names]
    while queue:
        name, extra = queue.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            closure.add(name)
            queue.extend(_required_by(name, extra))
    return closure


def _required_by(name: str, extra: str) -> Iterator[tuple[NormalizedName, str]]:
    """Generate what an installed distribution requires: name and extra, which may be empty."""
    try:
        texts = distribution(name).requires or ()
    except PackageNotFoundError:
        return
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for wanted in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), wanted
