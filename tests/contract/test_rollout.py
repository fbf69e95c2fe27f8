"""Eggs on real Scrapyd nodes: rolled out, though some refuse, hang or have it; jobs import the egg's copy of us."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rig.fixtures import MakeProject, StartFleet
from rig.manynodes import refusing
from rig.nodes import ScrapydNode
from rig.projects import Project
from rig.waiting import wait_for
from scrapyd_dist.deploy import node_versions
from scrapyd_dist.deploy.egg import Egg, build
from scrapyd_dist.deploy.kept_eggs import find_egg, kept_eggs
from scrapyd_dist.deploy.rollout import BrokenEggError, RollOut, RollOutRequest, Step, ensure

import scrapyd_dist
from scrapyd_dist.errors import (
    AuthRefused,
    ConfigError,
    ConnectionLost,
    ConnectionRefused,
    NodeError,
    NoReply,
    NothingMatched,
)
from scrapyd_dist.keys import EGG_FILE
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.versions import version_name
from scrapyd_dist.transports.requests import RequestsTransport

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
SPIDER = "import scrapy\nclass One(scrapy.Spider):\n    name = 'one'\n"
#: runs until it is told to stop
LONG = (
    "import scrapy\nclass Long(scrapy.Spider):\n    name = 'long'\n"
    "    async def start(self):\n        import asyncio\n        await asyncio.sleep(600)\n        yield {}\n"
)
#: an interpreter with the lowest Scrapy and Scrapyd that are supported; without it there is no such row
LOW = "SDIST_LOW_PYTHON"
#: stands before the JSON in a log
FACTS = "FACTS: "
#: A spider without requests that logs where things came from.
FACTS_SPIDER = f"""
import importlib.resources, json, pkgutil, sys
from pathlib import Path
import scrapy

class Facts(scrapy.Spider):
    name = "facts"

    async def start(self):
        import scrapyd_dist, scrapyd_dist.payload
        settings = self.crawler.settings
        facts = {{
            "version": scrapyd_dist.__version__,
            "files": [sys.modules["scrapyd_dist" + name].__file__ for name in ("", ".payload", ".middlewares")],
            "key": importlib.resources.files("scrapyd_dist").joinpath({EGG_FILE!r}).read_text(),
            "settings_module": settings["SETTINGS_MODULE"],
            "word": settings["WORD"],
            "resource": importlib.resources.files("facts").joinpath("data/words.txt").read_text(),
            "pkgutil": pkgutil.get_data("facts", "data/words.txt").decode(),
            "beside": open(Path(__file__).parents[1] / "data/words.txt").read(),
            "addons": [type(addon).__module__ for addon in self.crawler.addons.addons],
        }}
        self.logger.info({FACTS!r} + json.dumps(facts))
        return
        yield
"""
Pair = list[ScrapydNode]
MakeEgg = Callable[..., Egg]


def node_of(real: ScrapydNode, **more: Any) -> Node:
    return Node.parse(
        real.url,
        name=real.name,
        username=real.username or None,
        password=real.password or None,
        **more,
    )


@pytest.fixture(scope="module")
def pair(module_fleet: StartFleet) -> Pair:
    return module_fleet(2, username="u", password="p")


@pytest.fixture
def clean(pair: Pair) -> Iterator[Pair]:
    """The two nodes without any project or job."""
    yield pair
    for node in pair:
        node.clear()


@pytest.fixture
def make_egg(project: MakeProject) -> MakeEgg:
    def make(spider: str = SPIDER) -> Egg:
        return build(project(spiders={"one": spider}).path, "small.settings")

    return make


@pytest.fixture
def deaf() -> Iterator[Node]:
    """Takes connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield Node.parse(f"127.0.0.1:{server.getsockname()[1]}", name="deaf")


def uploaded(result: RollOut) -> list[bool]:
    return [node.uploaded for node in result.results]


