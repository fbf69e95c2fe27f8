"""Shards and the addresses of index pages."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.shards import ShardTemplate, shards_of_pages, shards_of_urls

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
    assert ShardTemplate("http://web/index_%05d.html").page(url) is None


def test_an_address_that_is_shorter_than_what_stands_around_the_number_is_none() -> None:
    assert ShardTemplate("http://aa%daa").page("http://aa") is None
    assert ShardTemplate("http://aa%daa").page("http://aaa") is None


@pytest.mark.parametrize("text", ["http://web/", "http://web/%s", "http://web/{}", "http://web/%d/%d", "%d{page}", ""])
def test_a_template_has_one_place(text: str) -> None:
    with pytest.raises(ConfigError, match="needs one place for the page number"):
        ShardTemplate(text)


TEMPLATE = ShardTemplate("http://web/index_%05d.html")


@given(pages=st.integers(1, 3000), shards=st.integers(1, 200), first=st.integers(0, 50))
def test_shards_cover_every_page_once_and_are_about_equal(pages: int, shards: int, first: int) -> None:
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


def test_the_shards_of_the_book() -> None:
    made = shards_of_pages(TEMPLATE, pages=1667, shards=20)
    assert made[1].url == "http://web/index_00083.html"
    assert made[-1].last_page == 1666
    assert all(one.last_page == (two.first_page or 0) - 1 for one, two in pairwise(made))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"pages": 0}, "--pages"), ({"pages": -1}, "--pages"), ({"shards": 0}, "--shards"),
     ({"first_page": -1}, "--first-page")],
)  # fmt: skip
def test_nothing_to_divide_is_told(wrong: dict[str, int], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        shards_of_pages(TEMPLATE, **{"pages": 3, "shards": 2, **wrong})


def test_a_list_is_a_shard_for_each_address_once() -> None:
    made = shards_of_urls(["u", "v", "u", "w"])
    assert [(s.number, s.url, s.first_page) for s in made] == [(0, "u", None), (1, "v", None), (2, "w", None)]
    with pytest.raises(ConfigError, match="empty"):
        shards_of_urls([])
