"""Where a request leaves from, and what it is called while nobody knows."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.throttle.charges import UNKNOWN, Egress, address_in
from scrapyd_dist.middlewares.throttle.throttle_options import ADDRESSES, ThrottleOptions

#: seconds that no test should take
LONG = 20.0
URL = "http://ip.example/raw"


def egress(
    fetch: Callable[[str], str] | None = None, *, bind: Any = None, refresh: float = 60.0, **options: Any
) -> Egress:
    settings = {"DOWNLOAD_BIND_ADDRESS": bind} if bind else {}
    wanted = ThrottleOptions(on=True, public_ip_refresh=refresh, **{"per_ip": True, **options})
    return Egress(wanted, get_crawler(Spider, settings), fetch)


def of(found: Egress, **meta: Any) -> str:
    return found.address(Request("http://shop.example/", meta=meta))


def test_where_addresses_make_no_difference_there_are_none() -> None:
    assert of(egress(per_ip=False, public_ip="203.0.113.7"), bindaddress="127.0.0.2") == ""


@pytest.mark.parametrize("bind", ["127.0.0.2", ("127.0.0.2", 0)])
def test_what_a_request_is_bound_to_goes_before_what_the_process_is(bind: Any) -> None:
    assert of(egress(public_ip="203.0.113.7"), bindaddress=bind) == "127.0.0.2"
    assert of(egress(bind=bind)) == "127.0.0.2"
    assert of(egress(bind=bind), bindaddress="::0:1") == "::1"


def test_what_is_a_requests_own_is_told_apart_from_what_all_others_share() -> None:
    found = egress(public_ip="203.0.113.7")
    request = Request("http://shop.example/", meta={"bindaddress": ("127.0.0.2", 0)})
    assert (found.own(request), found.machine) == ("127.0.0.2", "203.0.113.7")
    assert found.own(request.replace(meta={})) == ""
    assert egress(per_ip=False).own(request) == ""


def test_a_site_sees_the_proxy() -> None:
    found = egress(public_ip="203.0.113.7")
    assert of(found, proxy="http://user:secret@Proxy.Example:8080", bindaddress="127.0.0.2") == "proxy.example"
    assert of(found, proxy="10.0.0.1:3128") == "10.0.0.1"
    assert of(found, proxy="http://[::0:2]:3128") == "::2"
    # What the environment names is the way of the page that tells the address, too.
    assert of(found, proxy="http://10.0.0.1:3128", _scheme_proxy=True) == "203.0.113.7"


def test_an_address_that_is_given_is_known_at_once() -> None:
    found = egress(public_ip="203.0.113.7")
    assert found.settled.is_set()
    assert of(found) == "203.0.113.7"
    assert of(egress()) == UNKNOWN


def test_a_page_is_asked_without_waiting_and_again_when_it_is_time() -> None:
    asked, answers = threading.Semaphore(0), ["your address is 203.0.113.7\n", "", "203.0.113.8"]
    go_on = threading.Semaphore(0)

    def fetch(url: str) -> str:
        assert url == URL
        asked.release()
        assert go_on.acquire(timeout=LONG)
        answer = answers.pop(0)
        if not answer:
            raise OSError("down")
        return answer

    found = egress(fetch, public_ip=URL, refresh=0.01)
    assert asked.acquire(timeout=LONG)
    assert (of(found), found.settled.is_set()) == (UNKNOWN, False)
    go_on.release()
    assert found.settled.wait(LONG)
    assert of(found) == "203.0.113.7"
    go_on.release()  # it does not answer: the last known address holds
    assert asked.acquire(timeout=LONG)
    assert asked.acquire(timeout=LONG)
    assert of(found) == "203.0.113.7"
    found._close()
    go_on.release()
    threads = [one for one in threading.enumerate() if one.name == "sdist-public-ip"]
    for one in threads:
        one.join(LONG)
    assert of(found) == "203.0.113.8"
    assert not any(one.is_alive() for one in threads)


@pytest.mark.parametrize("answer", [OSError("down"), "a login page", ValueError("no page")])
def test_while_no_address_is_known_the_crawl_goes_on_under_a_name_that_all_share(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fetch(url: str) -> str:
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    found = egress(fetch, public_ip=URL + "?key=secret")
    assert found.settled.wait(LONG)
    assert of(found) == UNKNOWN
    (line,) = [record.getMessage() for record in caplog.records]
    assert "ip.example" in line
    assert "unknown" in line
    assert "secret" not in line
    found._close()


@pytest.mark.parametrize(
    ("text", "pattern", "address"),
    [
        ("203.0.113.7", ADDRESSES, "203.0.113.7"),
        ('{"cafe": "abc", "ip": "2001:DB8::7"}', ADDRESSES, "2001:db8::7"),
        ("<b>999.1.1.1</b> 10.0.0.1", ADDRESSES, "10.0.0.1"),
        ("from 10.0.0.1 you are 203.0.113.7", r"you are (\S+)", "203.0.113.7"),
        ("nobody", ADDRESSES, ""),
        ("ip: none", r"ip: (\d+)?", ""),
    ],
)
def test_the_first_match_that_is_an_address_counts(text: str, pattern: str, address: str) -> None:
    assert address_in(text, pattern) == address
