"""What the names of versions and the ids of jobs tell; what is in use on a node, what may go, what differs."""

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from packaging.version import InvalidVersion, Version
from scrapyd_dist.deploy.egg import Egg
from scrapyd_dist.deploy.node_versions import (
    NodeVersions,
    _version_to_ask,
    differences,
    in_use,
    only_crawls,
    plan,
)
from scrapyd_dist.deploy.rollout import RollOutRequest, common_name, ensure

from scrapyd_dist.batches import Crawl, WorkerEntry, home_of, worker_id
from scrapyd_dist.batches import job_id as attempt_id
from scrapyd_dist.errors import ConnectionRefused, NothingMatched
from scrapyd_dist.fleet.job_versions import versions_by_job
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Job, JobState
from scrapyd_dist.scrapyd.jobs import content_of, crawl_in, is_others, job_id
from scrapyd_dist.scrapyd.version_order import name_last
from scrapyd_dist.scrapyd.versions import (
    behind,
    by_time,
    current,
    hash_in,
    is_crawls,
    later_than,
    made_at,
    newest,
    sanitised,
    version_name,
)

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
AT = int(NOON.timestamp())
HASH = "0123456789ab"
OLD = version_name(HASH, NOON)


def sorted_as_scrapyd_does(names: list[str]) -> list[str]:
    """Versions 1.5 and 1.6: `scrapyd.eggstorage.sorted_versions`, of the names of its files."""
    try:
        return sorted(names, key=Version)
    except InvalidVersion:
        return sorted(names)


@pytest.mark.parametrize(
    "nodes",
    [
        [[]], [["r1", "r2", "s1"]], [["r1"], ["s2", "r1"]], [["1", "2"]], [["20261129120000"]],
        [["1-a"], ["1-rc", "20261129120000"]], [["zz", OLD]], [["1_0"], ["2"]],
    ],
)  # fmt: skip
def test_a_rollback_gets_a_name_that_each_node_sorts_last_however_often(
    nodes: list[list[str]],
) -> None:
    for _ in range(3):
        present = [name for versions in nodes for name in versions]
        at = later_than(NOON, present)
        name = name_last(version_name(HASH, at), nodes)
        assert (hash_in(name), made_at(name), is_crawls(name)) == (HASH, at.timestamp(), False)
        assert len(name) < 60, "it does not grow"
        nodes = [[*versions, name] for versions in nodes]
        assert {sorted_as_scrapyd_does(versions)[-1] for versions in nodes} == {name}
    plain = name_last(version_name(HASH, NOON), [["1", "2"], ["1795000000"]])
    assert plain == version_name(HASH, NOON), "where it sorts last as it is"


class Listing:
    """Stands for nodes that have these versions, by their names."""

    def __init__(self, versions: dict[str, list[str]]) -> None:
        self.versions = versions

    def send(self, node: Node, call: Any, *, timeout: float | None = None) -> Any:
        assert call.path == "listversions.json"
        return tuple(self.versions[node.name])


@pytest.mark.parametrize("wanted", [HASH[:6], OLD[:8], OLD])
def test_spiders_are_those_of_a_version_that_is_asked_for_by_how_it_begins(wanted: str) -> None:
    assert _version_to_ask("p", wanted, ["r1", OLD], None) == OLD
    with pytest.raises(NothingMatched, match=r"no version 'r2' of the project p. It has: r1, 1795"):
        _version_to_ask("p", "r2", ["r1", OLD], None)


LATER = NOON + timedelta(hours=1)


