"""`sdist strategy`: a class decides what is crawled, over real nodes, on both stores; and its bad days."""

import json
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from rig.commands import Command
from rig.crawls import assert_one_paragraph
from rig.nodes import at_rest
from rig.strategy_bench import StrategyBench, url_of
from rig.waiting import wait_for

from scrapyd_dist.errors import NothingMatched

pytestmark = pytest.mark.black_box
MakeBench = Callable[..., StrategyBench]
#: classes of the project's strategies, besides `Each`
STRATEGIES = '''
import os


class Told(Each):
    """Its argument goes to the pages; close() leaves a file."""

    def __init__(self, colour, shade="dark"):
        self.told = [colour, shade]

    def schedule(self, request, score=1.0, dont_queue=False):
        request.meta["told"] = self.told
        super().schedule(request, score, dont_queue)

    def close(self):
        with open("closed.txt", "a") as file:
            file.write("closed")


class Counting(Each):
    """Counts the pages of each site."""

    def page_crawled(self, response):
        super().page_crawled(response)
        site = self.domains[response.request.site]
        site["pages"] = site.get("pages", 0) + 1


class Raising(Counting):
    def page_crawled(self, response):
        if "000003" in response.url and not os.path.exists("corrected"):
            raise ZeroDivisionError("at this page")
        super().page_crawled(response)


class Nothing(Each):
    def filter_extracted_links(self, request, links):
        return []


class Again(Each):
    """A page that failed is tried once more."""

    def request_error(self, request, error):
        super().request_error(request, error)
        site = self.domains[request.site]
        if not site.get(request.url):
            site[request.url] = error
            self.schedule(request)


class Enough(Each):
    pages = 0

    def page_crawled(self, response):
        super().page_crawled(response)
        self.pages += 1

    def finished(self):
        return self.pages >= 5


class Last(Each):
    """The highest number first."""

    def score(self, link):
        digits = link.url.rpartition("_")[2].partition(".")[0]
        return int(digits) / 1000 if "property_" in link.url else 1.0


class Unmade(Each):
    @classmethod
    def from_crawler(cls, crawler, **arguments):
        raise ZeroDivisionError("it has " + crawler.settings["BOT_NAME"] + " and " + str(crawler.stats.get_stats()))


class Worded(Each):
    @classmethod
    def from_crawler(cls, crawler, **arguments):
        if word := crawler.settings["WORD"]:
            raise ZeroDivisionError(word)
        return super().from_crawler(crawler, **arguments)


class Fresh(Revisit):
    """Pages again within seconds."""

    def __init__(self):
        super().__init__(interval=1, shortest=1, longest=2)


class Seedless(Each):
    def read_seeds(self, stream):
        super().read_seeds(stream)
        raise ZeroDivisionError("behind the seeds")
'''


@pytest.fixture
def file_bench(strategy_bench: MakeBench) -> MakeBench:
    """A bench whose store is a file."""

    def make(**options: object) -> StrategyBench:
        it = strategy_bench(**options)
        it.strategy(STRATEGIES)
        return it

    return make


@pytest.fixture
def bench(file_bench: MakeBench, engine: str) -> MakeBench:
    """A bench on each store in turn."""
    return partial(file_bench, store=engine)


def test_every_page_is_crawled_once_and_a_second_run_hits_nothing(bench: MakeBench) -> None:
    """F2."""
    it = bench()
    ended = it.it.path / "ended.json"
    done = it.run("Each", "-o", "items.jl", "--json", "--on-finish", f"cat > {ended}", code=0)
    it.assert_each_once()
    told = done.json()
    assert json.loads(ended.read_text("utf-8"))["strategy"]["links"] == told["strategy"]["links"]
    assert (told["state"], told["strategy"]["links"]["crawled"]) == ("finished", it.pages().total())
    assert sorted(item["url"] for item in it.it.items("items.jl")) == sorted(it.pages())
    assert f"Strategy {it.name} finished" in it.run("Each", code=0).out
    it.assert_each_once()
    changes = it.changes()
    assert Counter((one["before"], one["after"]) for one in changes) == {
        ("NOT_CRAWLED", "QUEUED"): it.pages().total(), ("QUEUED", "CRAWLED"): it.pages().total(),
    }  # fmt: skip
    assert [one["number"] for one in changes] == sorted({one["number"] for one in changes})


