"""`sdist throttle` on a real store: what each command changes, what it leaves alone, and what is shown."""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from rig.commands import Result
from scrapyd_dist.cli.options import domains

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.fleet.throttled_domains import ThrottledDomain
from scrapyd_dist.store import open_store
from scrapyd_dist.throttle.permits import ALL, DomainState, Limit, PermitRequest, Rule, SiteNews

NOTICE = " Running crawls heed it within 2 seconds."
Run = Callable[..., Result]
FILE = "domains:\n  a.com: {hits: 10, window: 60}\nblacklist: [b.com]\n"


@pytest.fixture
def sdist(sdist: Run, root: Path) -> Run:
    """`sdist("show")`: exit code, standard output, standard error of `sdist throttle show`."""
    (root / "limits.yml").write_text(FILE, "utf-8")
    return partial(sdist, "throttle")


def rules(root: Path) -> Mapping[str, Rule]:
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        return store.rules().rules


def shown(sdist: Run, *domains: str) -> Any:
    return sdist("show", *domains, "--json").json()


def test_a_limit_is_set_changed_in_part_and_removed(sdist: Run, root: Path) -> None:
    assert sdist("set", "Example.com", "--hits", 60, "--window", 60)[0] == 0
    sdist("set", "example.com", "--scale", 0.5).expect(0, "example.com: 60 in 60 s, scaled 0.5")
    sdist("set", "example.com", "--block")
    sdist("set", "example.com", "--hits", 120).expect(
        0, "It is blocked, though; `sdist throttle set example.com --unblock` ends that."
    )
    assert rules(root) == {"example.com": Rule(hits=120, window=60.0, scale=0.5, blocked=True)}
    sdist("set", "example.com", "other.com", "--unset").expect(
        0, "No limit of its own any more: example.com.", "Had no limit of its own: other.com."
    )
    assert rules(root) == {"example.com": Rule(blocked=True)}
    sdist("set", "example.com", "--unblock")
    assert rules(root) == {}
    assert (
        "That leaves it none: it rests."
        in sdist("set", "a.com", "--hits", 5, "--window", 1, "--scale", 0.1).err
    )
    assert shown(sdist)["domains"][0]["state"] == "paused"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("set", "a.com"), "Nothing to set"),
        (("set", "a.com", "--hits", 5), "say both --hits N and --window SECONDS"),
        (("set", "a.com", "--scale", 0), "sdist throttle pause"),
        (("set", "a.com", "--hits", 0, "--window", 1), "'--hits': it is '0', and must be 1 or more"),
        (("set", "a.com", "--hits", 1, "--window", "nan"), "'--window': it is 'nan', and must be a number"),
        (("set", "a.com", "--hits", 1, "--window", 1, "--scale", 1.5), "'--scale': it is '1.5', and must be 1 or less"),
        (("set", "a.com", "--hits", "x", "--window", 1), "--hits"),
        (("set", "www.a.com", "--hits", 1, "--window", 1), "name a.com"),
        (("set", "a.com", "http://b.com/", "--block"), "name the domain alone, b.com"),
        (("set", ALL, "--block"), "sdist throttle pause"),
        (("set", "a.com", "--block", "--unset"), "--block, --unset: that is more than one change"),
        (("set", "a.com", "--hits", 5, "--window", 1, "--unblock"), "--unblock, --hits --window: that is more"),
        (("set", "a.com", "b.com", "--hits", 5), "a.com has no limit of its own yet"),
        (("pause", "co.uk"), "such as example.co.uk"),
        (("apply", "limits.yml", "--dry-run", "--now"), "--now"),
    ],
)  # fmt: skip
def test_a_mistake_changes_nothing(
    sdist: Run, root: Path, arguments: tuple[object, ...], part: str
) -> None:
    assert sdist(*arguments).expect(2, part).out == ""
    assert not (root / ".sdist" / "store.db").exists() or rules(root) == {}


