"""A node that refuses the password is as one that is down: told, left out, and used as soon as it lets the crawl in."""

import pytest
from rig.bad_days import wait_accepted
from rig.crawls import QUICK, last_crawl, said
from rig.fixtures import MakeProject, RunCommand, StartCommand, StartFleet, StartSite

pytestmark = pytest.mark.black_box

LOCKED = "[deploy:web2]\nurl = {url}\nproject = properties\nusername = me\npassword = {password}\n"


def test_the_crawl_runs_on_the_others_until_the_password_is_mended(
    project: MakeProject, fleet: StartFleet, site: StartSite, run_cli: RunCommand, start_cli: StartCommand
) -> None:
    open_node, pages = fleet(1)[0], site(300, "--latency=0.3", per_page=100)
    locked = fleet(1, username="me", password="right")[0]
    it = project(settings={**QUICK, "DISTRIBUTED_BATCH_SIZE": 10, "START_URL": pages.start_url})
    it.targets([open_node], LOCKED.format(url=locked.url, password="$WEB2_PASSWORD"))
    plan = run_cli(it, "plan", "easy", "--json")
    assert plan.code == 0, said(plan)
    told = [text for text in plan.json()["warnings"] if "WEB2_PASSWORD" in text]
    assert told
    for word in ("web2", "not set in this environment", "goes on without it"):
        assert word in told[0]
    assert "Set `username`" not in told[0]

    command = start_cli(it, "crawl", "easy", "-o", "items.jl", "--json")
    wait_accepted(it)
    it.targets([open_node], LOCKED.format(url=locked.url, password="right"))
    wait_accepted(it, node="web2")
    done = command.wait(180)
    assert done.code == 0, said(done)
    assert pages.differences(it.items("items.jl")) == {}
    assert any("WEB2_PASSWORD" in text for text in last_crawl(it).summary["warnings"])


def test_a_fleet_that_refuses_as_one_stops_it(project: MakeProject, fleet: StartFleet, run_cli: RunCommand) -> None:
    locked = fleet(1, username="me", password="right")[0]
    it = project(settings=QUICK, extra=LOCKED.format(url=locked.url, password="${WEB2_PASSWORD}"))
    for command in ("plan", "crawl"):
        done = run_cli(it, command, "easy")
        assert done.code == 6, said(done)
        assert "WEB2_PASSWORD" in done.err
        assert "[deploy:web2]" in done.err