class SlowSeeds(BaseHTTPRequestHandler):
    """Gives the second line when it is told to."""

    protocol_version = "HTTP/1.1"
    lines: Sequence[str] = ()
    go_on: threading.Event

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in (*self.lines, ""):
            text = f"{line}\n".encode() if line else b""
            self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
            self.go_on.wait(120)


def test_work_goes_on_while_seeds_come_slowly(file_bench: MakeBench) -> None:
    it = file_bench(hosts=2)
    seeds = [f"{host}{it.web.site.index_path(0)}" for host in it.hosts]
    go_on = threading.Event()
    kind = type("Seeds", (SlowSeeds,), {"lines": seeds, "go_on": go_on})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = it.start("Each", "--seeds", f"http://127.0.0.1:{server.server_port}/")
        half = it.pages().total() // 2
        wait_for(
            lambda: it.hits().total() == half or not command.running(),
            90,
            "the site of the first seed",
        )
        assert command.running(), command.err
        wait_for(lambda: it.states() == {"CRAWLED": half}, 30, "its last event")
        go_on.set()
        command.wait(code=0)
        server.shutdown()
    it.assert_each_once()


def under_way(it: StrategyBench, kind: str, *words: object, hits: int = 8) -> Command:
    """A run that has asked for some pages, and not for all."""
    command = it.start(kind, *words)
    wait_for(lambda: it.hits().total() >= hits or not command.running(), 90, "the first pages")
    assert command.running(), command.out + command.err
    return command


def test_a_strategy_process_that_is_killed_costs_nothing(bench: MakeBench) -> None:
    it = bench(items=30, latency=0.3)
    command = under_way(it, "Each")
    command.signal(signal.SIGKILL)
    command.wait()
    assert it.hits().total() < it.pages().total()
    it.run("Each", code=0)
    it.assert_each_once()


def test_a_worker_that_is_killed_costs_what_it_had_under_way(bench: MakeBench) -> None:
    it = bench(items=30, latency=0.3, DISTRIBUTED_LEASE=3.0)
    command = under_way(it, "Each", "-o", "items.jl")
    it.nodes[0].kill_jobs()
    command.wait(code=0)
    hits, pages = it.hits(), it.pages()
    assert hits.keys() == pages.keys()
    assert max(hits.values()) <= 2
    assert it.states() == {"CRAWLED": pages.total()}
    assert sorted(item["url"] for item in it.it.items("items.jl")) == sorted(pages)


def test_sigterm_closes_the_strategy_and_the_same_command_goes_on(bench: MakeBench) -> None:
    """F1, F8, F17: arguments reach the strategy, and its meta the callback."""
    it = bench(items=30, latency=0.3)
    command = under_way(it, "Told", "-a", "colour=red")
    command.signal(signal.SIGTERM)
    done = command.wait(code=130)
    assert "sdist strategy run small.strategies:Told --spider pages" in done.out
    assert (it.it.path / "closed.txt").read_text() == "closed"
    assert it.status()["processes"] == []
    it.run("Told", "-a", "colour=red", "-o", "items.jl", code=0)
    it.assert_each_once()
    assert {str(item["meta"]) for item in it.it.items("items.jl")} == {"['red', 'dark']"}


def test_each_page_is_told_once_and_metadata_survives_a_restart(bench: MakeBench) -> None:
    """F3, F14."""
    it = bench(hosts=1)
    it.run("Counting", code=0)
    it.seeds([f"{url}?again" for url in it.pages()])
    it.run("Counting", code=0)
    with closing(it.open()) as store:
        assert store.domains(it.name, ["127.0.0.2"]) == {
            "127.0.0.2": {"pages": 2 * it.pages().total()}
        }


