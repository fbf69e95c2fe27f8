"""The page: whatever came over the wire is text on it, it fetches nothing, and its size is bounded."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig.made_crawls import BEGUN, made_up

from scrapyd_dist.batches import Batch, BatchState, Crawl, CrawlState, Miss
from scrapyd_dist.report.facts import Facts, NodeNow
from scrapyd_dist.report.page import _cleaned, page

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'-alert(1)-'", "</title></svg></style>",
    "&lt;b&gt;", "javascript:alert(1)", "\x00\x1b[31m\u202eabc\ud800", "]]><!--", "url(http://evil/)",
)  # fmt: skip
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Reads a page strictly: what is opened is closed, and only what we write is there."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = Reader(page(made_up(lives=True, batches=60, nodes=3)))


def with_text(text: str) -> Facts:
    """A crawl in which everything foreign is this text."""
    facts = made_up(batches=30, nodes=2)
    attempts = [
        replace(
            one,
            node=text,
            reason=text,
            report={**one.report, "code": {"egg": text, "version": text}},
        )
        for one in facts.attempts
    ]
    samples = [
        (at, {**v, "nodes": {text: [n, 0, 0, text]}}) for n, (at, v) in enumerate(facts.samples)
    ]
    summary = {
        **facts.crawl.summary, "warnings": [text], "output": [text], "misses": text,
        "nodes": [{"name": text, "state": text}],
    }  # fmt: skip
    row = replace(
        facts.crawl, spider=text, project=text, version=text, message=text, summary=summary
    )
    misses = [Miss(url=text, kind=kind, reason=text) for kind in ("gone", "failed", "index")]
    now = [NodeNow(name=text, versions=(text,)), NodeNow(name=text, reason=text)]
    dead = [Batch(number=1, size=2, state=BatchState.DEAD, reason=text)]
    return replace(
        facts,
        crawl=row,
        attempts=attempts,
        samples=samples,
        misses=misses,
        batches=dead,
        nodes_now=now,
    )


def assert_harmless(text: str) -> None:
    html = page(with_text(text))
    read = Reader(html)
    assert _cleaned(text) in read.text
    assert read.tags <= OURS.tags
    assert read.names <= OURS.names
    html.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    assert_harmless(text)


@settings(max_examples=15)
@given(st.text(alphabet=st.characters(), min_size=1, max_size=60))
def test_any_text_stays_text(text: str) -> None:
    assert_harmless(text)


def test_it_fetches_nothing_and_runs_nothing() -> None:
    html = page(with_text("http://evil/"))
    assert (
        not {"script", "img", "link", "iframe", "object", "image", "a", "use", "foreignobject"}
        & Reader(html).tags
    )
    assert (
        not {name for name in OURS.names if name.startswith("on")}
        | {"src", "href", "xlink:href"} & OURS.names
    )
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= {f"#{name}" for name in Reader(html).ids}
    assert "@import" not in html
    assert "default-src &#39;none&#39;" in html


def test_every_picture_says_what_it_is_and_has_a_table_and_no_name_comes_twice() -> None:
    assert len(OURS.ids) == len(set(OURS.ids))
    html = page(made_up())
    names = re.findall(r'id="([^"]*)" role="img" aria-label="[^"]+"', html)
    assert names == [
        "burn-up",
        "heat",
        "jobs",
        "shard-sizes",
        "shard-times",
        "job-times",
        "status",
        "runs",
    ]
    assert html.count("As a table") == len(names)
    assert html.count("<svg") == html.count('aria-hidden="true"') == 1


def test_passwords_in_addresses_do_not_show() -> None:
    facts = with_text("https://user:secret@web1.example.com/page")
    assert "secret" not in page(facts)
    assert "***@web1.example.com" in page(facts)


@pytest.mark.parametrize(
    ("state", "lives", "said"),
    [
        *((state, False, "") for state in CrawlState),
        (CrawlState.FINDING, True, "sdist watch c"), (CrawlState.FINDING, False, "sdist resume c"),
        (CrawlState.STOPPED, False, "sdist resume c"), (CrawlState.FINISHED, False, "sdist jobs stats c"),
    ],
)  # fmt: skip
def test_a_crawl_of_which_nothing_is_known_has_a_page_and_it_says_how_to_go_on(
    state: CrawlState, *, lives: bool, said: str
) -> None:
    row = Crawl(id="c", project="", spider="s", created=BEGUN, state=state)
    read = Reader(page(Facts(crawl=row, now=BEGUN, lives=lives)))
    assert not {"figure", "svg"} & read.tags
    assert "No batch was given to a node." in read.text
    assert said in read.text


def test_only_so_many_lost_addresses_are_named() -> None:
    row = Crawl(id="c", project="p", spider="s", created=BEGUN, state=CrawlState.FINISHED)
    misses = [Miss(url=f"http://shop/{n}.", kind="failed", reason="r") for n in range(80)]
    text = Reader(page(Facts(crawl=row, now=BEGUN, misses=misses))).text
    assert "80 failed" in text
    assert ("http://shop/49." in text, "http://shop/50." in text) == (True, False)


def test_what_differs_from_scrapy_crawl_is_on_the_page() -> None:
    facts = made_up()
    row = {"name": "JOBDIR", "meaning": "told", "found": ["JOBDIR"], "sentence": "It is not used."}
    summary = {**facts.crawl.summary, "differences": [row, "nonsense"]}
    assert "JOBDIR: It is not used." in page(
        replace(facts, crawl=replace(facts.crawl, summary=summary))
    )


def test_nonsense_in_the_store_is_no_reason_to_give_up() -> None:
    row = Crawl(
        id="c",
        project="p",
        spider="s",
        created=BEGUN,
        summary={"items": "x", "nodes": [{}], "index": 3},
    )
    samples: list[tuple[float, Any]] = [
        (BEGUN, {"nodes": {"web1": []}, "index": [None]}), (BEGUN, {"found": None, "nodes": {"web1": ["x"]}}),
        (BEGUN - 5, {"shards": {"0": [1, 2, 3, "x"]}}),
    ]  # fmt: skip
    Reader(page(Facts(crawl=row, now=BEGUN - 9, samples=samples, lives=True)))


def test_five_thousand_batches_on_forty_nodes_fit_into_a_page() -> None:
    facts = made_up(nodes=40, batches=5000, seconds=7200, size=500, shards=200, runs=20)
    assert len(page(facts)) < 1_000_000


def test_a_crawl_that_stood_still_says_both_how_long_it_ran_and_from_when_to_when() -> None:
    row = Crawl(
        id="c",
        project="p",
        spider="s",
        state=CrawlState.FINISHED,
        created=BEGUN,
        ended=BEGUN + 3660,
    )
    assert "took 1:01 h." in Reader(page(Facts(crawl=row, now=BEGUN + 9000))).text
    told = Reader(
        page(Facts(crawl=replace(row, summary={"duration_s": 45.0}), now=BEGUN + 9000))
    ).text
    assert "ran for 45 s of the 1:01 h from" in told


def test_only_the_end_tells_that_nothing_is_missing() -> None:
    facts = made_up()
    summary = {**facts.crawl.summary, "failed_urls": 0, "dead_urls": 0, "refused": 0}
    ended = replace(facts.crawl, state=CrawlState.FINISHED, exit_code=0, summary=summary)
    going = replace(facts.crawl, state=CrawlState.WORKING, ended=None, summary=summary)
    assert "failed0nothing is missing" in _words(replace(facts, crawl=ended))
    lives = _words(replace(facts, crawl=going, lives=True))
    assert ("failed0so far" in lives, "nothing is missing" in lives) == (True, False)
    for state in (CrawlState.STOPPED, CrawlState.INCOMPLETE):
        assert "nothing is missing" not in _words(replace(facts, crawl=replace(ended, state=state)))


def _words(facts: Facts) -> str:
    return Reader(page(facts)).text.replace("\n", "")


@pytest.mark.parametrize(("code", "tone"), [(0, "good"), (3, "partial"), (1, "bad")])
def test_the_colour_is_that_of_the_exit_code_and_done_is_what_has_ended(
    code: int, tone: str
) -> None:
    facts = made_up()
    requests = {"total": 120, "sent": 120, "done": 120, "succeeded": 7}
    summary = {**facts.crawl.summary, "requests": requests, "failed_urls": 100, "gone_urls": 13}
    crawl = replace(facts.crawl, state=CrawlState.FINISHED, exit_code=code, summary=summary)
    text = page(replace(facts, crawl=crawl))
    assert f'class="state {tone}"' in text
    words = Reader(text).text
    assert ("finished, 100 failed" in words) == bool(code)
    assert (f"sdist retry {crawl.id} --failed-urls" in words) == bool(code)
    assert "requests done120of 120 found" in Reader(text).text.replace("\n", "")


@pytest.mark.parametrize(
    ("walked", "at_the_end", "pages", "note"),
    [
        ([4, 10], [10, 10], 10, "<small>of 10</small>"),
        ([4, 10, 0, 0], [0, None], 10, ""),
        ([4, 10], [0, None], 10, ""),
        ([4, 10, 1, 7, 0], [3, 12], 20, ""),
    ],
)
def test_index_pages_are_those_of_all_processes_of_the_crawl(
    walked: list[int], at_the_end: list[int | None], pages: int, note: str
) -> None:
    last, total = at_the_end
    summary = {"pages": 100 + (last or 0), "index": {"pages": last, "total": total}}
    samples = [(BEGUN + second, {"index": [count, 10]}) for second, count in enumerate(walked)]
    row = Crawl(id="c", project="p", spider="s", created=BEGUN, summary=summary)
    html = page(Facts(crawl=row, now=BEGUN, samples=samples))
    assert f"<dt>index pages</dt><dd>{pages}{note}</dd>" in html
    assert f"<dt>pages</dt><dd>{100 + pages}<" in html


def test_the_label_of_a_median_does_not_cover_what_is_above_the_chart() -> None:
    even = page(made_up(batches=1, shards=1))
    assert '<i class="median high" style="bottom:100' in even
    uneven = page(made_up(batches=60, shards=8))
    assert '<i class="median" ' in uneven


def test_the_page_has_no_words_of_the_house() -> None:
    facts = made_up(batches=60, runs=5)
    died = replace(facts, crawl=replace(facts.crawl, state=CrawlState.FINDING))
    words = Reader(page(died)).text
    assert "straggler" not in words
    assert "sealed" not in words
    assert "A shard is a part of the index" in words
    assert "robots.txt" in words
