"""Nodes and plain jobs as commands see them: states, drift, drains; where jobs go, what runs, their logs."""

import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from rig.stores import lease_next
from scrapyd_dist.cli.context import Context, quick_project
from scrapyd_dist.cli.jobs.job_ends import Waited
from scrapyd_dist.cli.jobs.job_fleet import JobFleet
from scrapyd_dist.cli.jobs.job_list import listed_again, remembered
from scrapyd_dist.cli.jobs.job_memory import JobMemory, Judged, still_there
from scrapyd_dist.cli.jobs.logs import LogFilter, groups, reaches
from scrapyd_dist.cli.jobs.queue_runner import QueueRunner
from scrapyd_dist.cli.jobs.schedule import JobRow, _work_off, read_jobs, split_arguments
from scrapyd_dist.cli.node_status import newest_of
from scrapyd_dist.cli.nodes.node_commands import SILENT_LOOKS, DrainResult, clock
from scrapyd_dist.cli.output import Output

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import ProjectConfig, state_dir
from scrapyd_dist.diagnostics import NodeStatus
from scrapyd_dist.errors import (
    AuthRefused,
    ConfigError,
    ConnectionRefused,
    NodeError,
    NothingMatched,
    StoreError,
)
from scrapyd_dist.frontier.backlog import Lessee, NewBatch
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.joblogs import log_reads
from scrapyd_dist.joblogs.joblog import LogLine, LogLines
from scrapyd_dist.joblogs.verdict import Verdict
from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling.liveness import IdleWatch
from scrapyd_dist.scrapyd.api import Call, Chunk, Jobs, Load
from scrapyd_dist.store import open_store
from scrapyd_dist.transports.event_hook import EventHook

NODE = Node.parse("http://me:hush@web1:6800", name="web1")
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
OLD, NEW = "1793491200-187649984473770", "1793577600-206414982921147"


def seen(
    pending: int = 0, running: int = 0, error: NodeError | None = None, *versions: str
) -> NodeStatus:
    load = (
        None
        if error
        else Load(pending=pending, running=running, finished=0, node_name="web1", date=NOW)
    )
    return NodeStatus(node=NODE, load=load, error=error, versions=versions or None)


@pytest.mark.parametrize(
    ("mine", "others", "drift"),
    [
        ((OLD, NEW), (NEW,), False),
        ((OLD,), (OLD, NEW), True),
        # Scrapyd would run the old one by default; the newest is there all the same
        ((NEW, "zzz"), (NEW,), False),
        # the same code under another name is no drift
        (("1793664000-206414982921147",), (NEW,), False),
        (("1_9",), ("1_9",), False),
        (("1_9",), ("1_10", "1_10"), True),
    ],
)
def test_drift(mine: tuple[str, ...], others: tuple[str, ...], drift: bool) -> None:
    one, two, three = seen(0, 0, None, *mine), seen(0, 0, None, *others), seen(0, 0, None, *others)
    assert one.document(newest_of([one, two, three]))["drift"] is drift
    one.versions = None
    assert (newest_of([one]), one.document(NEW)["drift"]) == (None, None), (
        "without versions it is not known"
    )
    one.versions = ()
    assert one.document(NEW)["drift"] is True


def test_a_row_has_no_password() -> None:
    one = seen(error=ConnectionRefused.at(str(NODE)))
    one.draining = 0.0
    found = one.document(NEW)
    assert "hush" not in str(found)
    assert (found["state"], found["draining"]) == ("down", "1970-01-01T00:00:00+00:00")
    assert found["reason"].startswith("connection refused")


def test_a_clock_is_told_of_when_it_is_wrong() -> None:
    assert [clock(skew) for skew in (None, 0.4, -1.9, 2.0, -3600.2)] == [
        "",
        "",
        "",
        "+2 s",
        "-3600 s",
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('BOT_NAME = "shop"\n', "shop"),
        ('BOT_NAME = "old"\nBOT_NAME = "shop"\n', "shop"),
        ('import os\nBOT_NAME = os.environ["X"]\n', None),
        ("not python", None),
        (None, None),
    ],
)
def test_the_project_is_named_without_running_it(
    tmp_path: Path, text: str | None, name: str | None
) -> None:
    if text is not None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "settings.py").write_text(text, "utf-8")
    found = ProjectConfig(root=tmp_path, settings_module="shop.settings", targets=(), project=None)
    assert quick_project(found) == name
    assert quick_project(found, "chosen") == "chosen"


