"""Work that is asked for over HTTP: what a request may say, and what the commands make of it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rig.web_pages import write_targets
from scrapyd_dist.cli.crawls import producer_process
from scrapyd_dist.cli.web_actions import _OF_CRAWL, _OF_JOBS, WebActions, _check

from scrapyd_dist.errors import ConfigError, NoNodeReachable


class Ended:
    """A process that is over."""

    pid = 77

    def wait(self) -> int:
        return 0


@pytest.fixture
def actions(root: Path, monkeypatch: pytest.MonkeyPatch) -> WebActions:
    write_targets(root, ["web1"])
    monkeypatch.setattr(producer_process, "spawn", lambda *_: Ended())
    return WebActions(root=root)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"spider": ""},
        {"spider": 7},
        {"spider": "easy", "args": ["a=b"]},
        {"spider": "easy", "args": {"a": 1}},
        {"spider": "easy", "labels": "night=1"},
        {"spider": "easy", "version_": "1"},
        {"spider": "easy", "labels": ["a,b"]},
        {"spider": "easy", "settings": {"DISTRIBUTED_BATCH_SIZE": "many"}},
    ],
)
def test_a_request_that_says_something_else_is_refused(
    actions: WebActions, asked: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        actions.start_jobs(asked)
    if "BATCH_SIZE" not in str(asked):  # which is judged by the crawl's own process
        with pytest.raises(ConfigError):
            actions.start_crawl(asked)


def test_a_crawl_is_written_down_and_begun(actions: WebActions) -> None:
    from contextlib import closing

    from scrapyd_dist.fleet.workspace import Workspace

    asked = {
        "spider": "easy", "name": "c1", "args": {"start": "http://a/?b=c"}, "settings": {"LOG_LEVEL": "INFO"},
        "overwrite_output": ["items.jl"], "labels": ["by=web"],
    }  # fmt: skip
    assert actions.start_crawl(asked) == {
        "crawl": "c1",
        "spider": "easy",
        "state": "starting",
        "pid": 77,
    }
    with closing(Workspace(actions.root)) as workspace:
        row = workspace.store.own_crawl("c1")
    assert row.options["args"] == {"start": "http://a/?b=c"}
    assert row.options["spider_settings"] == {"LOG_LEVEL": "INFO"}
    (output,) = row.options["settings"]["DISTRIBUTED_OUTPUTS"]
    assert (Path(output["path"]).name, output["overwrite"]) == ("items.jl", True)
    with pytest.raises(ConfigError, match="already"):
        actions.start_crawl(asked)
    with pytest.raises(ConfigError, match="SDIST_STORE"):
        actions.start_crawl({"spider": "easy", "settings": {"DISTRIBUTED_STORE": "redis://x"}})


def test_jobs_are_not_started_where_no_node_answers(actions: WebActions) -> None:
    with pytest.raises(NoNodeReachable):
        actions.start_jobs({"spider": "easy"})


def test_the_manual_shows_all_that_a_request_may_have() -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "web-page.md"
    blocks = re.findall(r"```json\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    for block, kinds in zip(blocks, (_OF_JOBS, _OF_CRAWL), strict=True):
        asked = json.loads(block)
        assert asked.keys() == kinds.keys()
        _check(asked, kinds)