def test_missing_then_present(clean: Pair, make_egg: MakeEgg, tmp_path: Path) -> None:
    egg, nodes = make_egg(), [node_of(real) for real in clean]
    steps: dict[str, list[Step]] = {node.name: [] for node in nodes}

    def note(node: Node, step: Step) -> None:
        steps[node.name].append(step)

    first = ensure(
        nodes, "p", egg, RollOutRequest(spider="one"), now=NOON, state=tmp_path, progress=note
    )
    name = version_name(egg.content_hash, NOON)
    assert (first.version, uploaded(first)) == (name, [True, True])
    assert all(node.spiders == ("one",) and node.same_code for node in first.ready)
    assert clean[0].versions("p") == clean[1].versions("p") == [name]
    assert list(steps.values()) == [[Step.ASKING, Step.UPLOADING, Step.CHECKING, Step.UPLOADED]] * 2

    again = ensure(
        nodes,
        "p",
        egg,
        RollOutRequest(spider="one", is_dirty=lambda: pytest.fail("no new name is needed")),
        now=NOON + timedelta(days=1),
    )
    assert (again.version, uploaded(again)) == (name, [False, False])

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


def test_changed_code_gets_a_name_of_its_own(clean: Pair, make_egg: MakeEgg) -> None:
    nodes = [node_of(clean[0])]
    old, changed = ensure(nodes, "p", make_egg(), now=NOON), make_egg(SPIDER.replace("one", "two"))
    new = ensure(
        nodes, "p", changed, RollOutRequest(is_dirty=lambda: True), now=NOON + timedelta(seconds=1)
    )
    assert clean[0].versions("p") == [old.version, new.version]
    assert str(new.version).endswith("-dev")
    assert new.results[0].spiders == ("two",)


def test_a_nodes_own_project_name(clean: Pair, make_egg: MakeEgg) -> None:
    result = ensure(
        [node_of(clean[0], project="own"), node_of(clean[1])], "p", make_egg(), now=NOON
    )
    assert clean[0].versions("own") == clean[1].versions("p") == [result.version]


@pytest.mark.black_box
def test_two_names_of_one_content_become_one(clean: Pair, make_egg: MakeEgg) -> None:
    egg, nodes = make_egg(), [node_of(real) for real in clean]
    ensure(nodes[:1], "p", egg, now=NOON)
    ensure(nodes[1:], "p", egg, now=NOON + timedelta(hours=1))
    both = ensure(nodes, "p", egg, now=NOON + timedelta(hours=2))
    assert (both.version, uploaded(both)) == (
        version_name(egg.content_hash, NOON + timedelta(hours=1)),
        [True, False],
    )


def test_a_failing_node_stops_no_other(clean: Pair, make_egg: MakeEgg, deaf: Node) -> None:
    wrong = Node.parse(clean[1].url, name="wrong", username="u", password="nonsense-secret")
    nodes = [refusing("gone"), deaf, wrong, node_of(clean[0])]
    result = ensure(nodes, "p", make_egg(), RollOutRequest(timeout=6), now=NOON)
    kinds = [type(node.error) for node in result.results]
    assert kinds == [ConnectionRefused, NoReply, AuthRefused, type(None)]
    assert result.version == clean[0].versions("p")[-1]
    assert [node.node.name for node in result.failed] == ["gone", "deaf", "wrong"]
    assert "nonsense-secret" not in repr(result) + "".join(result.failures)


def test_a_broken_egg_is_removed_and_told_once(clean: Pair, make_egg: MakeEgg) -> None:
    nodes = [node_of(real) for real in clean]
    good = ensure(nodes, "p", make_egg(), now=NOON)
    bad = ensure(nodes, "p", make_egg("import no_such_library\n"), now=NOON + timedelta(hours=1))
    assert bad.version is None
    assert {type(node.error) for node in bad.results} == {BrokenEggError}
    assert clean[0].versions("p") == clean[1].versions("p") == [good.version]
    ((reason, names),) = bad.failures.items()
    assert "No module named 'no_such_library'). Install" in reason
    assert names == tuple(node.name for node in nodes)
    assert "Traceback" not in reason
    assert "was removed" in str(bad.results[0].error)


