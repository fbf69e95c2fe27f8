"""The index: shards and the addresses of their pages; what each walk found, what failed, and where it goes on."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.steps import growth
from scrapyd_dist.middlewares.producer import index_walk
from scrapyd_dist.middlewares.producer.index_walk import IndexWalk, WalkEnd

from scrapyd_dist.batches import FinishReason, ShardState
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.shards import ShardTemplate, check_page, shards_of_pages, shards_of_urls

TEMPLATE = ShardTemplate("http://web/index_%05d.html")
WAYS = {
    "http://web/index_%d.html": "http://web/index_7.html",
    "http://web/index_%05d.html": "http://web/index_00007.html",
    "http://web/index_{page}.html": "http://web/index_7.html",
    "http://web/index_{page:05}.html": "http://web/index_00007.html",
    "http://web/index_{page:05d}.html": "http://web/index_00007.html",
    "http://web/?page={page}": "http://web/?page=7",
    "http://web/{page}/list?a=%20b": "http://web/7/list?a=%20b",
}


@pytest.mark.parametrize(("text", "url"), WAYS.items())
def test_a_template_can_be_written_in_both_ways(text: str, url: str) -> None:
    template = ShardTemplate(text)
    assert template.url(7) == url
    assert template.page(url) == 7
    assert template.url_with(template.place) == text


@given(st.sampled_from(sorted(WAYS)), st.integers(0, 10**7))
def test_a_page_is_known_by_its_address(text: str, page: int) -> None:
    assert ShardTemplate(text).page(ShardTemplate(text).url(page)) == page


@pytest.mark.parametrize(
    "url",
    ["http://web/index_7.html", "http://web/index_000007.html", "http://web/index_0000\uff17.html", "http://web/index_-0007.html",
     "http://web/index_00007.htm", "http://web/index_00007.html?a", "http://web/index_.html", "http://web/index_", ""],
)  # fmt: skip
def test_another_address_is_no_page_of_it(url: str) -> None:
    assert TEMPLATE.page(url) is None
    assert ShardTemplate("http://aa%daa").page("http://aaa") is None, (
        "shorter than what stands around the number"
    )


@pytest.mark.parametrize(
    "text", ["http://web/", "http://web/%s", "http://web/{}", "http://web/%d/%d", "%d{page}", ""]
)
def test_a_template_has_one_place(text: str) -> None:
    with pytest.raises(ConfigError, match="needs one place for the page number"):
        ShardTemplate(text)


@given(pages=st.integers(1, 3000), shards=st.integers(1, 200), first=st.integers(0, 50))
def test_shards_cover_every_page_once_and_are_about_equal(
    pages: int, shards: int, first: int
) -> None:
    made = shards_of_pages(TEMPLATE, pages=pages, shards=shards, first_page=first)
    walked = [page for s in made for page in range(s.first_page or 0, (s.last_page or 0) + 1)]
    assert walked == list(range(first, first + pages))
    sizes = [(s.last_page or 0) - (s.first_page or 0) + 1 for s in made]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(made) == min(pages, shards)
    for x, shard in enumerate(made):
        assert shard.number == x
        assert shard.first_page == first + pages * x // len(made)  # as the book divides them
        assert shard.url == TEMPLATE.url(shard.first_page)


def test_an_address_that_no_page_can_be_asked_for_at_is_refused_without_showing_it() -> None:
    for url in ("http://me:hush@web/1", "https://web:8080/", "http://[::1]/"):
        assert check_page(url, "It") == url
    wrong = (
        "ftp://me:hush@web/1",
        "file:///etc/1",
        "http://[::1/1",
        "http://web:99999/",
        "http:///1",
        "web/1",
        "u",
        "",
    )
    for url in (*wrong, "http://web:0/1", "http://a b/"):
        with pytest.raises(
            ConfigError, match=r"^It is no address of a page: it begins with http://[^@]*$"
        ):
            check_page(url, "It")
    with pytest.raises(ConfigError, match="room for 999999999 digits"):
        ShardTemplate("http://web/%9999999999d")


def test_nothing_to_divide_is_told() -> None:
    with pytest.raises(ConfigError, match="empty"):
        shards_of_urls([])


def test_a_list_is_a_shard_for_each_address_once() -> None:
    made = shards_of_urls(["u", "v", "u", "w"])
    assert [(s.number, s.url, s.first_page) for s in made] == [
        (0, "u", None),
        (1, "v", None),
        (2, "w", None),
    ]


def walk(pages: int = 10, shards: int = 2, finished: tuple[int, ...] = ()) -> IndexWalk:
    made = shards_of_pages(TEMPLATE, pages=pages, shards=shards)
    states = [replace(s, state=ShardState.FINISHED) if s.number in finished else s for s in made]
    return IndexWalk(states, TEMPLATE)


def visit(index: IndexWalk, shard: int, *pages: int) -> None:
    for page in pages:
        index.came(shard, index.asked(shard), TEMPLATE.url(page))


def test_pages_are_counted_once() -> None:
    index = walk()
    number = index.asked(0)
    for _ in range(2):
        index.came(0, number, TEMPLATE.url(0))
    visit(index, 1, 5)
    assert (index.pages, index.total, index.failed) == (2, 10, 0)


def test_a_page_behind_the_border_belongs_to_the_next_shard() -> None:
    index = walk(10, 2)
    assert [page for page in range(12) if index.is_border(TEMPLATE.url(page))] == [0, 5, 10, 11]
    assert not index.is_border("http://web/about.html")
    assert not index.is_border("http://web/index_5.html")


def test_in_a_list_only_the_start_pages_are_borders() -> None:
    index = IndexWalk(shards_of_urls(["http://a/1", "http://b/1"]), None)
    assert index.is_border("http://b/1")
    assert not index.is_border("http://b/2")
    assert index.total is None
    assert index.short() == ([], [])


def test_a_failed_page_is_listed_and_the_walk_goes_on_behind_it() -> None:
    index = walk()
    assert index.lost(0, index.asked(0), TEMPLATE.url(2), "HTTP 500") == TEMPLATE.url(3)
    assert index.failed == 1
    assert [(m.url, m.kind, m.reason) for m in index.take_misses()] == [
        (TEMPLATE.url(2), "index", "HTTP 500")
    ]
    assert index.take_misses() == []


def test_a_page_that_the_project_drops_has_not_failed_and_the_walk_goes_on_all_the_same() -> None:
    index = walk()
    page = index.asked(0)
    assert index.lost(0, page, TEMPLATE.url(2), "too far", is_dropped=True) == TEMPLATE.url(3)
    assert (index.failed, index.take_misses()) == (0, [])


def test_a_page_fails_once_even_when_it_is_told_twice_and_never_after_it_came() -> None:
    index = walk()
    number = index.asked(0)
    index.lost(0, number, TEMPLATE.url(2), "a")
    assert index.lost(0, number, TEMPLATE.url(2), "b") is None
    index.came(0, number, TEMPLATE.url(2))
    other = index.asked(0)
    index.came(0, other, TEMPLATE.url(3))
    assert index.lost(0, other, TEMPLATE.url(3), "c") is None
    assert (index.failed, index.pages, len(index.misses)) == (1, 1, 1)


@pytest.mark.parametrize(
    ("shard", "url"), [(0, TEMPLATE.url(4)), (1, TEMPLATE.url(9)), (0, "http://web/other")]
)
def test_behind_the_last_page_of_a_shard_and_a_page_of_no_template_nothing_goes_on(
    shard: int, url: str
) -> None:
    index = walk()
    assert index.lost(shard, index.asked(shard), url, "x") is None
    assert index.failed == 1


def test_a_whole_walk_is_not_short_one_that_ends_early_is_a_loss_and_the_last_one_may_be_the_sites_end() -> (
    None
):
    index = walk(15, 3)
    visit(index, 0, 0, 1, 2)
    visit(index, 1, *range(5, 10))
    visit(index, 2, 10)
    losses, ends = index.short()
    assert losses == ["shard 0 ended at page 2 of 0-4: no link led on"]
    assert ends == ["shard 2 ended at page 10 of 10-14: no link led on"]


def test_a_walk_whose_last_page_failed_is_not_short_besides() -> None:
    index = walk(5, 1)
    visit(index, 0, 0, 1, 2, 3)
    index.lost(0, index.asked(0), TEMPLATE.url(4), "x")
    assert index.short() == ([], [])


def test_what_an_earlier_process_finished_is_not_walked_again() -> None:
    index = walk(10, 2, finished=(0,))
    assert [shard.number for shard in index.unfinished()] == [1]
    assert index.done_before == 5
    visit(index, 1, *range(5, 10))
    assert index.short() == ([], [])


def test_of_each_walk_is_told_once_how_far_it_is() -> None:
    index = walk(10, 2)
    visit(index, 0, 0, 1)
    index.walks[0].found += 7
    news = index.take_news()
    assert list(news) == ["0"]
    pages, found, begun, heard = news["0"]
    assert (pages, found) == (2, 7)
    assert 0 < begun <= heard
    assert index.take_news() == {}
    visit(index, 1, 5)
    assert list(index.take_news()) == ["1"]


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (FinishReason.LIMITED.value, WalkEnd.LIMIT),
        (FinishReason.GOAL.value, WalkEnd.GOAL),
        ("closespider_itemcount", WalkEnd.SETTINGS),
        ("the project's own reason", WalkEnd.CLOSED),
    ],
)
def test_the_first_reason_says_why_a_walk_ends_early(reason: str, end: WalkEnd) -> None:
    index = walk(10, 2)
    assert not index.goes_on_later
    index.end_early(reason)
    index.end_early(FinishReason.SHUTDOWN.value)
    assert (index.early_end, index.early_reason) == (end, reason)
    assert index.goes_on_later is (end is WalkEnd.GOAL)


def test_a_walk_that_was_not_to_end_early_counts_what_it_has_lost() -> None:
    index = walk(10, 2)
    index.recall(failed=2)
    losses, ends = index.close()
    assert (len(losses), len(ends), index.failed) == (1, 1, 3)
    closed = walk(10, 2)
    closed.end_early(FinishReason.LIMITED.value)
    assert (closed.close(), closed.failed) == (([], []), 0)


def test_what_a_page_leads_to_counts_for_its_shard() -> None:
    index = walk(10, 2)
    page = index.asked(1)
    index.found(1)
    index.found(7)  # no shard of this crawl
    index.dropped(1, page)
    index.came(1, page, TEMPLATE.url(5))
    assert (index.walks[1].found, index.walks[1].pages) == (1, 0)


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["pages", "addresses"])
def test_whether_a_page_is_a_border_costs_the_same_with_many_shards(
    template: ShardTemplate | None,
) -> None:
    def ask_for_each(number: int) -> Callable[[], object]:
        urls = [TEMPLATE.url(page) for page in range(number)]
        shards = shards_of_urls(urls)
        if template is not None:
            shards = shards_of_pages(template, pages=number, shards=number)
        index = IndexWalk(shards, template)
        return lambda: [index.is_border(url) for url in urls]

    assert growth(ask_for_each, 50, index_walk) < 5


def test_with_more_pages_than_were_announced_nothing_more_is_expected() -> None:
    index = walk(6, 1)
    for page in range(9):  # pages of another list are walked as well
        index.came(0, index.asked(0), f"http://web/others/{page}")
    assert index.more(90, None) == 0.0
