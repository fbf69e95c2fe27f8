"""`sdist frontier consume`: workers are kept running over the fleet, at a frontier that others fill; its bad days."""

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rig.consumers import ConsumerBench
from rig.crawls import visible
from rig.deliveries import delivered, files_of, manifest_in
from rig.ftp import FtpServer
from rig.nodes import at_rest
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState

MakeBench = Callable[..., ConsumerBench]


def test_workers_take_everything_and_the_items_come_home(bench: MakeBench, tmp_path: Path) -> None:
    it, hook = bench(), f"cat > {tmp_path / 'told.json'}"
    done = it.consume(
        "-o", "items.jl", "--json", "-s", "DISTRIBUTED_LEASES=9", "--on-finish", hook, code=0
    )
    assert json.loads((tmp_path / "told.json").read_text()) == done.json()
    assert "Did you mean DISTRIBUTED_LEASE?" in done.err
    told = done.json()
    assert (told["state"], told["items"], told["requests"]["done"], told["batches"]["dead"]) == (
        "finished",
        60,
        60,
        0,
    )
    it.assert_all_home()
    assert it.frontier.counts() == {"done": 60}
    assert {slot: len(workers) for slot, workers in it.workers_of().items()} == {"p0": 1, "p1": 1}
    row = it.frontier.row()
    assert (row.exit_code, row.pid) == (0, None)


@pytest.mark.black_box
def test_without_a_file_the_items_go_where_those_of_a_crawl_go_and_a_dash_is_standard_output(
    bench: MakeBench,
) -> None:
    it = bench(items=20)
    told = it.consume("--json", code=0).json()
    assert told["output"] == [str(it.it.path / f"{it.name}.jl")]
    it.assert_all_home(f"{it.name}.jl")
    printed = it.consume("-o", "-", code=0)
    items = [json.loads(line) for line in printed.out.splitlines()]
    assert it.site.differences(items) == {}
    assert "20 items" in printed.err
    assert list((it.it.path / ".sdist" / "stdout").iterdir()) == []
    it.consume("-o", "-", "--json").expect(2, "-o -")


@pytest.mark.black_box
def test_a_lost_producer_leaves_the_frontier_incomplete_until_one_like_it_is_through(
    bench: MakeBench, tmp_path: Path
) -> None:
    it = bench(items=20)
    it.frontier.register("add urls.txt@elsewhere.1", seconds=-1)
    done = it.consume("-o", "items.jl", "--json")
    assert (done.code, done.json()["state"]) == (3, "incomplete"), done.err
    assert "urls.txt@elsewhere.1" in done.json()["message"]
    it.assert_all_home()  # what it had added is done, and in the file
    assert it.run("frontier", "list", "--json").json()["frontiers"][0]["state"] == "incomplete"
    part = next((it.it.path / ".sdist" / "crawls" / it.name / "parts").iterdir())
    away = part.rename(tmp_path / part.name)  # as if it had come home to another machine
    it.consume("-O", "items.jl").expect(2, "1 of the 2 parts")
    away.rename(part)
    (tmp_path / "urls.txt").write_text(f"{it.site.detail(0)}\n", "utf-8")
    assert (
        it.run("frontier", "add", it.name, tmp_path / "urls.txt").code == 0
    )  # takes the place of the lost one
    assert it.consume("--json").json()["state"] == "finished"
    assert it.run("frontier", "add", it.name, tmp_path / "urls.txt", "--standing").code == 0
    assert it.frontier.row().standing


@pytest.mark.black_box
def test_each_slot_gets_one_worker_and_no_more_run_than_may(bench: MakeBench) -> None:
    it = bench(items=160, nodes=2, slots=8, size=5, latency=0.2, CONCURRENT_REQUESTS=2)
    command = it.start("--max-running", 3, "-o", "items.jl")
    most = 0
    while command.running():
        out = [one for one in it.frontier.attempts() if one.state is AttemptState.RUNNING]
        most = max(most, len({one.worker for one in out}))
    command.wait(code=0)
    it.assert_all_home()
    assert 1 < most <= 3
    assert len(it.workers_of()) == 8
    assert {len(workers) for workers in it.workers_of().values()} == {1}