def test_a_node_is_drained_when_it_has_been_empty_for_a_while() -> None:
    waited, stages = DrainResult(node=NODE), []
    for at, pending, running in [
        (100, 0, 1),
        (101, 0, 0),
        (103, 1, 0),
        (104, 0, 0),
        (107, 0, 0),
    ]:  # one more job came
        waited.load = seen(pending, running).load
        waited.saw(None, at, settled=3)
        stages.append((waited.text(), waited.over, waited.stage))
    assert stages[0] == ("web1: 1 running, 0 waiting", False, "draining")
    assert [over for _, over, _ in stages] == [False] * 4 + [True]
    assert waited.stage == "drained"


def test_waiting_for_one_that_is_silent_ends() -> None:
    waited = DrainResult(node=NODE)
    for look in range(SILENT_LOOKS):
        assert not waited.over
        waited.saw(ConnectionRefused.at(str(NODE)), look, settled=0)
    assert (waited.over, waited.stage) == (True, "unknown")
    waited = DrainResult(node=NODE)
    waited.saw(AuthRefused.at(str(NODE)), 1, settled=0)
    assert waited.over, "a wrong password does not become right by waiting"


def test_waiting_for_one_that_starts_nothing_ends() -> None:
    waited = DrainResult(node=NODE, idle_watch=IdleWatch(start_delay=10))
    for at in (100, 106, 112, 118, 124):
        waited.load = seen(pending=2).load
        waited.saw(None, at, settled=0)
    assert (waited.over, waited.stage) == (True, "wedged")


NODES = [
    replace(Node.parse(f"web{number}", slots=slots), project="p")
    for number, slots in [(1, 2), (2, 2), (3, 8)]
]


def fleet(*loads: int, versions: list[list[str]] | None = None) -> JobFleet:
    """Three nodes with so many jobs each, and these versions."""
    sender: Any = None  # nothing is sent here
    made = JobFleet(sender=sender, nodes=NODES, timeout=1)
    names = versions or [["a", "b"]] * len(NODES)
    for node, load, known in zip(NODES, loads, names, strict=True):
        made._seen[node] = replace(seen(running=load), node=node, versions=tuple(known))
    return made


def places(made: JobFleet, count: int) -> list[str]:
    return [node.host for _ in range(count) for node in made.places(None, all_nodes=False)]


def test_jobs_go_where_there_is_least_to_do_per_slot() -> None:
    assert places(fleet(2, 0, 4), 4) == ["web2", "web2", "web3", "web3"]
    assert places(fleet(0, 0, 0), 12).count("web3") == 8


def test_a_named_node_and_all_nodes() -> None:
    made = fleet(9, 0, 0)
    assert [node.host for node in made.places("web1:6800", all_nodes=False)] == ["web1"]
    assert [node.host for node in made.places(None, all_nodes=True)] == ["web1", "web2", "web3"]
    with pytest.raises(NothingMatched, match="web2:6800"):
        made.places("nosuch", all_nodes=False)
    made = replace(
        made,
        errors={NODES[1]: ConnectionRefused.at("web2")},
        _seen={NODES[0]: made._seen[NODES[0]]},
    )
    with pytest.raises(ConnectionRefused, match="web2"):
        made.places("web2:6800", all_nodes=False)


CRAWLS, OLDER, NEWER = "0-a1795176000-001250999896491", "1795170000", "1795180000-001250999896491"


@pytest.mark.parametrize(
    ("versions", "wanted", "chosen", "why"),
    [
        ([["a", "b"], ["a"], ["a", "b"]], None, "a", "when it was deployed is not known"),
        ([["1_9", "1_10"], ["1_9", "1_10"], ["1_10"]], "1.10", "1_10", ""),
        ([[CRAWLS, OLDER, NEWER, "r9-main"]] * 3, None, NEWER, "(when r9-main came is not known)"),
        (
            [[CRAWLS, OLDER, NEWER], [CRAWLS, OLDER], [OLDER]],
            None,
            OLDER,
            "newest deployment that all",
        ),
        ([[CRAWLS]] * 3, None, CRAWLS, "which a crawl brought"),
    ],
)
def test_the_version_is_one_that_all_have(
    versions: list[list[str]], wanted: str | None, chosen: str, why: str
) -> None:
    made = fleet(0, 0, 0, versions=versions)
    assert made._common(wanted) == chosen
    assert why in made.why


