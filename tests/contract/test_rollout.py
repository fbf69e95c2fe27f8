"""Rolling an egg out over real Scrapyd nodes, some of which refuse, hang or have it already."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rig.nodes import ScrapydNode
from rig.projects import Project
from scrapyd_dist.deploy.egg import Egg, build
from scrapyd_dist.deploy.kept_eggs import find_egg
from scrapyd_dist.deploy.node_upload import BrokenEggError, Step
from scrapyd_dist.deploy.rollout import RollOut, ensure

from scrapyd_dist.errors import AuthRefused, ConfigError, ConnectionRefused, NoReply, NothingMatched
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.versions import version_name
from scrapyd_dist.transports.requests import RequestsTransport

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
SPIDER = "import scrapy\nclass One(scrapy.Spider):\n    name = 'one'\n"


def node_of(real: ScrapydNode, **more: Any) -> Node:
    return Node.parse(real.url, name=real.name, username=real.username or None, password=real.password or None, **more)


@pytest.fixture(scope="module")
def pair(module_fleet: Callable[..., list[ScrapydNode]]) -> list[ScrapydNode]:
    return module_fleet(2, username="u", password="p")


@pytest.fixture
def clean(pair: list[ScrapydNode]) -> Iterator[list[ScrapydNode]]:
    """The two nodes without any project."""
    yield pair
    for node in pair:
        for project in node.api("listprojects.json")["projects"]:
            node.api("delproject.json", project=project)


@pytest.fixture
def make_egg(project: Callable[..., Project]) -> Callable[..., Egg]:
    def make(spider: str = SPIDER) -> Egg:
        return build(project(spiders={"one": spider}).path, "small.settings")

    return make


@pytest.fixture
def deaf() -> Iterator[Node]:
    """Takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield Node.parse(f"127.0.0.1:{server.getsockname()[1]}", name="deaf")


def gone() -> Node:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Node.parse(f"127.0.0.1:{probe.getsockname()[1]}", name="gone")


def versions(real: ScrapydNode, project: str = "p") -> list[str]:
    found: list[str] = real.api("listversions.json", project=project)["versions"]
    return found


def uploaded(result: RollOut) -> list[bool]:
    return [node.uploaded for node in result.results]


def test_missing_then_present(clean: list[ScrapydNode], make_egg: Callable[..., Egg], tmp_path: Path) -> None:
    egg, nodes = make_egg(), [node_of(real) for real in clean]
    steps: list[tuple[str, Step]] = []

    def note(node: Node, step: Step) -> None:
        steps.append((node.name, step))

    first = ensure(
        nodes,
        "p",
        egg,
        spider="one",
        now=NOON,
        state=tmp_path,
        progress=note,
    )
    name = version_name(egg.content_hash, NOON)
    assert first.version == name
    assert uploaded(first) == [True, True]
    assert all(node.spiders == ("one",) and node.same_code for node in first.ready)
    assert versions(clean[0]) == versions(clean[1]) == [name]
    for real in clean:
        seen = [step for node, step in steps if node == real.name]
        assert seen == [Step.ASKING, Step.UPLOADING, Step.CHECKING, Step.UPLOADED]

    again = ensure(nodes, "p", egg, spider="one", now=NOON + timedelta(days=1), dirty=True)
    assert again.version == name
    assert uploaded(again) == [False, False]

    # One node lost it, and its name is known from the other one, or from the kept egg alone.
    clean[0].api("delproject.json", project="p")
    third = ensure(nodes, "p", egg, now=NOON + timedelta(days=1))
    assert (third.version, uploaded(third)) == (name, [True, False])
    clean[0].api("delproject.json", project="p")
    fourth = ensure(nodes[:1], "p", egg, now=NOON + timedelta(days=1), state=tmp_path)
    assert (fourth.version, uploaded(fourth)) == (name, [True])
    saved = find_egg(tmp_path, "p", egg.content_hash)
    assert saved
    assert saved.path.read_bytes() == egg.data


