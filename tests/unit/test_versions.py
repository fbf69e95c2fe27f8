"""What the names of versions tell, and that Scrapyd sorts ours by time, and those of crawls before all others."""

import random
from datetime import datetime, timedelta, timezone

import pytest
from packaging.version import InvalidVersion, Version

from scrapyd_dist.scrapyd.versions import (
    behind,
    by_time,
    current,
    hash_in,
    is_crawls,
    later_than,
    made_at,
    newest,
    sanitised,
    version_name,
)

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
AT = int(NOON.timestamp())
HASH = "0123456789ab"
OLD = f"20261120T120000Z-{HASH}"


def sorted_as_scrapyd_does(names: list[str]) -> list[str]:
    """Versions 1.5 and 1.6: `scrapyd.eggstorage.sorted_versions`, of the names of its files."""
    try:
        return sorted(names, key=Version)
    except InvalidVersion:
        return sorted(names)


@pytest.mark.parametrize("beside", [[], ["r9-main"], ["1_10"], ["0_1"], ["2"], ["v3"], [OLD]])
def test_scrapyd_sorts_deployments_by_time_and_crawls_first_in_both_of_its_orders(beside: list[str]) -> None:
    dice = random.Random(7)

    def named(second: int, *, for_crawl: bool = False) -> str:
        content = f"{dice.randrange(2**48):012x}"
        at = NOON + timedelta(seconds=second)
        return version_name(content, at, for_crawl=for_crawl, dirty=dice.random() < 0.5)

    # A crawl comes after each deployment; scrapyd-deploy and sdist deploy take turns.
    crawls = [named(10 * n, for_crawl=True) for n in range(20)]
    deployed = [named(10 * n) if n % 2 else str(AT + 10 * n) for n in range(20)]
    names = [*crawls, *deployed, *beside]
    assert [sanitised(name) for name in names] == names
    dice.shuffle(names)
    assert [name for name in sorted_as_scrapyd_does(names) if name not in beside] == [*crawls, *deployed]
    others = [*crawls, *(beside or [str(AT - 1000)])]
    assert not is_crawls(sorted_as_scrapyd_does(others)[-1])
    assert newest(names) == deployed[-1]


@pytest.mark.parametrize("label", ["", "git-v1-2-main"])
@pytest.mark.parametrize("dirty", [False, True])
@pytest.mark.parametrize("for_crawl", [False, True])
@pytest.mark.parametrize("content", [HASH, "0" * 12, "f" * 12])
def test_a_name_tells_time_content_and_kind(content: str, for_crawl: bool, dirty: bool, label: str) -> None:
    name = version_name(content, NOON, for_crawl=for_crawl, dirty=dirty, label=label)
    assert (hash_in(name), made_at(name), is_crawls(name)) == (content, AT, for_crawl)


def test_old_names_and_those_of_scrapyd_deploy_are_understood() -> None:
    assert (hash_in(f"{OLD}-git-r1-main-dirty"), made_at(OLD), is_crawls(OLD)) == (HASH, AT, False)
    assert (hash_in("1763859938"), made_at("1763859938")) == (None, 1763859938)
    # What only looks like seconds or a stamp is no time.
    assert [made_at(name) for name in ("9999999999", f"20261399T120000Z-{HASH}", "1_10", "20261120")] == [None] * 4


def test_a_new_name_is_later_than_all_kinds() -> None:
    there = [OLD, str(AT + 5), version_name(HASH, NOON + timedelta(seconds=7), for_crawl=True), "r9"]
    assert later_than(NOON, there) == NOON + timedelta(seconds=8)


class TestWhichCounts:
    FIRST, SECOND = (version_name(HASH, NOON + timedelta(hours=hour)) for hour in (0, 1))
    CRAWL = version_name("f" * 12, NOON + timedelta(hours=2), for_crawl=True)

    @pytest.mark.parametrize(
        ("versions", "known", "chosen"),
        [
            ((), {}, None),
            ((CRAWL, FIRST, SECOND, "r9-main"), {}, SECOND),
            ((CRAWL, FIRST, "r9-main"), {"r9-main": AT + 1.0}, "r9-main"),
            ((CRAWL, FIRST, "r9-main"), {"r9-main": AT - 1.0}, FIRST),
            ((CRAWL, "r8-main", "r9-main"), {}, "r9-main"),
            ((OLD, CRAWL), {}, OLD),
            ((version_name(HASH, NOON, for_crawl=True), CRAWL), {}, CRAWL),
        ],
    )
    def test_the_newest_deployment_by_time(
        self, versions: tuple[str, ...], known: dict[str, float], chosen: str | None
    ) -> None:
        assert current(versions, known) == chosen

    def test_what_sorts_behind_it_is_told(self) -> None:
        assert behind((self.FIRST, self.SECOND)) == behind((self.CRAWL,)) == behind(()) == ""
        assert behind((self.SECOND, OLD.replace("0123", "9999"))) == f"the newer {self.SECOND}"
        assert behind((self.FIRST, "r9-main")) == f"{self.FIRST}, the newest one whose time is known"

    def test_oldest_first_and_what_tells_no_time_last(self) -> None:
        mixed = (self.CRAWL, self.SECOND, self.FIRST, "r10", "r9")
        assert by_time(mixed) == [self.FIRST, self.SECOND, self.CRAWL, "r10", "r9"]
        assert by_time(mixed, {"r9": AT - 1.0}) == ["r9", self.FIRST, self.SECOND, self.CRAWL, "r10"]