@pytest.mark.parametrize(
    ("versions", "wish", "begins"),
    [
        ({"a": ["s1", f"s1-z{OLD}"], "b": []}, {}, "s1-z"),
        ({"a": ["r1", "s1"], "b": ["1"]}, {}, "s1-z"),
        ({"a": [OLD], "b": ["1", "2"]}, {}, ""),
        ({"a": ["s1", f"s1-z{OLD}"], "b": []}, {"for_crawl": True}, "0-a"),
        ({"a": ["s1"], "b": [OLD]}, {"given": {"a": "s2"}}, ""),
    ],
)
def test_a_deployment_gets_a_name_that_each_node_which_gets_it_sorts_last(
    versions: dict[str, list[str]], wish: dict[str, Any], begins: str
) -> None:
    egg = Egg(make=bytes, content_hash="f" * 12)
    nodes = [Node(name=name, url=f"http://{name}:6800/") for name in versions]
    request = RollOutRequest(dry_run=True, **wish)
    result = ensure(nodes, "p", egg, request, now=LATER, transport=Listing(versions))
    name = result.results[-1].version
    assert name == begins + version_name("f" * 12, LATER)


@pytest.mark.parametrize("beside", [[], ["r9-main"], ["1_10"], ["0_1"], ["2"], ["v3"]])
def test_scrapyd_sorts_deployments_by_time_and_crawls_first_in_both_of_its_orders(
    beside: list[str],
) -> None:
    dice = random.Random(7)

    def named(second: int, *, for_crawl: bool = False) -> str:
        content = f"{dice.randrange(2**48):012x}"
        at = NOON + timedelta(seconds=second)
        return version_name(content, at, for_crawl=for_crawl, dirty=dice.random() < 0.5)

    # A crawl comes after each deployment; scrapyd-deploy and sdist deploy take turns.
    crawls = [named(10 * n, for_crawl=True) for n in range(20)]
    deployed = [named(10 * n) if n % 2 else str(AT + 10 * n) for n in range(20)]
    names = [*crawls, *deployed, *beside]
    assert [sanitised(name) for name in names] == names
    dice.shuffle(names)
    assert [name for name in sorted_as_scrapyd_does(names) if name not in beside] == [
        *crawls,
        *deployed,
    ]
    others = [*crawls, *(beside or [str(AT - 1000)])]
    assert not is_crawls(sorted_as_scrapyd_does(others)[-1])
    assert newest(names) == deployed[-1]


@pytest.mark.parametrize("label", ["", "git-v1-2-main"])
@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("for_crawl", [False, True])
@pytest.mark.parametrize("content", [HASH, "0" * 12, "f" * 12])
def test_a_name_tells_time_content_and_kind(
    content: str, for_crawl: bool, dirty: bool, label: str
) -> None:
    name = version_name(content, NOON, for_crawl=for_crawl, dirty=dirty, label=label)
    assert (hash_in(name), made_at(name), is_crawls(name)) == (content, AT, for_crawl)


def test_names_of_scrapyd_deploy_are_understood() -> None:
    assert (hash_in("1763859938"), made_at("1763859938")) == (None, 1763859938)
    # What only looks like seconds or a stamp is no time.
    assert [
        made_at(name) for name in ("9999999999", f"20261120T120000Z-{HASH}", "1_10", "20261120")
    ] == [None] * 4


def test_a_label_stands_behind_the_hash_and_scrapyd_lists_other_names_in_another_form() -> None:
    name = version_name(HASH, NOON, label="git-r10-main", dirty=True)
    assert name == "1795176000-001250999896491-git-r10-main-dev" == sanitised(name)
    assert [sanitised(name) for name in ("1.10", "r9-master", "v 1/é")] == [
        "1_10",
        "r9-master",
        "v_1__",
    ]


def test_a_new_name_is_later_than_all_kinds() -> None:
    there = [
        OLD,
        str(AT + 5),
        version_name(HASH, NOON + timedelta(seconds=7), for_crawl=True),
        "r9",
    ]
    assert later_than(NOON, there) == NOON + timedelta(seconds=8)


def test_a_new_name_is_later_than_what_was_sent_in_the_same_second() -> None:
    sent = AT + 0.3
    name = version_name(HASH, later_than(NOON, ["1_10"], {"1_10": sent}))
    assert newest(["1_10", name], {"1_10": sent}) == name


