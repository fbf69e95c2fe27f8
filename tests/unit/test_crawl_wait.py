"""Several crawls are waited for together: nothing is said before their ends, and one exit code comes of all."""

import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rig.commands import Result
from scrapyd_dist.cli.crawls.crawl_wait import combine_codes

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.store import open_store

Run = Callable[..., Result]
ENDED = Crawl(
    id="good", project="p", spider="s", created=1.0, state=CrawlState.FINISHED, exit_code=0
)


@pytest.fixture
def _stored(root: Path) -> None:
    """One crawl that ended well, one with failed pages, one with a message, and one whose process is gone."""
    (root / ".sdist").mkdir()
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.add_crawl(ENDED)
        store.add_crawl(replace(ENDED, id="partial", exit_code=3))
        store.add_crawl(replace(ENDED, id="few", exit_code=1, message="Too few items."))
        store.add_crawl(replace(ENDED, id="gone", exit_code=None, state=CrawlState.WORKING))


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0], 0), ([0, 0], 0), ([130], 130), ([3], 3), ([0, 1], 3), ([1, 1], 1), ([1, 3], 3), ([2, 1], 2),
     ([130, 130], 130)],
)  # fmt: skip
def test_one_exit_code_for_several(codes: list[int], code: int) -> None:
    assert combine_codes(codes) == code


@pytest.mark.usefixtures("_stored")
def test_each_crawl_that_ended_badly_is_named_and_the_document_has_all(sdist: Run) -> None:
    done = sdist("watch", "good", "partial", "few", "good", "--quiet", "--json").expect(3)
    rows = json.loads(done.out)["crawls"]
    assert [(row["crawl"], row["exit_code"]) for row in rows] == [
        ("good", 0), ("partial", 3), ("few", 1),
    ]  # fmt: skip
    assert done.err.splitlines() == [
        "sdist: The crawl partial: finished, exit code 3.",
        "sdist: Too few items.",
    ]


@pytest.mark.usefixtures("_stored")
def test_one_whose_process_is_gone_is_told_with_the_way_on(sdist: Run) -> None:
    done = sdist("watch", "good", "gone", "--quiet").expect(3, "go on with: sdist resume gone")
    assert (done.out, done.err.count("sdist resume gone")) == ("", 1)


@pytest.mark.usefixtures("_stored")
def test_the_time_to_wait_ends_for_all(sdist: Run, root: Path) -> None:
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.update_crawl("gone", pid=os.getpid(), beat=time.time())
    sdist("watch", "good", "gone", "--quiet", "--timeout", "0.01").expect(124, "sdist watch gone")


@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize(
    ("crawl", "code", "said"),
    [
        ("good", 0, ""),
        ("partial", 3, "sdist: The crawl partial: finished, exit code 3.\n"),
        ("few", 1, "sdist: Too few items.\n"),
    ],
)
def test_one_crawl_is_waited_for_as_several_are(
    sdist: Run, crawl: str, code: int, said: str
) -> None:
    assert sdist("watch", crawl, "--quiet") == (code, "", said)


@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("good", "few"), "no display of several crawls, only a wait for the end: add --quiet."),
        (("--job", "j"), "no display of jobs, only a wait for the end: add --quiet."),
        (("good", "few", "--quiet", "--verbose"), ": with --quiet leave out --verbose."),
        (("good", "--job", "j", "--quiet"), "not two of them at once"),
        (("--fleet", "--job", "j", "--quiet"), "not two of them at once"),
        (("good", "--fleet"), "not about the crawl good"),
        (("good", "--node", "n"), "add --job"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_a_paragraph(
    sdist: Run, words: tuple[str, ...], part: str
) -> None:
    done = sdist("watch", *words).expect(2, part)
    assert (done.out, done.err.count("\n")) == ("", 1)
