"""The benchmarks' arithmetic: shares and ratios of pairs, sections of documents, the broad crawl's delays and links."""

from pathlib import Path
from statistics import mean

import broad
import pytest
from bound import shard_starts, shares
from broad_fleet import TOGETHER, Pace, dealt, links
from broad_site import LEAST, host_name, means, number_of
from hypothesis import given
from hypothesis import strategies as st
from kinds import Way
from numbers_section import put_section
from phases import steady_pace
from report import summary, table
from ways import Run


@given(st.integers(0, 500), st.integers(1, 50), st.integers(1, 8), st.floats(0, 20))
def test_every_item_is_in_exactly_one_share(
    items: int, pages: int, processes: int, weight: float
) -> None:
    cut = shares(items, pages, processes, weight)
    assert len(cut) == processes
    assert sorted(number for share in cut for number in share) == list(range(items))


def test_the_process_that_walks_the_index_gets_fewer_details() -> None:
    assert [len(share) for share in shares(900, 100, 3, 0)] == [300, 300, 300]
    assert [len(share) for share in shares(900, 100, 3, 3)] == [100, 400, 400]


@pytest.mark.parametrize(
    ("pages", "shards", "starts"),
    [(10, 2, [0, 5]), (1667, 1, [0]), (3, 20, [0, 1, 2]), (10, 3, [0, 3, 6])],
)
def test_shards_start_where_the_formula_says(pages: int, shards: int, starts: list[int]) -> None:
    assert shard_starts(pages, shards) == starts


def test_the_pace_of_a_slow_site_is_that_between_start_and_end() -> None:
    # A page each second, but for the first ten, which came at once, and the last ten, for which it waited.
    times = [*[0.0] * 10, *map(float, range(1, 81)), *[200.0] * 10]
    assert steady_pace(reversed(times)) == pytest.approx(1.0)


def run(way: str, pair: int, wall: float, cpu: float) -> Run:
    return Run(
        way=way, pair=pair, wall_s=wall, cpu_s=cpu, site_cpu_s=0.1, refetched=0, index_fetched=10
    )


def test_ratios_are_those_of_the_same_pair() -> None:
    # The second pair met a slow moment of the machine; medians of each side alone would say 25 / 30.
    runs = [
        run("bound", 0, 10, 20),
        run("sdist2", 0, 12, 24),
        run("bound", 1, 50, 20),
        run("sdist2", 1, 55, 22),
    ]
    found = summary(runs)
    assert found["sdist2"]["wall_to_bound"] == {"median": 1.15, "min": 1.1, "max": 1.2}
    assert found["sdist2"]["cpu_to_bound"] == {"median": 1.15, "min": 1.1, "max": 1.2}
    assert found["bound"]["wall_s"] == {"median": 30, "min": 10, "max": 50}
    assert (
        "| `sdist crawl` on 2 nodes | 33.5 (12.0-55.0) | 23.0 (22.0-24.0) | 1.15 (1.10-1.20) |"
        in table(found)
    )


def test_a_way_with_a_profile_and_a_rival_are_compared_with_too() -> None:
    runs = [
        run("bound-usual", 0, 10, 20),
        run("scrapy-redis2-usual", 0, 8, 16),
        run("sdist2", 0, 12, 24),
    ]
    found = summary(runs)
    assert found["sdist2"]["wall_to_bound"]["median"] == 1.2
    assert found["sdist2"]["cpu_to_scrapy_redis"]["median"] == 1.5
    row = table(found).splitlines()[-1]
    assert row.endswith(
        "| 1.20 (1.20-1.20) | 1.20 (1.20-1.20) | 1.50 (1.50-1.50) | 1.50 (1.50-1.50) | 1 |"
    )


def test_without_the_bound_there_are_no_ratios() -> None:
    found = summary([run("plain", 0, 1, 1)])
    assert "wall_to_bound" not in found["plain"]
    assert "| plain Scrapy, one process | 1.0 (1.0-1.0) | 1.0 (1.0-1.0) | - | - | - | - | 1 |" in (
        table(found)
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("plain", "plain Scrapy, one process"),
        ("sdist2-redis-fast", "`sdist crawl -s DISTRIBUTED_PROFILE=fast` on 2 nodes, Redis"),
        ("push2-none", "`sdist crawl --push -s DISTRIBUTED_PROFILE=none` on 2 nodes"),
        ("scrapy-redis2-fast", "scrapy-redis, 2 processes and the index, settings of `fast`"),
        ("bound-usual", "the bound, by hand, settings of `usual`"),
    ],
)
def test_a_way_says_what_it_is(name: str, says: str) -> None:
    assert Way.named(name).says == says


@pytest.mark.parametrize(
    "name",
    ["", "sdist", "bound2", "push2-slow", "scrapy-redis", "scrapy-redis2-redis", "bound-fast-fast"],
)
def test_a_way_that_nobody_knows_is_told(name: str) -> None:
    with pytest.raises(ValueError, match="sdistN-redis"):
        Way.named(name)


def test_only_ways_that_need_a_redis_server_get_one() -> None:
    names = ("plain", "bound", "sdist2", "push2", "sdist2-redis", "scrapy-redis2")
    assert [name for name in names if Way.named(name).needs_redis] == [
        "sdist2-redis",
        "scrapy-redis2",
    ]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# Speed\n\n## Numbers\n\nold\n\n### old\n\n## Faults\n\nx\n",
            "# Speed\n\n## Numbers\n\nnew\n\n## Faults\n\nx\n",
        ),
        ("# Speed\n\n## Numbers\nold\n", "# Speed\n\n## Numbers\n\nnew\n"),
        ("# Speed\n\nNothing yet.\n", "# Speed\n\nNothing yet.\n\n## Numbers\n\nnew\n"),
    ],
)
def test_a_section_is_replaced_and_the_rest_is_left(
    before: str, after: str, tmp_path: Path
) -> None:
    document = tmp_path / "speed.md"
    document.write_text(before, encoding="utf-8")
    put_section(document, "Numbers", "new\n")
    assert document.read_text(encoding="utf-8") == after


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
    found = [
        f"http://{host}/{number}" for host in "abc" for number in range(3 if host != "b" else 1)
    ]
    assert [link.removeprefix("http://") for link in dealt(found)] == [
        "a/0",
        "b/0",
        "c/0",
        "a/1",
        "c/1",
        "a/2",
        "c/2",
    ]


def test_the_table_compares_with_the_base_on_as_many_nodes() -> None:
    found = {
        ("fifo", 1): Pace(items=50, seconds=10.0),
        ("fifo", 3): Pace(items=100, seconds=10.0),
        ("spread", 1): Pace(items=200, seconds=10.0),
        ("spread", 3): Pace(items=600, seconds=10.0),
        ("by-domain", 1): Pace(items=100, seconds=10.0),
    }
    assert broad.table(found, "fifo").splitlines()[2:] == [
        "| first in, first out; leased batches | 5.0 | 10.0 | 1.00 | 2.00 |",
        "| `--fair spread` | 20.0 | 60.0 | 6.00 | 3.00 |",
        "| `--fair by-domain` | 10.0 | - | 2.00 | 1.00 |",
    ]
