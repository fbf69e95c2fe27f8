"""What a plan says of the load on a site, with rules of the throttle and without."""

from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer import dry_run

from scrapyd_dist.batches import Shard
from scrapyd_dist.nodes import Node
from scrapyd_dist.throttle.permits import ALL, Rule

FIVE = Rule(hits=5, window=1.0)
NODES = [{"url": "http://web1:6800", "slots": 2}]
OPEN = "The site sees up to 2 jobs x 8 = 16 requests at the same time. --max-jobs N lowers it."


@pytest.mark.parametrize(
    ("rules", "heeded", "told"),
    [
        ({}, True, [OPEN]),
        ({"a.com": FIVE}, True, ["a.com sees at most 5 requests in 1 s"]),
        ({"a.com": FIVE}, False, [OPEN]),
        ({"b.com": FIVE}, True, [OPEN]),
        ({ALL: FIVE, "a.com": Rule(hits=9, window=2.0, scale=0.5)}, True, ["4 requests in 2 s"]),
        ({ALL: FIVE, "a.com": Rule()}, True, ["a.com sees at most 5 requests in 1 s"]),
        ({"a.com": Rule(paused=True)}, True, ["a.com sees no request for now"]),
    ],
)
def test_the_load_on_a_site_is_what_its_rule_allows(
    rules: dict[str, Rule], heeded: bool, told: list[str]
) -> None:
    stored = MagicMock(rules=rules, throttle={"heeded": heeded})
    checked = MagicMock(shards=[Shard(number=0, url="http://www.a.com/1")])
    in_force = dry_run._rules_in_force(stored, checked, Spider("easy"))
    settings = Settings({"CONCURRENT_REQUESTS_PER_DOMAIN": 8, "DOWNLOAD_DELAY": 0})
    options = MagicMock(leases=False)
    options.limits.max_jobs = 0
    warnings = dry_run._load_warnings(settings, options, NODES, in_force)
    assert len(warnings) == len(told)
    assert all(words in warning for words, warning in zip(told, warnings, strict=True))


@pytest.mark.parametrize(("second", "name"), [("shop", "shop"), (None, "shopbot")])
def test_the_project_of_a_plan_is_the_one_that_its_jobs_use(second: str | None, name: str) -> None:
    request = MagicMock()
    request.project.name = "shopbot"
    probes = []
    for host, project in (("web1", "shop"), ("web2", second)):
        probes.append(MagicMock(asked=replace(Node.parse(host), project=project)))
    assert dry_run._used_project(request, MagicMock(probes=probes)) == name