class TestWhichCounts:
    FIRST, SECOND = (version_name(HASH, NOON + timedelta(hours=hour)) for hour in (0, 1))
    CRAWL = version_name("f" * 12, NOON + timedelta(hours=2), for_crawl=True)

    @pytest.mark.parametrize(
        ("versions", "known", "chosen"),
        [
            ((), {}, None),
            ((CRAWL, FIRST, SECOND, "r9-main"), {}, SECOND),
            ((CRAWL, FIRST, "r9-main"), {"r9-main": AT + 1.0}, "r9-main"),
            ((CRAWL, FIRST, "r9-main"), {"r9-main": AT - 1.0}, FIRST),
            ((CRAWL, "r8-main", "r9-main"), {}, "r9-main"),
            ((OLD, CRAWL), {}, OLD),
            ((version_name(HASH, NOON, for_crawl=True), CRAWL), {}, CRAWL),
        ],
    )
    def test_the_newest_deployment_by_time(
        self, versions: tuple[str, ...], known: dict[str, float], chosen: str | None
    ) -> None:
        assert current(versions, known) == chosen

    def test_what_sorts_behind_it_is_told(self) -> None:
        assert behind((self.FIRST, self.SECOND)) == behind((self.CRAWL,)) == behind(()) == ""
        assert behind((self.SECOND, version_name("9" * 12, NOON))) == f"the newer {self.SECOND}"
        assert (
            behind((self.FIRST, "r9-main")) == f"{self.FIRST}, the newest one whose time is known"
        )

    def test_oldest_first_and_what_tells_no_time_last(self) -> None:
        mixed = (self.CRAWL, self.SECOND, self.FIRST, "r10", "r9")
        assert by_time(mixed) == [self.FIRST, self.SECOND, self.CRAWL, "r10", "r9"]
        assert by_time(mixed, {"r9": AT - 1.0}) == [
            "r9",
            self.FIRST,
            self.SECOND,
            self.CRAWL,
            "r10",
        ]


MID, NEW = (version_name(HASH, NOON + timedelta(days=days)) for days in (1, 2))
OTHER = version_name("f" * 12, NOON + timedelta(days=3))
CRAWL, DEPLOYED = "0-a1795176000-001250999896491", "1795176001-001250999896491"
DOWN = ConnectionRefused.at("b")


def seen(*versions: str, name: str = "a", jobs: tuple[Job, ...] = (), **more: Any) -> NodeVersions:
    node, version_of = Node.parse(f"{name}:6800", name=name), more.pop("version_of", unknown)
    return in_use(NodeVersions(node=node, project="p", versions=versions, **more), jobs, version_of)


def job(id_: str, state: JobState = JobState.RUNNING, version: str | None = None) -> Job:
    return Job(id=id_, project="p", spider="s", state=state, version=version)


def unknown(_job: str) -> None:
    """No version of a crawl's job is known."""


def test_a_waiting_job_tells_its_version_or_gets_the_default_and_a_running_one_is_known_by_its_crawl() -> (
    None
):
    waiting = (job("x", JobState.PENDING, "1.9"), job("y", JobState.PENDING))
    assert seen("1_9", "2_0", jobs=waiting).jobs == {"1_9": ("x",), "2_0": ("y",)}
    use = seen(OLD, jobs=(job("c.b1.a1"), job("z")), version_of={"c.b1.a1": OLD}.get)
    assert (use.jobs, use.unknown) == ({OLD: ("c.b1.a1",)}, ("z",))


