"""The walk over the index pages: who found what, what failed, and where a broken walk goes on."""

from dataclasses import replace

import pytest
from scrapyd_dist.middlewares.producer.discovery import IndexWalk

from scrapyd_dist.batches import ShardState
from scrapyd_dist.shards import ShardTemplate, shards_of_pages, shards_of_urls

TEMPLATE = ShardTemplate("http://web/index_%03d.html")


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
    assert [(m.url, m.kind, m.reason) for m in index.take_misses()] == [(TEMPLATE.url(2), "index", "HTTP 500")]
    assert index.take_misses() == []


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


@pytest.mark.parametrize(("shard", "page"), [(0, 4), (1, 9)])
def test_behind_the_last_page_of_a_shard_nothing_goes_on(shard: int, page: int) -> None:
    index = walk()
    assert index.lost(shard, index.asked(shard), TEMPLATE.url(page), "x") is None
    assert index.failed == 1


def test_a_failed_page_that_is_none_of_the_template_ends_its_walk() -> None:
    index = walk()
    assert index.lost(0, index.asked(0), "http://web/other", "x") is None
    assert index.failed == 1


def test_a_whole_walk_is_not_short() -> None:
    index = walk()
    visit(index, 0, *range(5))
    visit(index, 1, *range(5, 10))
    assert index.short() == ([], [])


def test_a_walk_that_ends_early_is_a_loss_and_the_last_one_may_be_the_sites_end() -> None:
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
