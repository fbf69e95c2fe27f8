"""Nodes with other code than the crawl's, and nodes that refuse the password: no work until that is mended."""

import pytest
from rig.bad_days import IMPATIENT, ITEMS, attempts
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

CHANGED = """
    from properties.spiders.plain import PlainSpider


    class Own(PlainSpider):
        name = "changed"

        def parse_article(self, response):
            for item in super().parse_article(response):
                item["title"] = "{title}"
                yield item
"""


@pytest.mark.black_box
def test_a_node_with_older_code_gets_no_work_until_it_has_the_crawls(
    project: MakeProject, fleet: StartFleet, site: StartSite, run_cli: RunCommand
) -> None:
    """N9: uploading is switched off, and one of two nodes was left behind."""
    new, old = fleet(2, poll_interval=0.2)
    pages = site(12, per_page=12)
    ours = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 3, "DISTRIBUTED_DEPLOY": "never"}
    it = project(nodes=[new, old], settings=ours)
    it.spider("changed", CHANGED.format(title="old"))
    run_cli(it, "deploy-all", code=0)
    it.spider("changed", CHANGED.format(title="new"))
    run_cli(it, "deploy", new.name, code=0)
    line = ("crawl", "changed", "--callback", "parse_article", "-O", ITEMS, "--json")
    first = run_cli(it, *line, code=0)
    titles = [item["title"] for item in it.items(ITEMS)]
    assert titles == ["new"] * 12, "old and new code were mixed"
    assert {attempt.node for attempt in attempts(it)} == {new.name}
    (named,) = [node for node in first.json()["nodes"] if node["name"] == old.name]
    assert (named["state"], named["jobs"]) == ("unfit", 0)
    assert first.json()["version"] in named["reason"], "which version it lacks"
    assert f"{old.name} has the version" in run_cli(it, "status", first.json()["crawl"]).out

    run_cli(it, "deploy-all", "--only-missing", code=0)
    second = run_cli(it, *line, code=0)
    assert {node["name"]: node["state"] for node in second.json()["nodes"]} == {new.name: "up", old.name: "up"}
    assert {attempt.node for attempt in attempts(it)} == {new.name, old.name}
    assert second.json()["version"] == first.json()["version"]
    assert [item["title"] for item in it.items(ITEMS)] == titles


@pytest.mark.black_box
def test_a_fleet_that_refuses_as_one_stops_it(project: MakeProject, fleet: StartFleet, run_cli: RunCommand) -> None:
    (locked,) = fleet(1, username="me", password="right")
    section = f"[deploy:web2]\nurl = {locked.url}\nproject = properties\nusername = me\npassword = ${{WEB2_PASSWORD}}\n"
    it = project(settings=QUICK, extra=section)
    for command in ("plan", "crawl"):
        done = run_cli(it, command, "easy", code=6)
        assert "WEB2_PASSWORD" in done.err
        assert "[deploy:web2]" in done.err
