"""Which slot of a frontier a request lies in."""

import hashlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import check_slot_name
from scrapyd_dist.frontier.slots import MOST, SITE, SlotRule, site_of, slot_of_site, slot_of_spider, spider_of_slot


def prints(count: int) -> list[bytes]:
    return [hashlib.sha1(str(number).encode()).digest() for number in range(count)]  # noqa: S324 - as Scrapy's


def test_slots_are_called_by_their_prefix_and_a_number_from_0_on() -> None:
    assert SlotRule().names() == ["0"]
    assert SlotRule(prefix="p", number=8).names() == [f"p{number}" for number in range(8)]
    assert SlotRule().of("http://web/", b"x") == "0"
    assert SlotRule.parse("pages/3").names() == ["pages0", "pages1", "pages2"]
    assert [SlotRule.parse(text).names() for text in ("pages", "/2")] == [["pages0"], ["0", "1"]]


@pytest.mark.parametrize("is_hash", [True, False])
def test_ten_thousand_fingerprints_are_spread_evenly_over_eight_slots_and_none_else(*, is_hash: bool) -> None:
    slots = SlotRule(prefix="p", number=8)
    given = prints(10_000) if is_hash else [f"page {number}".encode() for number in range(10_000)]
    found = Counter(slots.of("http://web/", one) for one in given)
    assert sorted(found) == slots.names()
    assert all(1125 <= count <= 1375 for count in found.values()), found


def test_a_request_lies_in_the_same_slot_on_every_machine() -> None:
    # Not to be changed: what is stored by one version is looked for by the next.
    assert [SlotRule(number=100).of("", one) for one in prints(5)] == ["96", "47", "7", "89", "77"]
    assert SlotRule(number=100, by="domain").of("https://www.example.co.uk/a", b"") == "42"


def test_by_domain_one_site_is_in_one_slot_whatever_its_hosts() -> None:
    slots = SlotRule(prefix="d", number=50, by="domain")
    hosts = ["example.co.uk", "www.example.co.uk", "shop.example.co.uk:8080", "user:x@a.b.example.co.uk"]
    assert len({slots.of(f"http://{host}/{n}", one) for host in hosts for n, one in enumerate(prints(20))}) == 1
    others = {slots.of(f"http://site{number}.co.uk/", b"") for number in range(500)}
    assert len(others) == 50


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("http://www.example.com/a", "example.com"),
        ("https://a.b.example.co.uk", "example.co.uk"),
        ("http://127.0.0.1:8000/", "127.0.0.1"),
        ("http://[::1]:80/", "::1"),
        ("http://localhost/", "localhost"),
        ("http://co.uk/", "co.uk"),
        ("http://EXAMPLE.COM/", "example.com"),
        ("data:,x", ""),
        ("http://my_shop.example/", "my_shop.example"),
        ("http://[bad/", ""),
    ],
)
def test_the_site_of_a_url_is_found_without_the_net_and_may_have_a_slot(url: str, site: str) -> None:
    assert site_of(url) == site
    assert SlotRule(prefix="p-", by=SITE).of(url, b"whatever") == f"p-{site or '-'}"


@given(site=st.text(max_size=120), prefix=st.sampled_from(["", "p", "p" * 60]))
def test_any_site_has_a_name_that_a_slot_can_have(site: str, prefix: str) -> None:
    name = slot_of_site(prefix, site)
    assert check_slot_name(name) == name == slot_of_site(prefix, site)
    assert name.startswith(prefix)
    assert not name.startswith("@")


def test_long_and_strange_names_of_sites_are_told_apart() -> None:
    names = [slot_of_site("", site) for site in ("@a.com", "a.com", "x" * 100, "x" * 101, "bücher", "büchex")]
    assert len(set(names)) == 6


BAD_NAMES = ["pages/", "pages/x", "pages/-1", "pages/0", f"pages/{MOST + 1}", "a b/2", "@a/2", "a/b/2"]
BAD_FIELDS: list[dict[str, Any]] = [{"by": "size"}, {"prefix": "a/b"}, {"number": 0}, {"prefix": "x" * 81}]


@pytest.mark.parametrize("family", [*BAD_NAMES, *BAD_FIELDS])
def test_what_names_no_slots_is_refused(family: str | dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SlotRule.parse(family) if isinstance(family, str) else SlotRule(**family)


def test_slots_of_other_spiders_tell_whose_they_are() -> None:
    assert spider_of_slot("p0") == ("", "")
    for project, spider in (("", "login"), ("other", "login"), ("other", "example.com")):
        assert spider_of_slot(slot_of_spider(spider, project)) == (project, spider)
    with pytest.raises(ConfigError, match="cannot name a slot"):
        slot_of_spider("my spider")
