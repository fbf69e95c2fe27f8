"""The packages that pyproject.toml names are the folders that are there, a built wheel has every file of them, and each
lower bound there is the version that `make lowest` installs."""

import ast
import configparser
import importlib.metadata
import io
import re
import shutil
import subprocess
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import scrapyd_dist

ROOT = Path(__file__).resolve().parents[2]
#: folder at the top of the repository -> package that it installs as
MAPPED = {
    "scrapyd_dist": "scrapyd_dist",
    **{name: f"scrapyd_dist.{name}" for name in ("cli", "middlewares", "deploy", "examples")},
}


def declared(key: str) -> list[str]:
    """The strings of a list or a table in pyproject.toml; tomllib came with Python 3.11."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    section, name = key.rsplit(".", 1)
    body = text.partition(f"[{section}]\n")[2].partition("\n[")[0]
    return re.findall(r'"([^"]+)"', body.partition(f"{name} = [")[2].partition("]")[0])


def test_every_folder_with_modules_has_an_init_and_is_a_declared_package() -> None:
    found = set()
    for top, package in MAPPED.items():
        for module in (ROOT / top).rglob("*.py"):
            assert (module.parent / "__init__.py").exists(), module
            found.add(".".join([package, *module.parent.relative_to(ROOT / top).parts]))
    # Named for its files only: the demo project is copied, and never imported from there.
    found.add("scrapyd_dist.examples.properties_project")
    assert sorted(declared("tool.setuptools.packages")) == sorted(found)


def imported() -> dict[str, set[str]]:
    """What the code imports from outside of it, lazily or for its types, too: top-level name -> the files that do."""
    found: dict[str, set[str]] = defaultdict(set)
    for top in ("scrapyd_dist", "cli", "middlewares", "deploy"):
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    names = (
                        [node.module or ""]
                        if isinstance(node, ast.ImportFrom) and not node.level
                        else []
                    )
                for name in names:
                    found[name.partition(".")[0]].add(str(path.relative_to(ROOT)))
    return {
        name: files
        for name, files in found.items()
        if name not in {*sys.stdlib_module_names, "scrapyd_dist"}
    }


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    always = {
        canonicalize_name(Requirement(text).name) for text in declared("project.dependencies")
    }
    extras = {
        canonicalize_name(Requirement(text).name)
        for extra in ("local", "redis", "web", "deliver")
        for text in declared(f"project.optional-dependencies.{extra}")
    }
    brought_by = importlib.metadata.packages_distributions()
    found = imported()
    used = {name: {canonicalize_name(dist) for dist in brought_by[name]} for name in found}
    assert {
        name: files for name, files in found.items() if not used[name] & (always | extras)
    } == {}
    assert always <= set().union(*used.values())


#: what builds, checks or is compared with, and is promised to no user
TOOLS = {
    "scrapy-redis", "setuptools", "ruff", "mypy", "pytest", "pytest-timeout", "pytest-twisted", "pytest-xdist",
    "hypothesis", "pydantic", "pyftpdlib", "check-jsonschema", "uv", "twine", "sphinx", "myst-parser", "furo",
}  # fmt: skip
BOUNDS = sorted(
    set(re.findall(r'"([a-z-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8")))
)


@pytest.mark.parametrize(
    ("name", "bound"), [(name, bound) for name, bound in BOUNDS if name not in TOOLS]
)
def test_the_lowest_version_is_the_one_that_is_tested(name: str, bound: str) -> None:
    pins = dict(
        re.findall(
            r"^([a-z-]+)==([\d.]+)", (ROOT / "tests/lowest.txt").read_text("utf-8"), re.MULTILINE
        )
    )
    assert name in pins, f"add {name}=={bound} to tests/lowest.txt"
    assert f"{pins[name]}.".startswith(f"{bound}."), f"pyproject.toml promises {name} {bound}"


def test_the_bounds_are_found() -> None:
    assert {"scrapy", "treq", "scrapyd", "rich"} <= dict(BOUNDS).keys()


def test_warnings_are_left_to_the_users_project() -> None:
    code = [path for top in MAPPED for path in (ROOT / top).rglob("*.py")]
    assert [path for path in code if "disable_warnings" in path.read_text("utf-8")] == []


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of a copy of this tree: setuptools leaves a build folder where it works."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for top in MAPPED:
        shutil.copytree(ROOT / top, tree / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    line = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(out),
        str(tree),
    ]
    if int(importlib.metadata.version("setuptools").split(".")[0]) >= 77:
        line.insert(4, "--no-build-isolation")
    subprocess.run(line, check=True, timeout=200)
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(io.BytesIO(path.read_bytes()))


@pytest.mark.parametrize("top", MAPPED)
def test_the_wheel_has_every_file_of_every_package(wheel: zipfile.ZipFile, top: str) -> None:
    base = Path(*MAPPED[top].split("."))
    expected = {
        str(base / path.relative_to(ROOT / top)): path.read_bytes()
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert len(expected) > 3
    assert expected.keys() - set(wheel.namelist()) == set()
    assert all(wheel.read(name) == content for name, content in expected.items())


def test_the_wheel_has_the_data_that_code_reads(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    store = ROOT / "scrapyd_dist" / "store"
    read = {
        path.relative_to(ROOT).as_posix()
        for kind in ("*.sql", "*.lua")
        for path in store.rglob(kind)
    }
    assert (
        {"scrapyd_dist/store/sqlite/schema/1.sql", "scrapyd_dist/store/redis/script/1_step.lua"}
        <= read
        <= names
    )
    assert "scrapyd_dist/py.typed" in names
    assert "scrapyd_dist/examples/properties_project/scrapy.cfg" in names


def test_nothing_but_scrapyd_dist_of_its_version_reaches_anyones_site_packages(
    wheel: zipfile.ZipFile,
) -> None:
    (info,) = {name.split("/")[0] for name in wheel.namelist()} - {"scrapyd_dist"}
    assert info == f"scrapyd_dist-{scrapyd_dist.__version__}.dist-info"
    assert wheel.read(f"{info}/top_level.txt").decode().split() == ["scrapyd_dist"]


def test_the_command_is_there_and_scrapys_own_commands_are_left_alone(
    wheel: zipfile.ZipFile,
) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(wheel.read(name).decode())
    # An entry point of scrapy.commands would be imported by every job of every project on a node.
    assert {section: dict(points[section]) for section in points.sections()} == {
        "console_scripts": dict.fromkeys(("sdist", "scrapyd-dist"), "scrapyd_dist.cli.main:main")
    }