@pytest.mark.black_box
def test_workers_rest_and_go_on(bench: MakeBench) -> None:
    it = bench(items=120, slots=1, size=5, latency=0.1, CONCURRENT_REQUESTS=2)
    command = it.start("-o", "items.jl")
    wait_for(lambda: it.done() >= 5, 60, "the first batch")
    it.run("pause", it.name, code=0)
    # A worker that has noticed keeps what it has; one that had nothing left has ended.
    wait_for(lambda: at_rest(it.nodes) or not it.frontier.backlog().leased, 30, "the worker rests")
    assert it.frontier.backlog().waiting
    it.run("resume", it.name, "--detach", code=0)
    command.wait(code=0)
    it.assert_all_home()


#: spiders that cannot begin, that die at some pages, and that tell what they were given
ODD = """\
import os

from properties.spiders.plain import PlainSpider


class Broken(PlainSpider):
    name = "broken"

    @classmethod
    def from_crawler(cls, crawler, *args, **kwargs):
        raise ZeroDivisionError("it cannot even begin")


class Deadly(PlainSpider):
    name = "deadly"

    def parse_deadly(self, response):
        os._exit(1)


class Labelled(PlainSpider):
    name = "labelled"
    colour = "none"

    def parse_article(self, response):
        yield {"told": [self.colour, self.settings["SHADE"], self.settings.getlist("DISTRIBUTED_LABELS")]}
"""


@pytest.mark.black_box
def test_workers_that_always_fail_end_it_and_are_named(bench: MakeBench) -> None:
    it = bench()
    it.it.spider("odd", ODD)
    done = it.consume(spider="broken", code=1)
    assert "the work of the slots 'p0', 'p1': " in done.out
    assert "it cannot even begin" in done.out
    assert it.frontier.counts() == {"sealed": 60}
    it.consume("-o", "items.jl", code=0)
    it.assert_all_home()


@pytest.mark.black_box
@pytest.mark.full
def test_a_slot_whose_workers_always_die_is_named_and_all_others_come_home(
    bench: MakeBench,
) -> None:
    it = bench(items=40, slots=1, DISTRIBUTED_MAX_ATTEMPTS=1)
    it.it.spider("odd", ODD)
    it.frontier.fill(
        [f"{it.site.detail(number)}?dies" for number in range(8)],
        slot="p9",
        callback="parse_deadly",
    )
    done = it.consume("-o", "items.jl", spider="deadly")
    assert (done.code, "The slot 'p9' gets no more workers" in done.out) == (1, True), (
        done.out + done.err
    )
    assert "'p0'" not in done.out
    assert it.frontier.waiting().keys() == {"p9"}
    assert len(it.workers_of()["p9"]) == 5, "as many as one batch may kill, and four more"
    it.run("items", "merge", it.name, "-o", "items.jl", code=0)
    it.assert_all_home()


@pytest.mark.black_box
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_manager_that_is_gone_leaves_its_workers_and_is_followed_by_another(
    bench: MakeBench, number: int, ftp_server: Callable[..., FtpServer]
) -> None:
    ftp = ftp_server("someone", "s3cret")
    it = bench(
        items=120,
        size=10,
        latency=0.3,
        CONCURRENT_REQUESTS=4,
        DISTRIBUTED_DELIVER=f"{ftp.url}/items",
    )
    command = it.start()
    wait_for(lambda: it.done() >= 10, 60, "the first batch")
    it.consume().expect(2, f"Process {command.pid}")
    command.signal(number)
    ended = command.wait()
    if number == signal.SIGINT:
        assert ended.code == 130
        assert "Jobs that run go on by themselves" in ended.out
    assert len(it.jobs()) == 2
    done = it.consume("-o", "items.jl", code=0)
    it.assert_all_home()
    stored = {name.removeprefix("items/"): data for name, data in ftp.files().items()}
    assert it.site.differences(delivered(stored)) == {}
    assert f"in items.jl, ftp://127.0.0.1:{ftp.port}/items/_{it.name}." in done.out
    assert "s3cret" not in visible(it.it, it.nodes) + done.out + done.err + ended.out + ended.err
    assert {len(workers) for workers in it.workers_of().values()} == {1}
    assert Counter(it.site.item_hits()) == Counter(range(120)), "no page twice"


@pytest.mark.black_box
def test_of_two_managers_that_start_together_one_does_the_work(bench: MakeBench) -> None:
    it = bench(items=40, latency=0.1)
    both = [it.start("-O", f"items{number}.jl") for number in range(2)]
    ends = {command.wait().code: at for at, command in enumerate(both)}
    assert ends.keys() == {0, 2}, [command.wait() for command in both]
    it.assert_all_home(f"items{ends[0]}.jl")
    assert {len(workers) for workers in it.workers_of().values()} == {1}


