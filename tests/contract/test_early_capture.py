"""What is taken at the spider's output is seen by Scrapy and by the project as if it had gone the usual way."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
#: a project's own middleware between the spider and the producer's
OWN = {"SPIDER_MIDDLEWARES": {"rig.found_pages.Seen": 500}}
#: where nothing is taken early, by itself
STEPS_ASIDE = (
    OWN,
    {"SPIDER_MIDDLEWARES": {"rig.found_pages.Failures": 50}},
    {"DEPTH_PRIORITY": 1},
    {"DEPTH_STATS_VERBOSE": True},
)
#: where it is
TAKES: tuple[dict[str, Any], ...] = (
    {},
    {"DEPTH_LIMIT": 2},
    {"REFERRER_POLICY": "same-origin"},
    {"REFERER_ENABLED": False},
    {"SPIDER_MIDDLEWARES": {"rig.found_pages.Seen": 50}},
    {"SPIDER_MIDDLEWARES": {"scrapy.spidermiddlewares.depth.DepthMiddleware": 750}},
)


@pytest.fixture(scope="module")
def seen() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What is seen of a crawl with each of the settings: with the early way, and without."""
    asked = [{**one, "early": early} for one in (*TAKES, *STEPS_ASIDE) for early in (True, False)]
    program = [sys.executable, "-W", "ignore", "-m", "rig.found_pages"]
    done = subprocess.run(
        program, input=json.dumps(asked), cwd=TESTS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    return list(zip(answers[::2], answers[1::2], strict=True))


@pytest.mark.parametrize("number", range(len(TAKES)), ids=map(str, TAKES))
def test_what_is_taken_early_is_seen_as_usual(number: int, seen: list[Any]) -> None:
    early, usual = seen[number]
    assert (early.pop("early"), usual.pop("early")) == (True, False)
    assert _sealed(usual) > 20
    assert early == usual


@pytest.mark.parametrize("number", range(len(STEPS_ASIDE)), ids=map(str, STEPS_ASIDE))
def test_it_steps_aside_by_itself(number: int, seen: list[Any]) -> None:
    early, usual = seen[len(TAKES) + number]
    assert not early["early"]
    assert early == usual


def _sealed(answer: dict[str, Any]) -> int:
    return sum(event[0] == "sealed" for event in answer["events"])