def test_a_missing_spider(clean: Pair, make_egg: MakeEgg) -> None:
    result = ensure(
        [node_of(real) for real in clean], "p", make_egg(), RollOutRequest(spider="none"), now=NOON
    )
    ((reason, names),) = result.failures.items()
    assert "no spider 'none'. It has: one." in reason
    assert len(names) == 2
    assert isinstance(result.results[0].error, NothingMatched)


class Meanwhile(RequestsTransport):
    """Does something before or after each call of a page."""

    def __init__(
        self,
        page: str,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.page, self.before, self.after = page, before, after

    def send(self, node: Node, call: Any, *, timeout: float | None = None) -> Any:
        if call.path != self.page:
            return super().send(node, call, timeout=timeout)
        self.before()
        answer = super().send(node, call, timeout=timeout)
        self.after()
        return answer


def fails(error: type[NodeError], times: int = 99) -> Callable[[], None]:
    """Raises this error the first times."""
    left = iter(range(times))

    def fail() -> None:
        if next(left, None) is not None:
            raise error.at("the node")

    return fail


def test_an_upload_whose_reply_was_lost_counts(clean: Pair, make_egg: MakeEgg) -> None:
    transport = Meanwhile("addversion.json", after=fails(NoReply))
    result = ensure(
        [node_of(clean[0])],
        "p",
        make_egg(),
        RollOutRequest(spider="one"),
        now=NOON,
        transport=transport,
    )
    assert result.version == clean[0].versions("p")[-1]
    # What the node cannot import is found out all the same, and removed.
    bad = ensure(
        [node_of(clean[1])],
        "p",
        make_egg("import nothing_like_it\n"),
        now=NOON,
        transport=transport,
    )
    assert isinstance(bad.results[0].error, BrokenEggError)
    assert clean[1].versions("p") == []


class TestNever:
    def test_takes_our_content_else_the_default(self, clean: Pair, make_egg: MakeEgg) -> None:
        egg, other, nodes = (
            make_egg(),
            make_egg(SPIDER.replace("one", "two")),
            [node_of(real) for real in clean],
        )
        ours = ensure(nodes[:1], "p", egg, now=NOON).version
        newer = ensure(nodes, "p", other, now=NOON + timedelta(hours=1)).version
        result = ensure(nodes, "p", egg, RollOutRequest(upload=False), now=NOON)
        assert [node.version for node in result.results] == [ours, newer]
        assert [node.same_code for node in result.results] == [True, False]
        assert (result.version, uploaded(result)) == (None, [False, False])
        assert ensure(nodes, "p", None, RollOutRequest(upload=False)).version == newer

    def test_none_there(self, clean: Pair, make_egg: MakeEgg) -> None:
        result = ensure([node_of(clean[0])], "p", make_egg(), RollOutRequest(upload=False))
        assert isinstance(result.results[0].error, NothingMatched)
        assert clean[0].api("listprojects.json")["projects"] == []


def test_refused_before_anything_is_asked(make_egg: MakeEgg) -> None:
    with pytest.raises(ConfigError):
        ensure([], "p", make_egg())
    with pytest.raises(ConfigError):
        ensure([refusing("gone")], "p", None)


def start(real: ScrapydNode, version: str, job: str) -> None:
    real.api("schedule.json", project="p", spider="long", _version=version, jobid=job)
    wait_for(lambda: job in real.job_pids().values(), 30, f"the start of {job}")
    wait_for(
        lambda: [row["id"] for row in real.api("listjobs.json", project="p")["running"]] == [job],
        30,
        job,
    )


class TestNames:
    def test_a_given_name_is_sent_again_unless_only_the_missing_are_asked_for(
        self, clean: Pair, make_egg: MakeEgg, tmp_path: Path
    ) -> None:
        nodes, egg = [node_of(real) for real in clean], make_egg()
        wish = RollOutRequest(given=dict.fromkeys(("node1", "node2"), "1_9"))
        first = ensure(nodes, "p", egg, wish, state=tmp_path)
        assert (first.version, first.results[0].default) == ("1_9", "1_9")
        assert [egg.version for egg in kept_eggs(tmp_path, "p")] == ["1_9"]
        other = make_egg(SPIDER.replace("one", "two"))
        again = ensure(nodes, "p", other, wish)
        assert uploaded(again) == [True, True]
        assert again.results[0].spiders == ("two",)
        clean[1].api("delproject.json", project="p")
        third = ensure(nodes, "p", other, RollOutRequest(given=wish.given, only_missing=True))
        assert uploaded(third) == [False, True]

    def test_code_that_comes_back_after_a_given_name_gets_a_new_name(
        self, clean: Pair, make_egg: MakeEgg, tmp_path: Path
    ) -> None:
        nodes, egg = [node_of(clean[0])], make_egg()
        first = ensure(nodes, "p", egg, state=tmp_path, now=NOON)
        other = make_egg(SPIDER.replace("one", "two"))
        ensure(nodes, "p", other, RollOutRequest(given={"node1": "1_9"}), state=tmp_path)
        back = ensure(nodes, "p", egg, state=tmp_path)
        assert back.version != first.version
        assert back.results[0].default == back.version
        # The same code under a name of its own changes nothing.
        ensure(nodes, "p", egg, RollOutRequest(given={"node1": "1_9"}), state=tmp_path)
        assert ensure(nodes, "p", egg, state=tmp_path).version == back.version

    def test_a_label_is_part_of_a_name_that_is_found_again(
        self, clean: Pair, make_egg: MakeEgg
    ) -> None:
        nodes, egg = [node_of(clean[0])], make_egg()
        first = ensure(nodes, "p", egg, RollOutRequest(label="git-r2-main"), now=NOON)
        assert first.version == version_name(egg.content_hash, NOON, label="git-r2-main")
        assert ensure(nodes, "p", egg).version == first.version


class TestAllOrNone:
    def test_one_fails_and_none_keeps_what_it_did_not_have_before(
        self, clean: Pair, make_egg: MakeEgg
    ) -> None:
        steps: list[tuple[str, Step]] = []
        egg, nodes = make_egg(), [*(node_of(real) for real in clean), refusing("gone")]
        first = ensure(nodes[:1], "p", egg, now=NOON)
        earlier = ensure(nodes[1:2], "p", make_egg(LONG), now=NOON - timedelta(hours=1))
        wish = RollOutRequest(atomic=True)
        result = ensure(
            nodes, "p", egg, wish, progress=lambda node, step: steps.append((node.name, step))
        )
        assert [found.undone for found in result.results] == [False, True, False]
        assert [found.node.name for found in result.ready] == ["node1"]
        assert (clean[0].versions("p"), clean[1].versions("p")) == (
            [first.version],
            [earlier.version],
        )
        assert [name for name, step in steps if step is Step.UNDONE] == ["node2"]

    @pytest.mark.black_box
    def test_what_a_new_job_may_run_stays_and_the_job_is_named(
        self, clean: Pair, make_egg: MakeEgg, tmp_path: Path
    ) -> None:
        egg = make_egg(LONG)
        name = version_name(egg.content_hash, NOON)
        ensure(
            [node_of(clean[0])], "p", make_egg(LONG + "\n# older\n"), now=NOON - timedelta(hours=1)
        )
        start(clean[0], clean[0].versions("p")[0], "before")
        begun, lock = threading.Event(), threading.Lock()

        def begin() -> None:
            # From another program, between the upload and the moment when another node is known to have failed.
            with lock:
                if begun.is_set() or name not in clean[0].versions("p"):
                    return
                begun.set()
                clean[0].api(
                    "schedule.json", project="p", spider="long", _version=name, jobid="meanwhile"
                )
                wait_for(lambda: "meanwhile" in clean[0].job_pids().values(), 30, "the other job")

        nodes = [*(node_of(real) for real in clean), refusing("gone")]
        transport = Meanwhile("listspiders.json", before=begin)
        result = ensure(
            nodes,
            "p",
            egg,
            RollOutRequest(atomic=True),
            now=NOON,
            state=tmp_path,
            transport=transport,
        )
        assert begun.is_set()
        assert result.results[0].stays.endswith("is in use there by meanwhile")
        assert [found.undone for found in result.results] == [False, True, False]
        assert (clean[0].versions("p")[-1], clean[1].versions("p")) == (name, [])
        assert [egg.version for egg in kept_eggs(tmp_path, "p")] == [name]


@pytest.mark.parametrize(
    "page",
    [
        "addversion.json",
        *(
            pytest.param(page, marks=pytest.mark.black_box)
            for page in ("listversions.json", "listspiders.json")
        ),
    ],
)
def test_what_passes_is_tried_again(
    clean: Pair, make_egg: MakeEgg, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrapyd_dist.deploy.rollout.BACKOFF", 0.01)
    steps: list[Step] = []
    transport = Meanwhile(page, before=fails(ConnectionLost, 2))
    result = ensure(
        [node_of(clean[0])], "p", make_egg(), RollOutRequest(retries=2), transport=transport,
        progress=lambda _node, step: steps.append(step),
    )  # fmt: skip
    assert result.failed == ()
    assert steps.count(Step.RETRYING) == 2


@pytest.mark.parametrize(
    ("retries", "pause", "timeout", "tries"), [(3, 0.01, 60, 3), (20, 0.5, 0.2, 0)]
)
def test_so_often_and_never_beyond_the_nodes_time(
    make_egg: MakeEgg,
    monkeypatch: pytest.MonkeyPatch,
    retries: int,
    pause: float,
    timeout: float,
    tries: int,
) -> None:
    monkeypatch.setattr("scrapyd_dist.deploy.rollout.BACKOFF", pause)
    steps: list[Step] = []
    wish = RollOutRequest(retries=retries, timeout=timeout)
    result = ensure(
        [refusing("gone")], "p", make_egg(), wish, progress=lambda _node, step: steps.append(step)
    )
    assert (len(result.failed), steps.count(Step.RETRYING)) == (1, tries)


def test_a_dry_run_asks_only(clean: Pair, make_egg: MakeEgg, tmp_path: Path) -> None:
    egg, nodes = make_egg(), [*(node_of(real) for real in clean), refusing("gone")]
    done = ensure(nodes[:1], "p", egg, now=NOON)
    result = ensure(nodes, "p", egg, RollOutRequest(dry_run=True), state=tmp_path)
    assert [found.planned for found in result.results] == [False, True, False]
    assert (result.version, len(result.failed)) == (done.version, 1)
    assert (clean[1].versions("p"), list(tmp_path.glob("eggs"))) == ([], [])


def test_spiders_of_a_version(clean: Pair, make_egg: MakeEgg) -> None:
    nodes = [node_of(real) for real in clean]
    for name, spider in (("1_0", SPIDER), ("2_0", SPIDER.replace("one", "two"))):
        ensure(nodes[:1], "p", make_egg(spider), RollOutRequest(given={"node1": name}))
    new, none = node_versions.spiders(nodes, "p")
    assert (new.version, new.spiders) == ("2_0", ("two",))
    assert "sdist deploy --all" in str(none.error)
    assert node_versions.spiders(nodes[:1], "p", version="1.0")[0].spiders == ("one",)
    assert "It has: 1_0, 2_0" in str(node_versions.spiders(nodes[:1], "p", version="3.0")[0].error)


@pytest.mark.black_box
def test_a_prune_leaves_what_a_job_began_to_need_meanwhile(clean: Pair, make_egg: MakeEgg) -> None:
    nodes = [node_of(real) for real in clean]
    for number in range(4):
        ensure(nodes, "p", make_egg(f"{LONG}# {number}\n"), now=NOON + timedelta(hours=number))
    names = clean[0].versions("p")
    plans = [
        node_versions.plan(seen, 1)
        for seen in node_versions.list_versions(nodes, "p", lambda _job: None)
    ]
    assert [plan.old for plan in plans] == [tuple(names[:3])] * 2
    start(clean[1], names[1], "c.b1.a1")
    done = node_versions.delete(plans, {"c.b1.a1": names[1]}.get)
    assert [plan.old for plan in done] == [tuple(names[:3]), (names[0], names[2])]
    assert (clean[0].versions("p"), clean[1].versions("p")) == (names[3:], [names[1], names[3]])


@pytest.fixture(scope="module")
def plain(module_fleet: StartFleet) -> ScrapydNode:
    return module_fleet(1)[0]


def check(node: ScrapydNode, made: Project, name: str) -> None:
    """Deploy the project under a name, run its spider, and check what the spider logged."""
    made.write("facts/data/words.txt", "a word\n")
    egg = build(made.path, "facts.settings", key=b"k")
    version = version_name(egg.content_hash, NOON, dirty=True)
    assert node.add_version(name, version, egg.data)["status"] == "ok"
    assert node.api("listversions.json", project=name)["versions"] == [version]
    assert node.api("listspiders.json", project=name, _version=version)["spiders"] == ["facts"]
    job = f"job-{name}"
    assert (
        node.api("schedule.json", project=name, spider="facts", jobid=job, _version=version)[
            "jobid"
        ]
        == job
    )
    wait_for(lambda: node.jobs("finished", name), 60, f"the end of {job}")
    log = node.job_log(job)
    lines = [line for line in log.splitlines() if FACTS in line]
    assert len(lines) == 1, log
    facts = json.loads(lines[0].partition(FACTS)[2])
    assert facts["version"] == scrapyd_dist.__version__
    folder = f"/eggs/{name}/.sdist-{os.geteuid()}/"
    assert all(folder in file and "/scrapyd_dist/" in file for file in facts["files"]), facts[
        "files"
    ]
    assert (facts["key"], facts["settings_module"], facts["word"]) == (
        "k",
        "facts.settings",
        "told",
    )
    assert facts["resource"] == facts["pkgutil"] == facts["beside"] == "a word\n"
    assert facts["addons"] == ["scrapyd_dist.middlewares.addon"]


@pytest.fixture
def facts_project(project: MakeProject) -> Callable[..., Project]:
    return lambda **settings: project(
        spiders={"facts": FACTS_SPIDER}, name="facts", settings={"WORD": "told", **settings}
    )


@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"ADDONS": {"scrapyd_dist.Addon": 500}}, marks=pytest.mark.black_box)],
)
def test_a_project_that_names_the_addon_or_not(
    plain: ScrapydNode, facts_project: MakeProject, settings: dict[str, Any]
) -> None:
    check(plain, facts_project(**settings), f"p{len(settings)}")


@pytest.mark.black_box
def test_an_old_broken_copy_on_the_node(
    scrapyd_node: Callable[..., ScrapydNode], facts_project: MakeProject, tmp_path: Path
) -> None:
    old = tmp_path / "old/scrapyd_dist"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("raise RuntimeError('the old copy')\n", encoding="utf-8")
    node = scrapyd_node(env={"PYTHONPATH": str(old.parent)})
    check(node, facts_project(), "facts")
    # The copy is really in the way: an egg without the boot module finds it.
    made = facts_project()
    made.spider("other", "import scrapyd_dist\n")
    answer = node.add_version("plain", "1", made.plain_egg())
    assert "the old copy" in answer["message"]


if LOW in os.environ:

    def test_the_lowest_versions(
        scrapyd_node: Callable[..., ScrapydNode], facts_project: MakeProject
    ) -> None:
        check(scrapyd_node(python=Path(os.environ[LOW])), facts_project(), "low")