def test_links_that_are_filtered_are_not_scheduled(bench: MakeBench) -> None:
    """F4."""
    it = bench()
    it.run("Nothing", code=0)
    assert it.states() == {"CRAWLED": len(it.hosts)}
    assert it.hits().total() == len(it.hosts)


def test_a_callback_that_raises_is_an_error_and_can_be_tried_again(bench: MakeBench) -> None:
    """F6."""
    it = bench(hosts=1, items=3)
    bad = f"{it.hosts[0]}{it.web.site.detail_path(1)}?raises"
    it.seeds([bad])
    it.run("Again")
    assert it.hits() == {bad: 2}
    assert it.states() == {"ERROR": 1}
    assert [(one["after"], one["reason"]) for one in it.changes()][-1] == (
        "ERROR",
        "ZeroDivisionError",
    )


def test_what_kills_its_workers_is_an_error(bench: MakeBench) -> None:
    it = bench(hosts=1, items=3, DISTRIBUTED_MAX_ATTEMPTS=1)
    bad = f"{it.hosts[0]}{it.web.site.detail_path(1)}?dies"
    it.seeds([bad, f"{it.hosts[0]}{it.web.site.index_path(0)}"])
    it.run("Each")
    assert it.states() == {"ERROR": 1, "CRAWLED": it.pages().total()}
    assert [one["reason"] for one in it.changes() if one["after"] == "ERROR"] == ["WorkerDied"]


def test_finished_ends_it(bench: MakeBench) -> None:
    """F7."""
    it = bench(items=100)
    it.run("Enough", "--ahead", 5, code=0)
    assert 5 <= it.hits().total() < it.pages().total()
    told = it.status()
    assert (told["state"], told["ended"], told["links"]["queued"] > 0) == ("ended", True, True)


def test_the_score_is_the_order_at_the_site(bench: MakeBench) -> None:
    """F9."""
    it = bench(items=30, per_page=30, hosts=1, nodes=1, CONCURRENT_REQUESTS=1)
    it.run("Last", "--ahead", 12, code=0)
    asked = [it.web.site.numbers[hit["target"]] for hit in it.web.log()[1:]]
    assert asked == list(reversed(range(30)))


def test_pages_are_requested_again_when_they_are_due_and_no_earlier(bench: MakeBench) -> None:
    """Pages that stay as they are: the interval grows from 1 s by half, up to 2 s."""
    it = bench(hosts=1, items=4)
    command = it.start("Fresh")
    pages = it.pages()
    wait_for(
        lambda: it.hits() >= pages + pages + pages + pages or not command.running(),
        90,
        "four rounds",
    )
    assert command.running(), command.err
    command.interrupt()
    command.wait(code=130)
    times: dict[str, list[float]] = defaultdict(list)
    for hit in it.web.log():
        times[url_of(hit)].append(hit["time"])
    assert times.keys() == pages.keys()
    for url, at in times.items():
        gaps = [after - before for before, after in pairwise(at)]
        assert all(
            gap >= due for gap, due in zip(gaps, (1.0, 1.5, *[2.0] * len(gaps)), strict=False)
        ), (url, gaps)


def test_a_handler_that_raises_loses_nothing_and_its_event_is_replayed(bench: MakeBench) -> None:
    """F13."""
    it = bench(hosts=1)
    pages = it.pages().total()
    it.run("Raising", code=0)
    told = it.status()
    assert (told["links"], told["dead_letters"]) == ({"queued": 0, "crawled": pages, "error": 0}, 1)
    (letter,) = told["letters"]
    assert letter["url"].endswith(it.web.site.detail_path(3))
    assert "ZeroDivisionError: at this page" in letter["fault"]
    assert "at this page" in it.sdist("status", it.name, code=0).out
    it.it.write("corrected", "")
    assert it.sdist("replay", it.name, "--json", code=0).json()["events"] == 1
    it.run("Raising", code=0)
    it.assert_each_once()
    with closing(it.open()) as store:
        assert store.domains(it.name, ["127.0.0.2"]) == {"127.0.0.2": {"pages": pages}}
    assert it.status()["dead_letters"] == 0
    it.sdist("replay", it.name).expect(4, "no such dead letter")