class TestPlan:
    @pytest.mark.parametrize(
        ("versions", "keep", "gone"),
        [
            ((OLD, MID, NEW), 1, (OLD, MID)),
            ((OLD, MID, NEW), 2, (OLD,)),
            ((OLD, MID, NEW), 3, ()),
            ((OLD, MID, NEW), 9, ()),
            ((OLD, NEW, "r9", "v1"), 1, (OLD, "r9")),  # the newest one stays though it sorts first
            ((CRAWL, "0-a1799999999-001250999896491", OLD, MID, NEW), 2, (CRAWL, OLD, MID)),
        ],
    )
    def test_the_last_ones_stay(
        self, versions: tuple[str, ...], keep: int, gone: tuple[str, ...]
    ) -> None:
        assert plan(seen(*versions), keep).old == gone

    def test_what_is_in_use_stays_and_a_job_of_unknown_version_holds_everything_that_is_old(
        self,
    ) -> None:
        found = plan(seen(OLD, MID, NEW, jobs=(job("x", JobState.PENDING, OLD),)), 1)
        assert (found.old, found.jobs) == ((MID,), {OLD: ("x",)})
        found = plan(seen(OLD, MID, NEW, jobs=(job("x"),)), 1)
        assert (found.old, found.unknown) == ((), ("x",))
        assert plan(seen(NEW, jobs=(job("x"),)), 1).unknown == ()

    def test_a_node_that_did_not_answer(self) -> None:
        assert plan(seen(error=DOWN), 1).error is DOWN


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([seen(OLD, NEW), seen(NEW, name="b")], []),
        # The same content under another name is the same, and a node that did not answer is no difference.
        ([seen(OLD), seen(NEW, name="b"), seen(name="c", error=DOWN)], []),
        ([seen(NEW), seen(NEW, name="b"), seen(OTHER, name="c")],
         [f"c would run {OTHER}, others {NEW}."]),
        ([seen(NEW), seen(NEW, name="b"), seen(name="c")], [f"c would run no version at all, others {NEW}."]),
        ([seen(NEW, "r9-master")],
         [f"a would run r9-master, which Scrapyd sorts behind {NEW}, the newest one whose time is known."]),
    ],
)  # fmt: skip
def test_nodes_that_would_run_other_code_are_named(
    entries: list[NodeVersions], told: list[str]
) -> None:
    assert differences(entries) == told


def test_where_only_crawls_have_been_it_is_said() -> None:
    entries = [seen(CRAWL), seen(CRAWL, name="b"), seen(CRAWL, NEW, name="c")]
    (text,) = only_crawls(entries)
    assert text.startswith(f"a, b would run {CRAWL}, which a crawl brought")
    assert differences(entries[:2]) == []


@pytest.mark.parametrize(
    ("there", "more", "name"),
    [
        # A crawl uses a deployment that all have, and deploys none.
        ([[DEPLOYED], [DEPLOYED]], {"for_crawl": True}, DEPLOYED),
        ([[DEPLOYED], []], {"for_crawl": True}, None),
        ([[CRAWL, DEPLOYED], []], {"for_crawl": True}, CRAWL),
        # A deployment is made anew unless it is the newest.
        ([[CRAWL]], {}, None),
        ([[CRAWL, DEPLOYED], []], {}, DEPLOYED),
        ([[DEPLOYED, "1795176009-000000000000000"]], {}, None),
        ([[]], {"kept": DEPLOYED}, DEPLOYED),
    ],
)
def test_the_one_name_of_a_content_on_all_nodes(
    there: list[list[str]], more: dict[str, Any], name: str | None
) -> None:
    assert common_name(there, HASH, **more) == name


NOW = datetime(2026, 1, 2, 4, 4, 5, tzinfo=timezone(timedelta(hours=1)))
NAME = version_name(HASH, NOW - timedelta(days=2))


@pytest.mark.parametrize("version", [NAME, f"{NAME}-dev", f"{NAME}-git-v1-2-main-dev"])
def test_it_tells_the_content(version: str) -> None:
    made = job_id("shop", version, NOW)
    assert made.startswith(f"shop-20260102T030405Z-{HASH}-")
    assert content_of(made) == HASH
    assert job_id("shop", version, NOW) != made


@pytest.mark.parametrize("version", [None, "1_10", "git-v1", "1767139200-short"])
def test_where_the_version_does_not_tell_neither_does_it(version: str | None) -> None:
    made = job_id("shop", version, NOW)
    assert made.startswith("shop-20260102T030405Z-")
    assert content_of(made) is None


@pytest.mark.parametrize(
    ("spider", "begins"), [("a b/c.d", "a-b-c-d-2026"), ("--x", "x-2026"), ("ü", "job-2026")]
)
def test_it_is_a_good_file_name(spider: str, begins: str) -> None:
    assert job_id(spider, None, NOW).startswith(begins)


