"""`sdist crawls show`: how a crawl stands, its batches or its misses, and which options go together."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import Result
from rig.stores import lease_next

from scrapyd_dist.batches import MISSES, Crawl, CrawlState, Miss, MissKind
from scrapyd_dist.frontier.backlog import Lessee, NewBatch
from scrapyd_dist.progress.summary_document import MISSED, summary_of
from scrapyd_dist.store import open_store

Run = Callable[..., Result]
NEW = NewBatch(payload={"A": "1"}, size=2, sealed_at=1.0)


@pytest.fixture
def _stored(root: Path) -> None:
    """A frontier, an older crawl, and the newest one: with two batches, and a miss of each of three kinds."""
    (root / ".sdist").mkdir()
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.add_crawl(Crawl(id="shop", project="p", spider="", created=3.0, kind="frontier"))
        store.add_crawl(Crawl(id="old", project="p", spider="s", created=1.0))
        store.add_crawl(
            Crawl(id="new", project="p", spider="s", created=2.0, state=CrawlState.STOPPED)
        )
        for _ in range(2):
            store.seal("new", NEW, fingerprints=(), counts={})
        for kind in ("gone", "failed", "dead"):
            url = f"http://a/{kind}"
            store.add_misses("new", [Miss(url=url, kind=kind, reason="HTTP 5", batch=1)])


@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize("name", [["new"], [], ["old"], ["shop"]])
def test_without_a_list_it_is_what_status_says(sdist: Run, name: list[str]) -> None:
    for form in ([], ["--json"]):
        assert sdist("crawls", "show", *name, *form) == sdist("status", *name, *form).expect(0)


@pytest.mark.usefixtures("_stored")
def test_in_a_pipe_the_way_on_has_a_heading(sdist: Run) -> None:
    headings, *rows = sdist("crawls").expect(0).out.splitlines()
    assert headings.split()[-1] == "NEXT"
    (stopped,) = (row for row in rows if row.startswith("new "))
    assert stopped[headings.index("NEXT") :] == "go on with: sdist resume new"


@pytest.mark.usefixtures("_stored")
def test_its_batches_are_listed_and_chosen(sdist: Run) -> None:
    listed = sdist("crawls", "show", "new", "--batches", "--json").expect(0).json()
    assert [(row["batch"], row["state"]) for row in listed["batches"]] == [
        (1, "sealed"), (2, "sealed"),
    ]  # fmt: skip
    chosen = sdist("crawls", "show", "--batches", "--batch", 2, "--state", "sealed").expect(0).out
    assert [line.split()[0] for line in chosen.splitlines()] == ["BATCH", "2"]
    sdist("crawls", "show", "new", "--batches", "--state", "dead").expect(
        4, "`sdist crawls show new --batches` lists all."
    )
    sdist("crawls", "show", "new", "--batches", "--state", "lost").expect(2, "lost")


@pytest.mark.usefixtures("_stored")
def test_its_misses_are_listed_and_chosen(sdist: Run) -> None:
    listed = sdist("crawls", "show", "--misses", "--json").expect(0).json()
    assert (listed["crawl"], [row["kind"] for row in listed["misses"]]) == (
        "new",
        ["gone", "failed", "dead"],
    )
    words = ("--misses", "--kind", "gone", "--kind", "dead")
    chosen = sdist("crawls", "show", "new", *words).expect(0).out.splitlines()
    assert [line.split()[0] for line in chosen] == ["KIND", "gone", "dead"]
    assert sdist("crawls", "show", "new", *words, "--urls").expect(0).out == (
        "http://a/gone\nhttp://a/dead\n"
    )


@pytest.mark.usefixtures("_stored")
def test_misses_are_shown_without_the_logins_in_their_urls(sdist: Run, root: Path) -> None:
    url = "http://user:geheim@a/page"
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.add_misses("new", [Miss(url=url, kind="gone", reason=f"HTTP 404 of {url}")])
    for form in (["--json"], []):
        shown = sdist("crawls", "show", "--misses", *form).expect(0).out
        assert "http://***@a/page" in shown
        assert "geheim" not in shown
    # The list to crawl again has to lead there.
    assert url in sdist("crawls", "show", "--misses", "--urls").expect(0).out.splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "report c1 e1",
            "sdist report is of one crawl: leave out e1. `sdist crawls` compares several.",
        ),
        (
            "status c1 e1 e2",
            "sdist status is of one crawl: leave out e1 e2. `sdist crawls` compares several.",
        ),
        ("stop c1 e1", "sdist stop is of one crawl: leave out e1."),
        ("crawls show c1 e1", "sdist crawls show is of one crawl: leave out e1."),
        ("web e1", "Got unexpected extra argument"),
    ],
)
def test_a_second_crawl_where_one_is_meant_is_told_so(sdist: Run, words: str, said: str) -> None:
    assert said in sdist(*words.split()).expect(2).err


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("crawl easy -s NAME geheim", "-s NAME=VALUE"),
        ("crawl easy -s A=1 -a city geheim", "-a city=VALUE"),
        ("jobs schedule easy -a city geheim", "-a 'city' is not of the form NAME=VALUE"),
    ],
)
def test_a_value_that_is_a_word_of_its_own_is_told_so(sdist: Run, words: str, right: str) -> None:
    error = sdist(*words.split()).expect(2).err
    assert right in error
    assert "geheim" not in error


@pytest.mark.usefixtures("_stored")
def test_a_dead_batch_that_cannot_be_read_is_listed_and_has_no_line_among_the_urls(
    sdist: Run, root: Path
) -> None:
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        (leased,) = lease_next(store, "new", Lessee(job="j", node="n", url="http://n"))
        number = leased.batch.number
        store.fail("new", number, 1, reason="its worker died", now=2.0, max_attempts=1)
    misses = sdist("crawls", "show", "--misses", "--json").expect(0).json()["misses"]
    assert [(row["batch"], row["url"]) for row in misses if not row["url"]] == [(number, "")]
    assert sdist("crawls", "show", "--misses", "--urls").expect(0).out == (
        "http://a/gone\nhttp://a/failed\nhttp://a/dead\n"
    )


def test_each_kind_of_miss_has_its_words_and_its_count_in_a_summary() -> None:
    kinds = {kind.value for kind in MissKind}
    assert kinds == set(MISSES) == set(MISSED)
    assert set(MISSED.values()) <= set(
        summary_of(Crawl(id="c", project="", spider="", created=0.0))
    )


@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--batches --misses", "give one of the two"),
        ("--state dead", "add --batches"),
        ("--misses --batch 1", "add --batches"),
        ("--batches --kind dead", "add --misses"),
        ("--urls", "add --batches or --misses"),
        ("--batches --urls --json", "give one of the two"),
        ("--misses --urls --json", "give one of the two"),
    ],
)
def test_options_that_do_not_go_together_are_refused_in_a_paragraph(
    sdist: Run, words: str, part: str
) -> None:
    done = sdist("crawls", "show", "new", *words.split()).expect(2, part)
    assert (done.out, done.err.count("\n")) == ("", 1)