def test_reset_forgets_one_crawl_only(bench: MakeBench) -> None:
    """F19."""
    it = bench(hosts=1, items=3)
    it.run("Each", "-o", "items.jl", code=0)
    it.run("Each", "--name", "other", code=0)
    it.web.reset()
    it.sdist("reset", it.name).expect(2, "no terminal to ask on")
    it.sdist("reset", it.name, "--yes", code=0)
    assert it.states() == {}
    it.run("Each", "--name", "other", code=0)
    assert it.hits() == {}
    it.run("Each", "-O", "items.jl", code=0)
    it.assert_each_once()
    assert sorted(item["url"] for item in it.it.items("items.jl")) == sorted(it.pages())


def test_a_goal_of_requests_is_exact_and_the_rest_comes_later(bench: MakeBench) -> None:
    """F21."""
    it = bench(hosts=2, items=70)
    it.run("Each", "--max-requests", 100, code=0)
    assert it.hits().total() == 100
    it.run("Each", code=0)
    it.assert_each_once()


def test_without_seeds_it_is_not_at_its_end(bench: MakeBench) -> None:
    """F21: for six seconds of its own heartbeat."""
    it = bench(hosts=1)
    it.seeds([])
    command = it.start("Each")

    def beat() -> float:
        with closing(it.open()) as store, suppress(NothingMatched):
            return store.crawl(it.name).beat or 0.0
        return 0.0

    first = wait_for(beat, 60, "the first sign of life")
    wait_for(lambda: beat() - first > 6 or not command.running(), 60, "six seconds")
    assert (command.running(), it.status()["state"]) == (True, "running"), command.out + command.err
    command.interrupt()
    assert "has scheduled no seed and knows no link" in command.wait(code=130).err


def test_a_standing_strategy_waits_for_more_and_no_link_is_too_deep(bench: MakeBench) -> None:
    it = bench(hosts=1)
    command = under_way(it, "Each", "--standing", "--max-depth", 1, hits=1)
    near = 1 + 5 + 1  #: the first index page, its pages, and the next index page
    wait_for(
        lambda: it.states() == {"CRAWLED": near} or not command.running(),
        90,
        "the pages near the seed",
    )
    wait_for(lambda: not it.backlog().events, 30, "the last event")
    told = it.status()
    assert (command.running(), told["state"], told["standing"]) == (True, "running", True), (
        command.err
    )
    command.interrupt()
    command.wait(code=130)
    assert it.hits().total() == near


def test_seeds_are_added_while_it_runs(bench: MakeBench) -> None:
    it = bench()
    it.seeds([f"{it.hosts[0]}{it.web.site.index_path(0)}"])
    command = under_way(it, "Each", "--standing", hits=1)
    half = it.pages().total() // 2
    wait_for(
        lambda: it.states() == {"CRAWLED": half} or not command.running(), 90, "the first site"
    )
    it.it.write("more.txt", f"{it.hosts[1]}{it.web.site.index_path(0)}\n")
    added = it.sdist("add", it.name, "more.txt", "--json", code=0)
    assert added.json()["seeds"] == 1
    wait_for(
        lambda: it.states() == {"CRAWLED": 2 * half} or not command.running(), 90, "the second one"
    )
    command.interrupt()
    command.wait(code=130)
    it.assert_each_once()


def test_a_second_process_shares_the_sites_and_may_be_killed(bench: MakeBench) -> None:
    it = bench(hosts=6, items=12, latency=0.3)
    command = under_way(it, "Each")
    with it.web.paused():
        joined = it.join()
        wait_for(
            lambda: [one["partitions"] for one in it.status()["processes"]] == [32, 32],
            90,
            "equal shares",
        )
        it.run("Each").expect(2, "sdist strategy join")
    wait_for(lambda: it.hits().total() > 20, 60, "more pages")
    joined.signal(signal.SIGKILL)
    command.wait(code=0)
    it.assert_each_once()