def test_blocking_and_pausing_are_said_twice_without_harm(sdist: Run, root: Path) -> None:
    assert "Blocked: a.com, b.com." in sdist("set", "a.com", "b.com", "a.com", "--block")[2]
    assert sdist("set", "b.com", "--block")[2] == "Was blocked already: b.com.\n"
    assert "Paused: all domains." in sdist("pause")[2]
    assert "Paused: b.com." in sdist("pause", "b.com")[2]
    both = {"a.com": Rule(blocked=True), "b.com": Rule(blocked=True, paused=True)}
    assert rules(root) == {**both, ALL: Rule(paused=True)}
    sdist("resume").expect(0, "Resumed: all domains.", "Still paused: b.com.")
    assert "Was not paused: c.com." in sdist("resume", "b.com", "c.com")[2]
    assert "Unblocked: a.com, b.com." in sdist("set", "a.com", "b.com", "--unblock")[2]
    assert rules(root) == {}


def test_several_domains_get_one_limit_and_each_is_named(sdist: Run, root: Path) -> None:
    sdist("set", "b.com", "--block")
    said = sdist("set", "a.com", "b.com", "a.com", "--hits", 5, "--window", 1).expect(0).err
    assert said.splitlines() == [
        "a.com: 5 in 1 s.",
        "b.com: 5 in 1 s. It is blocked, though; `sdist throttle set b.com --unblock` ends that."
        + NOTICE,
    ]
    five = Rule(hits=5, window=1.0)
    assert rules(root) == {"a.com": five, "b.com": replace(five, blocked=True)}


def test_a_file_is_applied_as_a_whole_and_shown_before(sdist: Run, root: Path) -> None:
    sdist("set", "gone.com", "--hits", 1, "--window", 1)
    sdist("pause", "a.com")
    before = rules(root)
    told = sdist("apply", "limits.yml", "--dry-run").expect(10).err
    assert told.splitlines() == [
        "new: b.com", "changed: a.com", "removed: gone.com",
        "Nothing was changed; without --dry-run the rules would be those of limits.yml.",
    ]  # fmt: skip
    assert rules(root) == before
    code, out, _ = sdist("apply", "limits.yml", "--json")
    document = json.loads(out)
    assert (code, document["dry_run"], document["version"]) == (0, False, shown(sdist)["version"])
    was = {"hits": 1, "window": 1.0, "scale": 1.0, "blocked": False, "paused": False}
    assert {row["domain"]: (row["was"], row["is"]) for row in document["changes"]}["gone.com"] == (
        was,
        None,
    )
    assert rules(root) == {
        "a.com": Rule(hits=10, window=60.0, paused=True),
        "b.com": Rule(blocked=True),
    }
    assert sdist("apply", "limits.yml", "--dry-run")[0] == 0
    assert "are those of limits.yml already" in sdist("apply", "limits.yml")[2]


def test_a_bad_file_is_refused_whole_with_its_lines(sdist: Run, root: Path) -> None:
    sdist("apply", "limits.yml")
    before = rules(root)
    (root / "limits.yml").write_text(
        "domains:\n  c.com: {hits: 1, window: 1}\n  d.com: {hits: 1}\n", "utf-8"
    )
    sdist("apply", "limits.yml").expect(2, "limits.yml:3: d.com: window is missing")
    assert sdist("apply", "none.yml")[0] == 4
    assert sdist("apply", ".")[0] == 2
    assert rules(root) == before


def test_a_file_comes_through_standard_input(
    sdist: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "wrong.yml").write_text("no", "utf-8")
    with (root / "limits.yml").open() as right, (root / "wrong.yml").open() as wrong:
        monkeypatch.setattr("sys.stdin", right)
        assert sdist("apply", "-")[0] == 0
        assert [domain for domain, _ in domains()] == ["a.com", "b.com"], "TAB offers them"
        monkeypatch.setattr("sys.stdin", wrong)
        assert "standard input:1: expected" in sdist("apply", "-")[2]


def test_looking_makes_no_store(sdist: Run, root: Path) -> None:
    assert "No domain has a limit" in sdist("show").err
    assert sdist("apply", "limits.yml", "--dry-run").code == 10
    assert sdist("show", "a.com").code == 4
    assert not (root / ".sdist" / "store.db").exists()


