"""What is sent where: which nodes are meant, and which egg; no node is asked."""

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig.commands import Result
from scrapyd_dist.cli.context import Context
from scrapyd_dist.cli.nodes import deploy

from scrapyd_dist.errors import (
    ConfigError,
    ConnectionRefused,
    NothingMatched,
)
from scrapyd_dist.nodes import Node

A, B, C = (
    Node.parse(f"{host}:6800", name=name)
    for host, name in (("a", "web-a"), ("b", "web-b"), ("c", "eu 1"))
)
Captured = pytest.CaptureFixture[str]
GOOD: dict[str, Any] = {"version": "v2", "default": "v2", "spiders": ("one",)}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    targets = [*((node.name, node.url) for node in (A, B, C)), ("alias", A.url)]
    sections = [f"[deploy:{name}]\nurl = {url}\n" for name, url in targets]
    (tmp_path / "scrapy.cfg").write_text("".join(["[settings]\ndefault = x\n", *sections]), "utf-8")
    return Context(tmp_path)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (None, ["web-a", "web-b", "eu 1"]),
        (["web-?"], ["web-a", "web-b"]),
        (["eu 1"], ["eu 1"]),
        (["alias"], ["alias"]),
        (["web-b", "*a*"], ["web-a", "web-b"]),
    ],
)
def test_nodes_are_chosen_by_names_and_globs(
    context: Context, patterns: list[str] | None, names: list[str]
) -> None:
    assert [node.name for node in context.nodes(patterns)] == names


def test_what_is_remembered_of_a_node_is_so_under_each_of_its_names(context: Context) -> None:
    context.remember({"alias": {"draining": 5.0}})
    records = context.node_records([*context.nodes(), *context.nodes(["alias"])])
    drained = [name for name, record in records.items() if record.draining]
    context.close()
    assert drained == ["web-a", "alias"]


def test_a_name_that_means_no_node_is_told(context: Context) -> None:
    with pytest.raises(
        NothingMatched, match=r"'WEB-a'\. The targets are: web-a, web-b, 'eu 1', alias"
    ):
        context.nodes(["web-b", "WEB-a"])


def test_an_egg_is_built_and_only_written(sdist: Callable[..., Result], root: Path) -> None:
    (root / "shop").mkdir()
    (root / "shop/settings.py").touch()
    assert "Send it with" in sdist("deploy", "--build-egg", "x.egg").expect(0).err
    assert stat.S_IMODE((root / "x.egg").stat().st_mode) == 0o600
    assert "shop/settings.py" in zipfile.ZipFile(root / "x.egg").namelist()
    sdist("deploy", "--build-egg", "no/x.egg").expect(2, "cannot be written")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--build-egg x.egg --all", "--build-egg sends nothing"),
        ("--build-egg x.egg web", "--build-egg sends nothing"),
        ("--egg x.egg --only-missing", "sent as it is"),
        ("--egg x.egg --use-setup-py", "sent as it is"),
        ("--egg x.egg -p shop", "x.egg cannot be read"),
    ],
)
def test_eggs_of_files_are_for_themselves(
    sdist: Callable[..., Result], root: Path, words: str, said: str
) -> None:
    (root / "scrapy.cfg").write_text(
        "[settings]\ndefault = shop.settings\n[deploy:web]\nurl = http://127.0.0.1:1/\n"
    )
    sdist("deploy", *words.split()).expect(2, said)


TWO = """[settings]
default = one.settings
two = two.settings
[deploy:a]
url = http://n1/
project = one
[deploy:b]
url = http://n1/
project = two
[deploy:c]
url = http://n1/
project = one_too
"""


def grouped(
    root: Path, patterns: list[str] | None = None, **options: Any
) -> list[tuple[str, str, list[str]]]:
    found = deploy._by_project(Context(root), patterns, deploy.DeployOptions(**options))
    return [(one.project, one.settings_module, [node.name for node in one.nodes]) for one in found]


def test_a_target_is_url_and_project(tmp_path: Path) -> None:
    (tmp_path / "scrapy.cfg").write_text(TWO, "utf-8")
    one, two = ("one", "one.settings"), ("two", "two.settings")
    assert [node.name for node in Context(tmp_path).nodes()] == ["a"]
    # -p is the project everywhere, so each node gets it once.
    assert grouped(tmp_path, project="two") == [(*two, ["a"])]
    assert grouped(tmp_path, ["b"]) == [(*two, ["b"])]
    assert grouped(tmp_path) == [(*one, ["a", "c"]), (*two, ["b"])]
    assert grouped(tmp_path, ["a", "b"]) == [(*one, ["a"]), (*two, ["b"])]
    with pytest.raises(ConfigError, match=r"a: one\.settings; b: two\.settings.*--atomic"):
        grouped(tmp_path, ["a", "b"], atomic=True)
    with pytest.raises(ConfigError, match=r"an egg is one project's"):
        grouped(tmp_path, ["a", "b"], egg=Path("x.egg"))
    with pytest.raises(ConfigError, match="There are 3 targets"):
        deploy._usual(Context(tmp_path))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(None, None), ("any", "any"), ("shop*", "shop"), ("*", ConfigError), ("x*", NothingMatched)],
)
def test_a_pattern_means_one_project(
    context: Context, monkeypatch: pytest.MonkeyPatch, pattern: str | None, expected: Any
) -> None:
    projects = {"web-a": ("shop",), "web-b": ("shop", "news")}

    def send(node: Node, *_: object, **__: object) -> tuple[str, ...]:
        if node.name not in projects:
            raise ConnectionRefused.at("c")
        return projects[node.name]

    monkeypatch.setattr(context, "sender", SimpleNamespace(send=send))
    if isinstance(expected, type):
        with pytest.raises(
            expected,
            match="news, shop" if expected is ConfigError else "sdist code versions --projects",
        ):
            context.one_project(pattern, (A, B, C))
    else:
        assert context.one_project(pattern, (A, B, C)) == expected
