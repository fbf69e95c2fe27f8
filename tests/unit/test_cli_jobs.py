"""Nodes and plain jobs as commands see them: states, drift, drains; how jobs ended, and arguments."""

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from scrapyd_dist.cli.context import Context
from scrapyd_dist.cli.jobs.logs import _of_newest_crawl
from scrapyd_dist.cli.jobs.schedule import (
    _job_queue,
    _queue_runner,
    _show_table,
    _work_off,
    split_arguments,
)
from scrapyd_dist.cli.nodes.node_commands import describe_skew
from scrapyd_dist.cli.output import Output

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.jobs.job_list import JobFilter, JobList
from scrapyd_dist.jobs.job_site import JobSite
from scrapyd_dist.jobs.log_streams import LogFilter, LogSource
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import open_store
from scrapyd_dist.transports.event_hook import EventHook
from scrapyd_dist.transports.requests import RequestsTransport

NODE = Node.parse("http://me:hush@web1:6800", name="web1")
NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
OLD, NEW = "1793491200-187649984473770", "1793577600-206414982921147"


def test_a_clock_is_told_of_when_it_is_wrong() -> None:
    assert [describe_skew(skew) for skew in (None, 0.4, -1.9, 2.0, -3600.2)] == [
        "",
        "",
        "",
        "+2 s",
        "-3600 s",
    ]


def test_jobs_that_were_removed_while_their_command_waited_have_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    hook = EventHook(target="", option="--on-finish", event="the end of the jobs")
    with closing(Context(tmp_path)) as context:
        runner = _queue_runner(context, _job_queue(context), ["easy-1"], "shop", 1.0)
        assert _work_off(runner, [], hook, Output(as_json=True)) == 1
    assert "easy-1" in capsys.readouterr().err


def test_the_id_of_a_job_that_has_ended_is_never_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    row = {"node": "m1", "spider": "toys", "job": f"toys-{'1' * 50}", "state": "failed"}
    row |= {"reason": "KeyError: 'x'"}
    _show_table({}, ("node", "spider", "job", "state"), [row], Output())
    assert row["job"] in capsys.readouterr().out


def test_without_a_crawl_the_logs_of_a_job_are_named(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db")) as store:
        site = JobSite(root=tmp_path, sender=RequestsTransport(), find_store=lambda: store)
        source = LogSource(site=site, wanted=JobFilter(nodes=()), names=(), keep=LogFilter())
        with pytest.raises(NothingMatched, match="`sdist logs JOB`"):
            _of_newest_crawl(source, JobList(jobs=(), failed={}, asked=1))


def test_an_argument_may_be_a_setting_as_for_scrapyd_client() -> None:
    args, settings = split_arguments(
        ["a=1", "setting=LOG_LEVEL=INFO", "settings2=x"], ["LOG_LEVEL=DEBUG", "X=Y=Z"]
    )
    assert args == {"a": "1", "settings2": "x"}
    assert settings == {"LOG_LEVEL": "DEBUG", "X": "Y=Z"}
    with pytest.raises(ConfigError, match="the version of --version NAME"):
        split_arguments(["_version=r2"], [])
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        split_arguments(["setting=LOG_LEVEL"], [])
    with pytest.raises(ConfigError, match="DISTRIBUTED_JOB_TIMEOUT"):
        split_arguments(["setting=DISTRIBUTED_JOB_TIMEOUT=soon"], [])