def test_changed_code_gets_a_name_of_its_own(clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
    nodes = [node_of(clean[0])]
    old = ensure(nodes, "p", make_egg(), now=NOON)
    new = ensure(nodes, "p", make_egg(SPIDER.replace("one", "two")), now=NOON + timedelta(seconds=1), dirty=True)
    assert versions(clean[0]) == [old.version, new.version]
    assert new.version is not None
    assert new.version.endswith("-dev")
    assert new.results[0].spiders == ("two",)


def test_a_nodes_own_project_name(clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
    result = ensure([node_of(clean[0], project="own"), node_of(clean[1])], "p", make_egg(), now=NOON)
    assert versions(clean[0], "own") == versions(clean[1], "p") == [result.version]


def test_two_names_of_one_content_become_one(clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
    egg, nodes = make_egg(), [node_of(real) for real in clean]
    ensure(nodes[:1], "p", egg, now=NOON)
    ensure(nodes[1:], "p", egg, now=NOON + timedelta(hours=1))
    both = ensure(nodes, "p", egg, now=NOON + timedelta(hours=2))
    assert both.version == version_name(egg.content_hash, NOON + timedelta(hours=1))
    assert uploaded(both) == [True, False]


def test_a_failing_node_stops_no_other(clean: list[ScrapydNode], make_egg: Callable[..., Egg], deaf: Node) -> None:
    wrong = Node.parse(clean[1].url, name="wrong", username="u", password="nonsense-secret")
    nodes = [gone(), deaf, wrong, node_of(clean[0])]
    result = ensure(nodes, "p", make_egg(), now=NOON, timeout=2)
    kinds = [type(node.error) for node in result.results]
    assert kinds == [ConnectionRefused, NoReply, AuthRefused, type(None)]
    assert result.version == versions(clean[0])[-1]
    assert [node.node.name for node in result.failed] == ["gone", "deaf", "wrong"]
    assert "nonsense-secret" not in repr(result) + "".join(result.failures)


@pytest.mark.parametrize(
    ("spider", "words"),
    [
        ("import no_such_library\n", "No module named 'no_such_library'). Install"),
        ("def broken(:\n", "SyntaxError"),
        ("raise ModuleNotFoundError(\"No module named 'pkg_resources'\")\n", "setuptools<81"),
    ],
)
def test_a_broken_egg_is_removed_and_told_once(
    clean: list[ScrapydNode], make_egg: Callable[..., Egg], spider: str, words: str
) -> None:
    nodes = [node_of(real) for real in clean]
    good = ensure(nodes, "p", make_egg(), now=NOON)
    bad = ensure(nodes, "p", make_egg(spider), now=NOON + timedelta(hours=1))
    assert bad.version is None
    assert {type(node.error) for node in bad.results} == {BrokenEggError}
    assert versions(clean[0]) == versions(clean[1]) == [good.version]
    ((reason, names),) = bad.failures.items()
    assert words in reason
    assert names == tuple(node.name for node in nodes)
    assert "Traceback" not in reason
    assert "was removed" in str(bad.results[0].error)


def test_a_missing_spider(clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
    result = ensure([node_of(real) for real in clean], "p", make_egg(), spider="none", now=NOON)
    ((reason, names),) = result.failures.items()
    assert "no spider 'none'. It has: one." in reason
    assert len(names) == 2
    assert isinstance(result.results[0].error, NothingMatched)


class LosesTheReply(RequestsTransport):
    """Sends each upload, and then says that no reply came."""

    def send(self, node: Node, call: Any, *, timeout: float | None = None) -> Any:
        answer = super().send(node, call, timeout=timeout)
        if call.path == "addversion.json":
            raise NoReply.at(str(node))
        return answer


def test_an_upload_whose_reply_was_lost_counts(clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
    with closing(LosesTheReply()) as transport:
        result = ensure([node_of(clean[0])], "p", make_egg(), spider="one", now=NOON, transport=transport)
        assert result.version == versions(clean[0])[-1]
        # What the node cannot import is found out all the same, and removed.
        bad = ensure([node_of(clean[1])], "p", make_egg("import nothing_like_it\n"), now=NOON, transport=transport)
    assert isinstance(bad.results[0].error, BrokenEggError)
    assert versions(clean[1]) == []


class TestNever:
    def test_takes_our_content_else_the_default(self, clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
        egg, other, nodes = make_egg(), make_egg(SPIDER.replace("one", "two")), [node_of(real) for real in clean]
        ours = ensure(nodes[:1], "p", egg, now=NOON).version
        newer = ensure(nodes, "p", other, now=NOON + timedelta(hours=1)).version
        result = ensure(nodes, "p", egg, mode="never", now=NOON)
        assert [node.version for node in result.results] == [ours, newer]
        assert [node.same_code for node in result.results] == [True, False]
        assert result.version is None
        assert uploaded(result) == [False, False]
        assert ensure(nodes, "p", None, mode="never").version == newer

    def test_none_there(self, clean: list[ScrapydNode], make_egg: Callable[..., Egg]) -> None:
        result = ensure([node_of(clean[0])], "p", make_egg(), mode="never")
        assert isinstance(result.results[0].error, NothingMatched)
        assert clean[0].api("listprojects.json")["projects"] == []


def test_refused_before_anything_is_asked(make_egg: Callable[..., Egg]) -> None:
    with pytest.raises(ConfigError):
        ensure([], "p", make_egg())
    with pytest.raises(ConfigError):
        ensure([gone()], "p", None)