@pytest.mark.black_box
def test_a_standing_frontier_is_waited_at_and_left_when_the_time_is_up(bench: MakeBench) -> None:
    it = bench(slots=1, standing=True, DISTRIBUTED_IDLE=1)
    command = it.start()
    wait_for(lambda: it.frontier.counts() == {"done": 60}, 60, "all that is there")
    late = it.site.detail(0) + "?again"
    it.frontier.fill([late], callback="parse_article")
    wait_for(lambda: it.frontier.counts() == {"done": 61}, 60, "what came later")
    command.interrupt()
    assert command.wait().code == 130
    it.consume("--max-time", 1, code=124)
    merged = it.run("items", "merge", it.name, "-o", "all.jl")
    assert (merged.code, len(list(it.it.items("all.jl")))) == (0, 61), merged.err


@pytest.mark.black_box
def test_slots_are_split_while_workers_take_from_them(bench: MakeBench) -> None:
    it = bench(items=200, nodes=2, slots=1, size=10, latency=0.1, CONCURRENT_REQUESTS=4)
    command = it.start("-o", "items.jl")
    wait_for(lambda: it.done() >= 10, 60, "the first batch")
    moved = it.run("frontier", "move", it.name, "p", "q", 4)
    assert moved.code in {0, 3}, moved.err
    command.wait(code=0)
    it.assert_all_home()
    assert {"q0", "q1", "q2", "q3"} <= it.workers_of().keys()


@pytest.mark.black_box
def test_only_the_slots_with_the_prefix_are_worked_on_and_what_is_given_reaches_each_job(
    bench: MakeBench,
) -> None:
    it = bench(items=10, slots=1)
    it.it.spider("odd", ODD)
    it.frontier.fill(["http://127.0.0.1:9/never"], slot="other")
    given = ("-a", "colour=red", "-s", "SHADE=dark", "--label", "nightly", "--label", "two words")
    done = it.consume("--prefix", "p", *given, spider="labelled", code=0)
    assert it.frontier.waiting() == {"other": 1}
    assert "Nothing is left in the slots p*" in done.out
    rows = [
        it.run("frontier", "list", "--label", word, "--json").json()["frontiers"]
        for word in ("nightly", "no")
    ]
    assert [[row["labels"] for row in some] for some in rows] == [[["nightly", "two words"]], []]
    jobs = it.run("jobs", "--label", "two words", "--json").json()["jobs"]
    assert {(job["crawl"], job["state"]) for job in jobs} == {(it.name, "finished")}
    it.run("items", "merge", it.name, "-o", "items.jl", code=0)
    assert (
        list(it.it.items("items.jl")) == [{"told": ["red", "dark", ["nightly", "two words"]]}] * 10
    )


#: two spiders without a parse()
MUTE = """
import scrapy
class Mute(scrapy.Spider):
    name = "mute"
    def read_page(self, response):
        yield {"url": response.url}
class Open(Mute):
    name = "open"
    custom_settings = {"DISTRIBUTED_LOGIN": None}
    def parse_article(self, response):
        yield from self.read_page(response)
"""


@pytest.mark.black_box
def test_what_is_wrong_before_the_start_is_told(bench: MakeBench, tmp_path: Path) -> None:
    it = bench(items=5)

    before = it.nodes[0].api("listversions.json", project="properties").get("versions")
    it.consume(spider="nobody").expect(4, "There is no spider 'nobody'")
    told = tmp_path / "told.json"
    it.consume("--node", "127.0.0.1:9", "--on-finish", f"cat > {told}", code=5)
    document = json.loads(told.read_text())
    assert (document["crawl"], document["state"], document["exit_code"]) == (it.name, "refused", 5)
    it.consume("-s", "DISTRIBUTED_TARGET_FEED_URL=ftp://x/%(batch)s.jl").expect(2, "feed")
    it.consume("--prefix", "p", "--fair", "spread").expect(2, "Leave out one of the two")
    it.it.spider("mute", MUTE)
    it.consume(spider="mute").expect(
        2, "has no callback for what waits", "read_page", "no page was fetched"
    )
    it.it.settings(DISTRIBUTED_LOGIN="log_in")
    it.consume("--node", "127.0.0.1:9").expect(2, "'log_in'")
    # A spider's own settings count for its consumer as for each job.
    it.consume("--node", "127.0.0.1:9", spider="open", code=5)
    after = it.nodes[0].api("listversions.json", project="properties").get("versions")
    assert after == before, "nothing was uploaded for it"
    assert not it.site.item_hits()
    it.it.settings(BROKEN=1)
    it.it.write("properties/settings.py", "import nothing_of_that_name")
    it.consume().expect(2, "The project cannot be loaded")
    assert it.frontier.counts() == {"sealed": 5}
    assert it.frontier.row().pid is None