def test_pause_and_resume(bench: MakeBench) -> None:
    it = bench(items=40, latency=0.3)
    command = under_way(it, "Each", "--ahead", 5)
    assert f"sdist strategy resume {it.name}" in it.sdist("pause", it.name, code=0).err
    assert it.status()["state"] == "paused"
    wait_for(lambda: at_rest(it.nodes) or not it.leased(), 30, "the workers rest")
    hits = it.hits()
    it.sdist("resume", it.name, code=0)
    command.wait(code=0)
    assert hits.total() < it.pages().total()
    it.assert_each_once()


# what is refused


def test_what_cannot_be_a_strategy_is_refused_in_a_paragraph(file_bench: MakeBench) -> None:
    it = file_bench(nodes=0, hosts=1)
    it.it.write("small/broken.py", "import nothing_of_that_name\n")

    def refused(path: str, *words: object, code: int = 2) -> str:
        done = it.sdist("run", path, "--spider", "pages", *words)
        assert done.code == code, done.err
        assert_one_paragraph(done.err)
        return done.err

    assert "Write MODULE:CLASS, such as small.strategies:Each" in refused("small.strategies.Each")
    assert "no module small.nowhere" in refused("small.nowhere:Each")
    assert "nothing_of_that_name" in refused("small.broken:Each")
    assert "small.strategies has: Each, Told" in refused("small.strategies:Eahc")
    assert "is no crawling strategy" in refused("small.strategies:os")
    assert "has: BasicStrategy, BestFirst, BreadthFirst" in refused(
        "scrapyd_dist.strategy:BredthFirst"
    )
    assert "got an unexpected keyword argument 'size'" in refused(
        "small.strategies:Each", "-a", "size=1"
    )
    assert "missing a required argument: 'colour'" in refused("small.strategies:Told")
    assert "ZeroDivisionError: it has small and {}" in refused("small.strategies:Unmade")
    assert "There is no spider 'page'" in refused(
        "small.strategies:Each", "--spider", "page", code=4
    )
    assert "There is no file seed.txt" in refused(
        "small.strategies:Each", "--seeds", "seed.txt", code=4
    )
    assert "password" in refused("small.strategies:Each", "--seeds", "https://me:secret@host/seeds")
    it.it.write("urls.txt", "http://127.0.0.1:1/\n")
    it.command(it.it, "frontier", "add", "each", "urls.txt", code=0)
    assert "no crawling strategy's" in refused("small.strategies:Each")
    it.sdist("status", "each").expect(2, "is no crawling strategy's")
    it.sdist("join", "nothing").expect(4, "There is no strategy nothing")
    assert "There are no strategies yet" in it.sdist(code=0).err


def test_a_process_that_joins_has_settings_of_its_own(file_bench: MakeBench) -> None:
    it = file_bench(hosts=1, items=3, nodes=1)
    it.run("Worded", code=0)
    it.sdist("join", it.name, "-s", "WORD=hello").expect(2, "ZeroDivisionError: hello")
    it.sdist("join", it.name, code=0)


def test_a_strategy_that_fails_ends_the_run_with_its_reason(file_bench: MakeBench) -> None:
    it = file_bench(hosts=1, items=3, nodes=1)
    done = it.run("Seedless")
    assert done.code == 1
    assert (
        "read_seeds() of the strategy small.strategies:Seedless raised ZeroDivisionError: behind"
        in done.err
    )
    it.run("Each").expect(2, "the crawl of another strategy")
    it.command(it.it, "frontier", "consume", "pages", it.name).expect(2, "sdist strategy run")
    it.command(it.it, "frontier", "add", it.name, "seeds.txt").expect(2, "is a crawling strategy's")
    for words in (
        ["delete", it.name, "--prefix", "1"],
        ["requeue", it.name],
        ["prioritise", it.name, "--to", "1"],
    ):
        it.command(it.it, "frontier", *words).expect(2, "is a crawling strategy's")
    it.command(it.it, "resume", it.name).expect(2, "is a crawling strategy's")
