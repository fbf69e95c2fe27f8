"""What tests of whole crawls share: quick settings, the row in the store, what an account must add up to."""

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import state_key
from scrapyd_dist.store import Store, open_store

from .commands import Result
from .nodes import ScrapydNode
from .processes import with_home
from .projects import Project
from .sites import SiteProcess

#: the one line that makes a project's crawls distributed
ADDON = {"scrapyd_dist.Addon": 500}
#: a crawl that takes seconds
QUICK: Mapping[str, Any] = {
    "DISTRIBUTED_POLL_INTERVAL": 0.3,
    "DISTRIBUTED_BATCH_SIZE": 40,
    "DISTRIBUTED_REQUEST_TIMEOUT": 10,
    "RETRY_TIMES": 1,
    "DISTRIBUTED_MIN_FREE": 1,
}
#: a plain spider, whose code says nothing of nodes; its items say which code made them, and in which process
NEWS = """
import os

import scrapy

BY = "first"


class News(scrapy.Spider):
    name = "news"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"])

    def parse(self, response):
        yield {"index": response.url, "by": BY, "pid": os.getpid()}
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)
        for link in response.css("a.next::attr(href), .next a::attr(href)").getall():
            yield response.follow(link)

    def parse_article(self, response):
        yield {"article": response.url, "by": BY, "pid": os.getpid()}
"""


def store_of(project: Project) -> Store:
    """The project's store, in which what is written is signed with the project's key."""
    state = state_dir(project.path)
    return open_store(state / "store.db", key=state_key(state))


def crawls(project: Project) -> list[Crawl]:
    """All crawls of a project, the newest first; none when it has no store yet."""
    path = project.path / ".sdist" / "store.db"
    if not path.exists():
        return []
    with closing(open_store(path)) as store:
        return store.crawls()


def last_crawl(project: Project) -> Crawl:
    """The newest crawl; its summary has to balance."""
    row = crawls(project)[0]
    if row.summary:
        assert_balanced(row.summary)
    return row


def assert_balanced(summary: Mapping[str, Any]) -> None:
    """Every URL that was found is accounted for, to the unit."""
    sorted_in = {
        name: summary[name] for name in ("offsite", "duplicate", "refused", "local", "sealed")
    }
    assert summary["urls_found"] == sum(sorted_in.values()), summary
    if summary["state"] == "finished":
        batches = summary["batches"]
        assert batches["done"] + batches["dead"] == batches["total"], summary
        assert summary["requests"]["done"] + summary["dead_urls"] == summary["sealed"], summary


def misses(project: Project) -> list[dict[str, Any]]:
    """The rows of the newest crawl's list of URLs without a result."""
    return misses_in(crawls(project)[0].summary)


def misses_in(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same of the crawl with this summary."""
    path = summary["misses"]
    if path is None:
        return []
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a path from JSON
        return [json.loads(line) for line in file]


def assert_each_page_once(
    site: SiteProcess,
    items: Iterable[Mapping[str, Any]] | None = None,
    *,
    without: Iterable[int] = (),
) -> None:
    """The site's log: every index page and every detail page was asked for, each once; and `items` are the site's."""
    assert items is None or site.differences(items) == {}
    hits = site.hits()
    index = {site.site.index_path(page): 1 for page in range(site.site.pages)}
    assert {path: hits.get(path, 0) for path in index} == index
    expected = {number: 1 for number in range(site.site.items) if number not in set(without)}
    found = site.item_hits()
    assert {number: found[number] for number in expected} == expected


def assert_nothing_left(project: Project, nodes: Iterable[ScrapydNode] = ()) -> None:
    """No crawl that seems to run, no job on a node, no half-written file."""
    assert [(row.id, row.state) for row in crawls(project) if not row.state.ended] == []
    for node in nodes:
        assert node.jobs() == []
    left = [path for path in project.path.rglob("*") if path.name.endswith((".part", ".jl"))]
    assert left == []


def visible(project: Project, nodes: list[ScrapydNode]) -> str:
    """What can be read while jobs run: process lists, job lists, logs, reports, the state folder."""
    texts = [json.dumps(node.api("listjobs.json")) for node in nodes]
    texts += [str(with_home(home)) for home in (project.home, *(node.home for node in nodes))]
    files = [path for node in nodes for path in node.logs_dir.rglob("*") if path.is_file()]
    files += [path for path in (project.path / ".sdist").rglob("*") if path.is_file()]
    texts += [path.read_text(errors="replace") for path in files if path.exists()]
    return "\n".join([*texts, *(node.log for node in nodes)])


def said(done: Result) -> str:
    """Of a command's output what matters when a test fails: errors, warnings, and the end."""
    loud = [
        line
        for line in done.err.splitlines()
        if any(word in line for word in ("ERROR", "WARN", "CRITICAL"))
    ]
    return "\n".join([f"exit code {done.code}", *loud, *done.err.splitlines()[-3:]])


def assert_one_paragraph(text: str) -> None:
    """What a command says when it refuses: words in one line, and no traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    assert "Traceback" not in text, text
    assert len(lines) == 1, text