NOTING = """\
import asyncio
import os
import time

import scrapy


class Noting(scrapy.Spider):
    name = "noting"
    custom_settings = {"CLOSESPIDER_ITEMCOUNT": 2}  # an end that was asked for is a good one

    async def start(self):
        self.begun = time.time()
        if self.word == "never":
            raise ValueError("no such word")
        if self.word == "waits":
            await asyncio.sleep(3600)
        yield scrapy.Request(f"{self.settings['SITE']}/properties/property_{int(self.number):06d}.html?{self.word}")

    def parse(self, response):
        job = {"pid": os.getpid(), "from": self.begun, "to": time.time()}
        yield {"word": self.word, "number": self.number, "all": self.colour, **job}
        if not response.url.endswith("-2"):
            yield response.follow(f"{response.url}-2")  # the spider runs as it is, to its end
"""


@pytest.mark.black_box
def test_a_list_of_arguments_is_a_job_for_each_row(bench: MakeBench, tmp_path: Path) -> None:
    """W5: so many at a time, an outcome for each; one that fails is tried again, and given up by name."""
    it = bench(items=20, latency=0.5)
    it.it.settings(SITE=it.site.url, DISTRIBUTED_MAX_ATTEMPTS=2)
    it.it.spider("noting", NOTING)
    rows = ["first,1", "second,2", "third,6", "never,3", ",4", "first,1", "last,5"]
    (tmp_path / "words.csv").write_text("\n".join(["word,number", *rows]), "utf-8")
    added = it.run(
        "frontier", "add", "words", tmp_path / "words.csv", "--as", "arguments", "--json"
    )
    assert (added.json()["added"], added.json()["duplicate"], added.code) == (6, 1, 0), added.err

    options = (
        "-a",
        "colour=red",
        "--max-running",
        2,
        "-o",
        "items.jl",
        "--deliver",
        tmp_path / "out",
        "--json",
    )
    done = it.consume(*options, spider="noting", name="words")
    assert (done.code, done.json()["state"]) == (3, "finished"), done.err
    items = list(it.it.items("items.jl"))
    words = {"first": "1", "second": "2", "third": "6", "last": "5"}
    assert sorted((item["word"], item["number"]) for item in items) == sorted(
        [*words.items(), *words.items()]
    )
    assert {item["all"] for item in items} == {"red"}
    assert sorted(map(str, delivered(files_of(tmp_path / "out")))) == sorted(map(str, items))
    assert manifest_in(files_of(tmp_path / "out"))["complete"]
    assert len({item["pid"] for item in items}) == 4
    assert at_once(items) <= 2
    missed = it.run("crawls", "show", "words", "--misses", "--json").json()["misses"]
    assert sorted(json.loads(miss["url"]).get("word", "") for miss in missed) == ["", "never"]
    assert any("no such word" in miss["reason"] for miss in missed)
    assert done.json()["batches"]["failed"] == 4, "two attempts of each"

    (tmp_path / "bad.csv").write_text("word,number\nnever,1\nwaits,2\n", "utf-8")
    assert it.run("frontier", "add", "bad", tmp_path / "bad.csv", "--as", "arguments").code == 0
    failed = it.consume("--stall-timeout", "2s", "--json", spider="noting", name="bad")
    assert (failed.code, failed.json()["batches"]["dead"], failed.json()["items"]) == (1, 2, 0), (
        failed.err
    )
    reasons = [
        miss["reason"]
        for miss in it.run("crawls", "show", "bad", "--misses", "--json").json()["misses"]
    ]
    assert any("the worker ended early (stalled)" in reason for reason in reasons), reasons


def at_once(items: Iterable[Mapping[str, Any]]) -> int:
    """How many of the jobs that told of themselves ran at the same time, at most."""
    spans: dict[int, tuple[float, float]] = {}
    for item in items:
        start, end = spans.get(item["pid"], (item["from"], item["to"]))
        spans[item["pid"]] = start, max(end, item["to"])
    return max(
        sum(start <= moment <= end for start, end in spans.values()) for moment, _ in spans.values()
    )
