"""`sdist crawls clean`: what is named or old goes, whole; what runs stays; and it asks before."""

import os
import sqlite3
import time
from contextlib import closing
from typing import Any

from rig.crawls import store_of
from rig.fixtures import MakeProject, RunCommand
from rig.projects import Project

from scrapyd_dist.batches import Crawl, CrawlState, home_of
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.throttle.permits import Limit, PermitRequest

DAY = 86400.0


def keep(it: Project, name: str, **fields: Any) -> None:
    """A crawl as one that ended a moment ago has left it."""
    values: dict[str, Any] = {
        "state": CrawlState.FINISHED,
        "created": time.time(),
        "ended": time.time(),
        **fields,
    }
    with closing(store_of(it)) as store:
        store.add_crawl(Crawl(id=name, project="p", spider="easy", **values))
        store.seal(name, NewBatch(payload={"A": "1"}, size=1), [b"1"], {"sealed": 1})
    folder = it.path / ".sdist" / "crawls" / name / "parts"
    folder.mkdir(parents=True)
    (folder / "1.jl").write_text("{}\n" * 1000, "utf-8")


def left(it: Project) -> tuple[list[str], list[str]]:
    """The crawls in the store, and those that have a folder."""
    with closing(store_of(it)) as store:
        names = sorted(crawl.id for crawl in store.crawls())
    return names, sorted(path.name for path in (it.path / ".sdist" / "crawls").iterdir())


def limited(it: Project) -> list[str]:
    """The domains that the throttle knows something of."""
    with closing(store_of(it)) as store:
        return [one.domain for one in store.domain_states()]


def test_the_pages_that_a_crawl_has_counted_go_with_it_and_those_of_others_stay(
    project: MakeProject, run_cli: RunCommand
) -> None:
    it = project()
    keep(it, "a")
    keep(it, "b")
    with closing(store_of(it)) as store:
        homes = [home_of(name, store.crawl(name).created) for name in ("a", "b")]
        for budget in [*homes, "a"]:
            store.take_permits([PermitRequest(key="x.com", domain="x.com", pages=9, budget=budget)])
    assert run_cli(it, "crawls", "clean", "a", "--yes").code == 0
    with closing(store_of(it)) as store:
        assert store.domain_states()[0].pages == {homes[1]: 1}


def test_it_removes_what_was_named_or_is_old_and_nothing_that_runs(
    project: MakeProject, run_cli: RunCommand
) -> None:
    it = project()
    run_cli(it, "crawls", "clean", "a", "--yes").expect(4, "no crawls")
    keep(it, "a")
    keep(it, "old", created=time.time() - 40 * DAY, ended=time.time() - 31 * DAY)
    keep(
        it,
        "died",
        created=time.time() - 40 * DAY,
        state=CrawlState.WORKING,
        ended=None,
        pid=1,
        beat=1.0,
    )
    runs: dict[str, Any] = {
        "state": CrawlState.WORKING,
        "ended": None,
        "pid": os.getpid(),
        "beat": time.time(),
    }
    keep(it, "runs", created=time.time() - 40 * DAY, **runs)
    everything = (["a", "died", "old", "runs"],) * 2
    with closing(store_of(it)) as store:
        for name in ("new.com", "old.com"):
            store.take_permits(
                [PermitRequest(key=name, domain=name, limit=Limit(hits=1, window=1.0))]
            )
    with closing(sqlite3.connect(it.path / ".sdist" / "store.db")) as database, database:
        long_ago = (time.time() - 100 * DAY) * 1e6
        database.execute(
            "UPDATE throttle_domains SET asked = ? WHERE domain = 'old.com'", (long_ago,)
        )
        database.execute("DELETE FROM grants")

    assert run_cli(it, "crawls", "clean", "--yes").code == 2
    assert run_cli(it, "crawls", "clean", "a", "--older-than", "1d", "--yes").code == 2
    run_cli(it, "crawls", "clean", "a", "nobody", "--yes").expect(4, "nobody")
    run_cli(it, "crawls", "clean", "a", "runs", "--yes").expect(2, "sdist watch runs")
    run_cli(it, "crawls", "clean", "a").expect(2, "--yes")
    dry = run_cli(it, "crawls", "clean", "--older-than", "30d", "--dry-run", "--json", code=10)
    assert {line["crawl"]: line["state"] for line in dry.json()["removed"]} == {
        "old": "finished",
        "died": "working",
    }
    assert (left(it), limited(it)) == (everything, ["new.com", "old.com"])

    cleaned = run_cli(it, "crawls", "clean", "--older-than", "30d", "--yes", "--json", code=0)
    assert {line["crawl"]: line["bytes"] for line in cleaned.json()["removed"]} == {
        "old": 3000,
        "died": 3000,
    }
    assert (left(it), limited(it)) == ((["a", "runs"], ["a", "runs"]), ["new.com"])
    nothing = "Nothing to remove: no crawl ended more than 30d ago."
    run_cli(it, "crawls", "clean", "--older-than", "30d", "--dry-run").expect(0, nothing)
    for zero in ("0", "0s"):
        run_cli(it, "crawls", "clean", "--older-than", zero, "--dry-run").expect(
            10, "Would remove a"
        )
    assert run_cli(it, "crawls", "clean", "no-such-crawl", "--yes").code == 4
    assert run_cli(it, "crawls", "clean", "a", "--yes").code == 0
    assert left(it) == (["runs"], ["runs"])
