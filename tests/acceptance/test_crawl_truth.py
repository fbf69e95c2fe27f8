"""What is said of a crawl is true: it is over when it is over, and what gave no item is listed, with the reason."""

import json
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from rig.bad_days import ITEMS, MakeScene, attempts, batches
from rig.crawls import crawls, last_crawl
from rig.fixtures import StartCommand, StartFleet
from rig.waiting import wait_for

from scrapyd_dist.batches import AttemptState, BatchState

pytestmark = pytest.mark.black_box

BOTH_WAYS = pytest.mark.parametrize("way", ["--push", "--pull"])

CRAWL = ("crawl", "own", "--callback", "parse_item", "-o", ITEMS)

# the end

#: seconds that the last pages take
SLOW = 6.0
PAGES = 12
#: the first page is through at once, and leads to one that was not known; as slow as the others, so the end seems far
LATE = f"""
    import scrapy
    from properties.items import property_from
    from properties.spiders.starting import StartHere


    class Own(StartHere, scrapy.Spider):
        name = "own"

        def parse(self, response):
            first, *others = response.css("a[itemprop=url]::attr(href)").getall()
            yield response.follow(first, self.parse_item)
            for href in others:
                yield response.follow(href + "?last&behave=slow:{SLOW}", self.parse_item)

        def parse_item(self, response):
            yield property_from(response)
            if "?" not in response.url:
                yield response.follow("property_000001.html?late&behave=slow:{SLOW}", self.parse_item)
"""
#: seconds after the last answer in which the end is told
SOON = 2.0


@BOTH_WAYS
def test_a_crawl_is_over_when_its_last_page_is_home_and_not_before(
    way: str, scene: MakeScene, start_cli: StartCommand
) -> None:
    """N3: nothing waits, the last pages are slow, one of them was not known: the end is told when all are home."""
    soon = {"CONCURRENT_REQUESTS_PER_DOMAIN": PAGES, "DISTRIBUTED_POLL_INTERVAL": 1}
    at = scene(PAGES, DISTRIBUTED_BATCH_SIZE=PAGES, DISTRIBUTED_MAX_JOBS=2, **soon)
    it, pages = at.it, at.pages
    it.spider("own", LATE)
    hook = "cat > told.new && mv told.new told.json"
    command = start_cli(it, *CRAWL, way, "--name", "late", "--on-finish", hook)
    wait_for(lambda: crawls(it), 60, "the crawl in the store")
    waiting = start_cli(it, "watch", "--quiet", "late")

    def asked_at(word: str) -> float:
        """When a page with this word was last asked for, by time.time(); 0 when none was yet."""
        apart = time.time() - time.monotonic()
        return max(
            (row["time"] + apart for row in pages.log() if f"?{word}" in row["target"]), default=0.0
        )

    for word in ("last", "late"):
        wait_for(partial(asked_at, word), 90, f"the {word} page")
        assert at.run("status", "late", "--json", code=0).json()["state"] == "working"
        assert (command.running(), waiting.running(), crawls(it)[0].state.ended) == (
            True,
            True,
            False,
        )
        assert not (it.path / "told.json").exists()
        assert not (it.path / ITEMS).exists()
    waiting.wait(60, code=0)
    command.wait(60, code=0)
    row, answered = last_crawl(it), asked_at("late") + SLOW
    assert row.ended
    assert answered - 0.5 < row.ended < answered + SOON
    told = json.loads((it.path / "told.json").read_text("utf-8"))
    assert (told["state"], told["exit_code"], told["items"]) == ("finished", 0, PAGES + 1)
    assert (
        len({str(item["url"]) for item in it.items(ITEMS)})
        == len(list(it.items(ITEMS)))
        == PAGES + 1
    )


# items that were written, and never told of