@pytest.mark.parametrize(
    "id_", ["", "x", "6487ec79947edab326d6db28a2d86511e8247444", "easy-20260102T030405Z.b1.a1"]
)
def test_other_ids_tell_nothing(id_: str) -> None:
    assert content_of(id_) is None


def test_what_holds_a_version_on_a_node() -> None:
    made, lost = (job_id("shop", version, NOW) for version in (NAME, OTHER))
    jobs = tuple(job(name) for name in (made, "stranger", lost))
    # The same content under two names: it may run either, so it holds both.
    again = version_name(HASH, NOW - timedelta(days=1))
    use = seen(NAME, again, "other", jobs=jobs)
    assert use.jobs == {NAME: (made,), again: (made,)}
    assert use.unknown == ("stranger", lost)


@pytest.mark.parametrize(
    ("id_", "ours"),
    [
        (attempt_id("easy-1", 12, 3), "easy-1"),
        (worker_id("easy-1", 4), "easy-1"),
        (attempt_id(home_of("easy-1", 5.0), 12, 3), "easy-1"),
        (worker_id(home_of("easy-1", 5.0), 4), "easy-1"),
        ("easy-1.0123456z.b1.a1", None),
        ("easy.b1.w2.a1", None),
        ("easy-1.b1", None),
        *((id_, None) for id_ in ("", "easy-1", "easy-1.b1.ax", "a.b.b1.a1")),
        (f"easy.b{'9' * 5000}.a1", None),
    ],
)
def test_an_id_of_ours_is_read_in_one_place(id_: str, ours: str | None) -> None:
    assert crawl_in(id_) == ours


def test_jobs_of_two_crawls_of_one_name_are_told_apart() -> None:
    mine, theirs = (home_of("easy", created) for created in (1.0, 2.0))
    homes = {"easy": mine}
    ids = [
        worker_id(mine, 1),
        attempt_id(mine, 1, 1),
        attempt_id("easy", 1, 1),
        "easy",
        "other.w1.a1",
    ]
    assert [id_ for id_ in ids if is_others(id_, homes)] == []
    assert is_others(worker_id(theirs, 1), homes)
    assert is_others(attempt_id(theirs, 1, 1), homes)
    version_of = versions_by_job(
        [Crawl(id="easy", project="p", spider="s", created=1.0, version="v")]
    )
    assert (version_of(worker_id(mine, 1)), version_of(worker_id(theirs, 1))) == ("v", None)


def test_the_version_of_a_plain_job_that_was_started_here_is_known() -> None:
    record = JobRecord(id="plain", spider="s", project="p", version=MID, created=0.0)
    version_of = versions_by_job([], plain_jobs=[record])
    assert (version_of("plain"), version_of("another")) == (MID, None)
    found = plan(seen(OLD, MID, NEW, jobs=(job("plain"),), version_of=version_of), 1)
    assert (found.old, found.unknown) == ((OLD,), ())
    assert found.jobs == {MID: ("plain",)}


def test_beside_workers_of_ours_only_what_they_run_stays() -> None:
    theirs = WorkerEntry(
        job="far.w2.a1",
        number=2,
        url="http://a:6800",
        pool="",
        since=1.0,
        version=MID,
        introduces=True,
    )
    ours = replace(theirs, job="shop.w1.a1", version="")
    crawls = [
        Crawl(id="shop", project="p", spider="s", created=0.0, version=NEW),
        Crawl(id="far", project="q", spider="s", created=0.0, version="z"),
    ]
    version_of = versions_by_job(crawls, [ours, theirs])
    jobs = tuple(job(name) for name in ("shop.w1.a1", "shop.b3.a2", "far.w2.a1"))
    found = plan(seen(OLD, MID, NEW, jobs=jobs, version_of=version_of), 1)
    assert (found.old, found.unknown) == ((OLD,), ())
    assert found.jobs == {MID: ("far.w2.a1",)}