def test_no_version_in_common() -> None:
    apart = fleet(0, 0, 0, versions=[["a"], ["b"], []])
    with pytest.raises(ConfigError, match="deploy --all"):
        apart._common(None)
    with pytest.raises(NothingMatched, match="not on web2:6800, web3:6800"):
        apart._common("a")


def test_a_file_of_jobs(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(
        '\ufeffspider,node,priority,s:DEPTH,category\neasy,web1,2,1,"a, b"\nhard,,,,\n', "utf-8"
    )
    first, second = read_jobs(file, JobRow(spider=""))
    assert first == JobRow(
        spider="easy", node="web1", priority=2.0, args={"category": "a, b"}, settings={"DEPTH": "1"}
    )
    assert second == JobRow(spider="hard")
    file.write_text("spider,l:site,l:kind\neasy,shop.com,\n", "utf-8")
    (row,) = read_jobs(file, JobRow(spider="", labels=("night=1",)))
    assert (row.labels, row.args) == (("night=1", "site=shop.com"), {})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "cannot be read"),
        (b"", "no column `spider`"),
        (b"node\nweb1\n", "no column `spider`"),
        (b"spider,node\n,web1\n", "line 2: it names no spider"),
        (b"spider\neasy\nhard,1\n", "line 3: it has more cells"),
        (b"spider,priority\neasy,high\n", "line 2: the priority is 'high', and must be a number"),
        (b"spider\n\xff\n", "UTF-8"),
    ],
)
def test_a_file_that_makes_no_sense_or_is_not_there(
    tmp_path: Path, data: bytes | None, said: str
) -> None:
    file = tmp_path / "jobs.csv"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(ConfigError, match=said):
        read_jobs(file, JobRow(spider=""))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_jobs(tmp_path, JobRow(spider=""))


def test_a_node_that_is_draining_is_asked_for_with_a_reason() -> None:
    made = replace(fleet(0, 0, 0), draining=[Node.parse("web9", name="web 9")])
    with pytest.raises(ConfigError, match="sdist nodes resume 'web 9'"):
        made.places("web 9", all_nodes=False)
    assert places(made, 6).count("web9") == 0
    assert "web9" not in [node.host for node in made.places(None, all_nodes=True)]


def lines(text: str) -> list[LogLine]:
    reader = LogLines()
    return [*reader.feed(text.encode()), *reader.end()]


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        ("abcdxefgh", {}, ["X"]),
        ("abcdxefgh", {"around": 2}, ["cdXef"]),
        ("xabc", {"around": 2}, ["Xab"]),
        ("abcx", {"around": 2}, ["bcX"]),
        ("axbxc", {"around": 1}, ["aXb", "Xc"]),
        ("axbbxc", {"around": 1}, ["aXb", "bXc"]),
        ("axbcdexf", {"around": 1}, ["aXb", "eXf"]),
        ("xaxaxa", {"most": 2}, ["X", "X"]),
        ("xaxaxa", {"most": 1, "around": 1}, ["Xa"]),
        ("xxx", {"around": 5}, ["XXX"]),
        ("abc", {"around": 5}, []),
    ],
)
def test_matches_and_the_lines_around_them(
    text: str, options: dict[str, int], told: list[str]
) -> None:
    found = groups(
        lines("\n".join(text)),
        lambda line: line.text == "x",
        **{"around": 0, "most": 99, **options},
    )
    assert [
        "".join(line.text.upper() if hit else line.text for line, hit in group) for group in found
    ] == told


def test_a_level_leaves_what_is_below_and_a_traceback_belongs_to_its_error() -> None:
    text = "2026-11-20 23:05:01 [a] {}: x\n  x below\n"
    rows = lines("x above\n" + text.format("INFO") + text.format("ERROR"))
    assert [line.level for line in rows if reaches(line, 3)] == ["ERROR", "ERROR"]


def test_which_lines_are_kept() -> None:
    above, info, error = lines(
        "above\n2026-11-20 23:05:01 [a] INFO: x\n2026-11-20 23:06:01 [a] ERROR: x\n"
    )
    hour = timedelta(hours=1)  # the node is an hour before UTC
    since = datetime(2026, 11, 20, 22, 6, tzinfo=timezone.utc)
    assert [LogFilter().wants(line, hour) for line in (above, info, error)] == [True, True, True]
    assert [LogFilter(level=3).wants(line, hour) for line in (above, info, error)] == [
        False,
        False,
        True,
    ]
    assert [LogFilter(since=since).wants(line, hour) for line in (above, info, error)] == [
        False,
        False,
        True,
    ]
    assert LogFilter(since=since).wants(info, timedelta())