#: the worker that meets the page dies in the moment in which its items have their final name
DYING = """
    import os
    import pathlib
    import signal

    from properties.spiders.plain import PlainSpider

    LEFT, really = pathlib.Path({left!r}), pathlib.Path.replace


    def replace(self, target):
        moved = really(self, target)
        if str(target).endswith(".jl") and "_sdist" in str(target):
            try:
                LEFT.unlink()
            except FileNotFoundError:
                return moved
            os.kill(os.getpid(), signal.SIGKILL)
        return moved


    pathlib.Path.replace = replace


    class Noting:
        # It writes to a place of its own, each item by its address.
        def process_item(self, item):
            with open({notes!r}, "a") as file:
                file.write(item["url"] + "\\n")
            return item


    class Own(PlainSpider):
        name = "own"
        custom_settings = {{"ITEM_PIPELINES": {{Noting: 300}}}}

        def parse(self, response):
            for href in response.css("a[itemprop=url]::attr(href)").getall():
                yield response.follow(href, self.parse_item)

        def parse_item(self, response):
            yield from self.parse_article(response)
"""


@pytest.mark.promise("A worker is killed")
@pytest.mark.promise(
    "Pipelines that write to a database or a server of their own run at least once."
)
@BOTH_WAYS
def test_a_worker_that_dies_between_its_items_and_its_word_doubles_and_loses_none(
    way: str, scene: MakeScene, tmp_path: Path
) -> None:
    """N7: the part of its batch is whole on the node's disk, and the next attempt writes another one."""
    at = scene(24, DISTRIBUTED_BATCH_SIZE=6, DISTRIBUTED_MAX_JOBS=2)
    it, pages, left = at.it, at.pages, tmp_path / "one is left to die"
    left.touch()
    notes = tmp_path / "what the pipeline wrote"
    it.spider("own", DYING.format(left=str(left), notes=str(notes)))
    at.run(*CRAWL, way, code=0)
    assert not left.exists(), "no worker has died"
    failed = {f"{attempt.job}.jl" for attempt in attempts(it, AttemptState.FAILED)}
    written = {
        path.name
        for node in at.nodes
        for path in node.logs_dir.glob(f"_sdist/{crawls(it)[0].id}.*/*.jl")
    }
    assert failed & written, "it died too early to show anything"
    assert pages.differences(it.items(ITEMS)) == {}
    assert max(pages.item_hits().values()) == 2, "its pages were fetched again"
    assert set(notes.read_text(encoding="utf-8").split()) == {
        pages.detail(number) for number in range(24)
    }


def test_nodes_with_full_disks_make_no_request_and_each_has_a_try_at_every_batch(
    scene: MakeScene,
) -> None:
    at = scene(
        60, DISTRIBUTED_BATCH_SIZE=30, DISTRIBUTED_MIN_FREE=1 << 60, DISTRIBUTED_MAX_ATTEMPTS=2
    )
    at.crawl(way="scrapy", code=1).expect(1, "disk-full")
    dead = [(batch.state, batch.attempts, "disk-full" in batch.reason) for batch in batches(at.it)]
    assert dead == [(BatchState.DEAD, 2, True)] * 2
    tried = Counter(
        (attempt.batch, attempt.node) for attempt in attempts(at.it, AttemptState.FAILED)
    )
    assert tried == {(batch, node.name): 1 for batch in (1, 2) for node in at.nodes}
    row = last_crawl(at.it)
    assert (row.exit_code, row.summary["dead_urls"], row.summary["batches"]["dead"]) == (1, 60, 2)
    assert at.pages.item_hits() == {}


def test_the_jobs_of_a_removed_crawl_are_not_taken_for_those_of_the_next_one_of_its_name(
    scene: MakeScene, fleet: StartFleet
) -> None:
    """The node remembers them; the ids have digits of their crawl."""
    (node,) = fleet(1, max_proc=1, poll_interval=0.2)
    at = scene(6, nodes=[node])
    for _ in range(2):
        at.run("crawl", "easy", "--name", "again", code=0)
        at.run("crawls", "clean", "again", "--yes", code=0)
    ids = {job["id"] for job in node.jobs()}
    assert len(ids) == 2
    assert all(name.startswith("again.") for name in ids)
    assert at.pages.item_hits() == dict.fromkeys(range(6), 2)