def test_rules_and_what_was_granted_are_shown(sdist: Run, root: Path) -> None:
    sdist("apply", "limits.yml")
    sdist("set", ALL, "--hits", 100, "--window", 600)
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.take_permits([
            PermitRequest(key="a.com", domain="a.com", count=3, pages=5, budget="one"),
            PermitRequest(key="news|c.com", domain="c.com", limit=Limit(hits=1, window=1.0)),
        ])  # fmt: skip
        store.tell_sites([SiteNews(domain="c.com", refused_at=0.0, retry_after=90.0)])
    document = shown(sdist)
    by_name = {row["domain"]: row for row in document["domains"]}
    assert list(by_name) == [ALL, "a.com", "b.com", "c.com"]
    a, c = by_name["a.com"], by_name["c.com"]
    assert (a["limit"], a["state"], a["granted"]) == (
        {"hits": 10, "window": 60.0, "scale": 1.0},
        "open",
        1,
    )
    assert (a["keys"], a["pages"]) == ({"a.com": 1}, {"one": 3})
    assert 0.0 < a["latest_in"] <= 12.0
    assert (by_name["b.com"]["state"], by_name["b.com"]["limit"]) == ("blocked", None)
    assert (c["state"], c["keys"]) == ("resting", {"news|c.com": 1})
    assert 80 < c["rests_for"] <= 90
    assert document["totals"] == {
        "domains": 3, "limited": 1, "open": 1, "blocked": 1, "paused": 0, "resting": 1, "slowed": 1, "granted": 2,
    }  # fmt: skip
    _, out, told = sdist("show", "c.com", "a.com")
    heading, first, second = out.splitlines()
    assert heading.split() == [
        "DOMAIN",
        "LIMIT",
        "STATE",
        "GRANTED",
        "LATEST",
        "SLOWER",
        "BY",
        "PAGES",
    ]
    assert first.startswith("c.com   100 in 600 s (*)  resting  1")
    assert "3 of one" in second
    assert told.startswith("2 domains, 1 limited")
    assert sdist("show", "d.com")[0] == 4


@pytest.mark.parametrize(
    ("rule", "common", "rest", "word"),
    [
        (Rule(), Rule(), 0.0, "open"),
        (Rule(blocked=True, paused=True), Rule(), 0.0, "blocked"),
        (Rule(paused=True), Rule(), 5.0, "paused"),
        (Rule(hits=1, window=1.0), Rule(paused=True), 0.0, "paused"),
        (Rule(hits=5, window=1.0, scale=0.1), Rule(), 0.0, "paused"),
        (Rule(hits=100, window=1.0, scale=0.01), Rule(), 0.0, "open"),
        (Rule(hits=1, window=1.0), Rule(hits=5, window=1.0, scale=0.0), 0.0, "open"),
        (Rule(), Rule(), 5.0, "resting"),
        (Rule(), Rule(), -5.0, "open"),
    ],
)
def test_one_word_says_how_a_domain_stands(
    rule: Rule, common: Rule, rest: float, word: str
) -> None:
    state = DomainState(domain="a.com", now=100.0, rest_until=100.0 + rest)
    assert (
        ThrottledDomain(domain="a.com", rules={"a.com": rule, ALL: common}, state=state).word
        == word
    )


def running(root: Path, name: str, **throttle: Any) -> None:
    """A crawl that this process works on."""
    row = Crawl(id=name, project="shop", spider="s", created=time.time())
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.add_crawl(row)
        mine = {"pid": os.getpid(), "host": gethostname(), "beat": time.time()}
        store.update_crawl(
            name, state=CrawlState.WORKING, summary={"crawl": name, **throttle}, **mine
        )


def test_crawls_that_run_and_do_not_heed_the_rules_are_named_with_the_reason(
    sdist: Run, root: Path
) -> None:
    sdist("set", "a.com", "--hits", 10, "--window", 60)
    heeds: dict[str, Any] = {"heeded": True, "reason": "", "nodes": {}}
    running(root, "good", throttle=heeds)
    _, _, told = sdist("pause")
    assert told == "Paused: all domains. Running crawls heed it within 2 seconds.\n"
    running(
        root, "out", throttle={**heeds, "heeded": False, "reason": "DISTRIBUTED_THROTTLE is False."}
    )
    running(
        root,
        "far",
        throttle={
            **heeds,
            "heeded": False,
            "nodes": {"web1": "the store is a file of this machine"},
        },
    )
    resumed = sdist("resume").expect(
        0, "but for these:", "out does not: DISTRIBUTED_THROTTLE is False.",
        "far does not on web1: the store is a file of this machine.",
    )  # fmt: skip
    assert "good" not in resumed.err
    assert {one["crawl"]: one["heeded"] for one in shown(sdist)["crawls"]} == {
        "good": True, "out": False, "far": False,
    }  # fmt: skip
    sdist("show").expect(0, "good heeds the rules in all of its processes.")
