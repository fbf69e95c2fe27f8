"""The broad crawl's benchmark: the delay law, the order of the links, and its table."""

from statistics import mean

from broad import table
from broad_fleet import TOGETHER, Pace, dealt, links
from broad_site import LEAST, host_name, means, number_of


def test_the_delays_are_those_of_the_law_and_the_same_each_time() -> None:
    delays = means("broad", 1000, 1)
    assert delays == means("broad", 1000, 1)
    assert delays != means("broad", 1000, 2)
    # Half of a normal distribution about 0.2 is at the least delay; the other half has a mean of about 3.2 s.
    assert 0.4 < sum(delay == LEAST for delay in delays) / 1000 < 0.6
    assert 1.4 < mean(delays) < 2.1
    slow = [number for number, delay in enumerate(means("few-slow", 100, 1)) if delay > 1]
    assert slow == list(range(0, 100, 10))


def test_links_come_page_by_page_and_any_few_hosts_are_like_all() -> None:
    delays = means("broad", 1000, 1)
    found = links(delays, TOGETHER, 80)
    assert len(found) == len(set(found)) == 1000 * TOGETHER
    hosts = [number_of(link.split("/")[2]) for link in found[::TOGETHER]]
    assert sorted(hosts) == list(range(1000))
    assert {link.split("/")[2] for link in found[:TOGETHER]} == {f"{host_name(hosts[0])}:80"}
    for start in range(0, 1000, 50):
        assert abs(mean(delays[host] for host in hosts[start : start + 50]) - mean(delays)) < 0.25


def test_dealt_links_are_one_of_each_host_in_turn() -> None:
    found = [f"http://{host}/{number}" for host in "abc" for number in range(3 if host != "b" else 1)]
    assert [link.removeprefix("http://") for link in dealt(found)] == ["a/0", "b/0", "c/0", "a/1", "c/1", "a/2", "c/2"]


def test_the_table_compares_with_the_base_on_as_many_nodes() -> None:
    found = {
        ("fifo", 1): Pace(items=50, seconds=10.0),
        ("fifo", 3): Pace(items=100, seconds=10.0),
        ("spread", 1): Pace(items=200, seconds=10.0),
        ("spread", 3): Pace(items=600, seconds=10.0),
        ("by-domain", 1): Pace(items=100, seconds=10.0),
    }
    assert table(found, "fifo").splitlines()[2:] == [
        "| first in, first out; leased batches | 5.0 | 10.0 | 1.00 | 2.00 |",
        "| `--fair spread` | 20.0 | 60.0 | 6.00 | 3.00 |",
        "| `--fair by-domain` | 10.0 | - | 2.00 | 1.00 |",
    ]