def test_the_log_of_a_worker_is_that_of_the_project_and_spider_that_it_worked_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    node = Node.parse("http://web1:6800/", name="web1")
    with closing(open_store(state_dir(tmp_path) / "store.db")) as store:
        store.add_crawl(Crawl(id="c", project="shop", spider="links", created=1.0))
        slots = ("0", "@login", "@bank:login")
        payload = {"DISTRIBUTED_START_URLS": "[]"}
        store.add_batches("c", [NewBatch(payload=payload, size=1, slot=slot) for slot in slots])
        for number, slot in enumerate(slots, 1):
            lessee = Lessee(job=f"c.w{number}.a1", node=node.name, url=node.url)
            lease_next(store, "c", lessee, slots=[slot], now=time.time())
    with closing(Context(tmp_path)) as context:
        places = remembered(context, ["c"], [node])["c"]
    assert sorted(place.log for place in places) == [
        "logs/bank/login/c.w3.a1.log", "logs/shop/links/c.w1.a1.log", "logs/shop/login/c.w2.a1.log",
    ]  # fmt: skip


def test_jobs_that_were_removed_while_their_command_waited_have_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    hook = EventHook(target="", option="--on-finish", event="the end of the jobs")
    with closing(Context(tmp_path)) as context:
        runner = QueueRunner(
            context=context, project="shop", timeout=1.0, own=["easy-1"], quiet=True
        )
        assert _work_off(runner, [], hook, Output(as_json=True)) == 1
    assert "easy-1" in capsys.readouterr().err


class ForgetfulNode:
    """A node that lists no job, and whose log of one was written to so many seconds ago."""

    def __init__(self, silent: float) -> None:
        self.silent = timedelta(seconds=silent)

    def send(self, node: Node, call: Call[Any], *, timeout: float | None = None) -> Any:
        now = datetime(2026, 11, 20, tzinfo=timezone.utc)
        if call.path == "listjobs.json":
            return Jobs(pending=(), running=(), finished=())
        return Chunk(body=b"x\n", start=0, total=2, date=now, modified=now - self.silent)


@pytest.mark.parametrize(("silent", "left"), [(100.0, ["easy-1"]), (200.0, [])])
def test_a_job_that_its_node_does_not_list_is_over_to_wait_when_it_is_to_jobs(
    silent: float, left: list[str]
) -> None:
    node = Node.parse("http://web1:6800/", name="web1")
    record = JobRecord(
        id="easy-1", spider="easy", project="shop", version="1", created=1.0, url=node.url
    )
    known, sender = {"easy-1": [listed_again(record, node)]}, ForgetfulNode(silent)
    assert Waited(sender=sender, nodes=[node], names=("easy-1",), remembered=known).left() == left
    seen = log_reads.read_log_end(sender, node, "logs/shop/easy/easy-1.log", timeout=1.0)
    assert (still_there(record, seen, 2.0) is not None) == bool(left)


def test_jobs_are_listed_also_when_the_store_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node.parse("http://web1:6800/", name="web1")
    record = JobRecord(
        id="easy-1", spider="easy", project="shop", version="1", created=1.0, url=node.url
    )

    def full(*_: object) -> bool:
        raise StoreError("the disk is full.")

    with closing(open_store(tmp_path / "store.db")) as store:
        store.keep_jobs([record])
        monkeypatch.setattr(store, "keep_jobs", full)
        over = Judged(
            row=listed_again(record, node), verdict=Verdict(outcome=Outcome.FINISHED), record=record
        )
        JobMemory(store).learn([over])
        assert store.jobs() == [record]
    assert "not remembered: the disk is full." in capsys.readouterr().err


def test_an_argument_may_be_a_setting_as_for_scrapyd_client() -> None:
    args, settings = split_arguments(
        ["a=1", "setting=LOG_LEVEL=INFO", "settings2=x"], ["LOG_LEVEL=DEBUG", "X=Y=Z"]
    )
    assert args == {"a": "1", "settings2": "x"}
    assert settings == {"LOG_LEVEL": "DEBUG", "X": "Y=Z"}
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        split_arguments(["setting=LOG_LEVEL"], [])
    with pytest.raises(ConfigError, match="DISTRIBUTED_JOB_TIMEOUT"):
        split_arguments(["setting=DISTRIBUTED_JOB_TIMEOUT=soon"], [])
