"""How far a roll-out is, what came of it in words, and its exit code; no node is asked."""

import json
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
from scrapyd_dist.cli.output import Output
from scrapyd_dist.deploy.rollout import BrokenEggError, NodeResult, RollOut, RollOutRequest, Step

from scrapyd_dist.errors import (
    AuthRefused,
    ConfigError,
    ConnectionRefused,
    DistError,
    NothingMatched,
)
from scrapyd_dist.nodes import Node

A, B, C = (
    Node.parse(f"{host}:6800", name=name)
    for host, name in (("a", "web-a"), ("b", "web-b"), ("c", "eu 1"))
)
Captured = pytest.CaptureFixture[str]
GOOD: dict[str, Any] = {"version": "v2", "default": "v2", "spiders": ("one",)}


def failed(node: Node, error: DistError) -> NodeResult:
    return NodeResult(node=node, error=error)


def test_without_a_terminal_the_bar_is_a_line_for_each_node_that_is_done(capsys: Captured) -> None:
    for shown in (False, True):
        with deploy.bar(2, shown=shown) as note:
            for step in (Step.ASKING, Step.UPLOADING, Step.RETRYING, Step.CHECKING, Step.UPLOADED):
                note(A, step)
            note(B, Step.FAILED)
            note(A, Step.UNDONE)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "1 of 2: web-a uploaded",
        "2 of 2: web-b failed",
        "web-a undone",
    ]
    assert said.out == ""


def test_on_a_terminal_it_is_drawn(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "on_terminal", lambda: True)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with deploy.bar(2, shown=True) as note:
        note(A, Step.UPLOADED)
        note(B, Step.UPLOADING)
    said = capsys.readouterr()
    assert "1/2" in said.err
    assert "web-b uploading" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([NodeResult(node=A, uploaded=True, **GOOD), NodeResult(node=B, **GOOD)], 0),
        ([NodeResult(node=A, **GOOD), failed(B, ConnectionRefused.at("b"))], 3),
        ([failed(A, ConnectionRefused.at("a")), failed(B, ConnectionRefused.at("b"))], 5),
        ([failed(A, AuthRefused.at("a"))], 6),
        ([failed(A, BrokenEggError(A, "broken"))], 1),
        ([NodeResult(node=A, undone=True), failed(B, BrokenEggError(B, "broken"))], 1),
        ([NodeResult(node=A, **GOOD), NodeResult(node=B, version="v2", planned=True)], 10),
        ([NodeResult(node=A, **GOOD), NodeResult(node=B, **{**GOOD, "spiders": ("two",)})], 3),
    ],
)
def test_exit_codes(entries: list[NodeResult], code: int) -> None:
    assert deploy.exit_code_of(RollOut(entries)) == code


def test_json(capsys: Captured) -> None:
    entries = (NodeResult(node=A, uploaded=True, **GOOD), failed(B, ConnectionRefused.at("b")))
    deploy.print_result(
        RollOut(entries), "shop", RollOutRequest(), Output(as_json=True), quiet=False
    )
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["project"], document["version"]) == (1, "shop", "v2")
    assert [(row["state"], row["spiders"]) for row in document["nodes"]] == [
        ("uploaded", 1),
        ("failed", None),
    ]


@pytest.mark.parametrize(
    ("entries", "quiet", "said"),
    [
        ([failed(one, BrokenEggError(one, "it is broken")) for one in (A, B)], False,
         "web-a, web-b: it is broken"),
        ([NodeResult(node=A, **{**GOOD, "default": "r9"})], False, "on web-a Scrapyd sorts r9 behind this version"),
        ([NodeResult(node=A, **GOOD), NodeResult(node=B, **{**GOOD, "spiders": ()})], True, "web-a: one; web-b: none"),
        ([NodeResult(node=A, uploaded=True, stays="job x uses it", **GOOD), failed(B, AuthRefused.at("b"))], True,
         "web-a was not undone: job x uses it."),
    ],
)  # fmt: skip
def test_what_has_to_be_known_is_said_once(
    capsys: Captured, entries: list[NodeResult], quiet: bool, said: str
) -> None:
    deploy.print_result(
        RollOut(entries), "shop", RollOutRequest(atomic=True), Output(), quiet=quiet
    )
    assert capsys.readouterr().err.count(said) == 1


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
