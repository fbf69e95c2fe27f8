"""What every job of a crawl is given."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rig.nodemodel import ModelSender, model

from scrapyd_dist.batches import Batch, WorkerEntry
from scrapyd_dist.errors import ConfigError, NoReply
from scrapyd_dist.frontier.backlog import WorkerRequest
from scrapyd_dist.frontier.packing import pack
from scrapyd_dist.frontier.worklists import intake_of, value_of
from scrapyd_dist.nodes import Node
from scrapyd_dist.payload import START_URLS
from scrapyd_dist.scheduling.job_request import JobRequest, call_for, call_for_introduction
from scrapyd_dist.scheduling.liveness import Liveness
from scrapyd_dist.scheduling.node_client import NodeClient, last_error
from scrapyd_dist.scheduling.node_state import JobRun, NodeState, WorkerRun
from scrapyd_dist.scrapyd.api import Chunk
from scrapyd_dist.scrapyd.jobs import check_args
from scrapyd_dist.store.reach import Way

SPEC = JobRequest(
    crawl="c", home="c.0", project="p", spider="s", version="v1", settings={"LOG_LEVEL": "INFO"}, args={"a": "1"},
    collected=("old.0",),
)  # fmt: skip


def out_on(node: Node, **fields: Any) -> JobRun:
    member = NodeState(node=node, liveness=Liveness(**fields))
    return JobRun(
        batch=Batch(number=7, size=2),
        number=3,
        job="c.b7.a3",
        member=member,
        since=0.0,
        start_by=1000.0,
    )


def posted(
    spec: JobRequest = SPEC,
    node: Node | None = None,
    told: Mapping[str, str] | None = None,
    **fields: Any,
) -> tuple[dict[str, str], dict[str, str]]:
    """The form fields of the post, and its settings."""
    call = call_for(
        spec, out_on(node or Node.parse("one"), **fields), {START_URLS: '["u"]'}, told or {}
    )
    assert (call.path, call.method) == ("schedule.json", "POST")
    settings_ = dict(value.split("=", 1) for name, value in call.data if name == "setting")
    return {name: value for name, value in call.data if name != "setting"}, settings_


def test_a_job_has_its_id_its_version_and_the_number_of_its_batch() -> None:
    fields, settings_ = posted(replace(SPEC, lease=30.0), told={"store": "/s.db"})
    assert fields == {"project": "p", "spider": "s", "jobid": "c.b7.a3", "_version": "v1", "a": "1"}
    assert settings_.keys() == {"LOG_LEVEL", START_URLS, "DISTRIBUTED_JOB"}
    told = json.loads(settings_["DISTRIBUTED_JOB"])
    assert told == {
        "crawl": "c", "home": "c.0", "batch": 7, "attempt": 3, "start_by": 1000.0, "feed": False,
        "collected": ["old.0"], "version": "v1", "lease": 30.0, "store": "/s.db",
    }  # fmt: skip


def test_a_long_row_of_arguments_fits_into_a_job() -> None:
    (batch,) = pack([intake_of(value_of({"word": "\u0436" * 60_000}), 0)], size=1, key=None)
    call = call_for(replace(SPEC, rows=True), out_on(Node.parse("one")), batch.payload, {})
    assert dict(call.data)["word"] == "\u0436" * 60_000


def test_the_latest_start_and_the_project_are_those_of_the_node() -> None:
    fields, settings_ = posted(node=Node.parse("one", project="other"), skew=-250.04)
    assert fields["project"] == "other"
    assert json.loads(settings_["DISTRIBUTED_JOB"])["start_by"] == 750.0


def test_settings_of_ours_win_over_those_of_the_crawl() -> None:
    fields, settings_ = posted(
        replace(SPEC, version=None, settings={START_URLS: "x", "DISTRIBUTED_JOB": "y"})
    )
    assert settings_[START_URLS] == '["u"]'
    assert settings_["DISTRIBUTED_JOB"] != "y"
    assert "_version" not in fields


@pytest.mark.parametrize(
    "name",
    ["project", "spider", "jobid", "_version", "setting", "name", "self", "_job", "priority"],
)
def test_argument_names_that_are_taken_are_refused_before_the_start(name: str) -> None:
    check_args({"a": "=", "Batch": "1", "batch": "1"})
    with pytest.raises(ConfigError, match=f"argument '{name}'"):
        check_args({"fine": "1", name: "2"})


@pytest.mark.parametrize("value", ["\udcff", "a\0b"], ids=["half of a surrogate pair", "NUL"])
def test_an_argument_that_no_job_can_be_given_is_refused_before_the_start(value: str) -> None:
    with pytest.raises(ConfigError, match="The value of 'word'"):
        check_args({"word": value})


def told(log: str) -> str:
    return last_error(Chunk(body=log.encode("utf-8", "replace"), start=0, total=None, date=None))


def test_the_last_error_of_a_log_is_what_is_told() -> None:
    log = (
        "2026-11-20 12:00:00 [scrapy] INFO: begins\n"
        "2026-11-20 12:00:01 [scrapy] ERROR: first\n"
        "2026-11-20 12:00:02 [twisted] CRITICAL: last\nTraceback\nImportError: no x\n"
        "2026-11-20 12:00:03 [scrapy] INFO: ends\n"
    )
    assert told(log) == "; the last error in its log: last … ImportError: no x"
    assert told("a\nb\n\n") == "; the last line of its log: b"
    assert told("\n") == "; its log is empty"


def test_an_error_that_was_not_handled_is_told_by_its_traceback() -> None:
    """As Scrapy 2.13 logs it: a record that only announces it, and one that is nothing but the traceback."""
    head = "2026-11-20 12:00:02 [twisted] CRITICAL: "
    log = f"{head}Unhandled error in Deferred:\n{head}\nTraceback (most recent call last):\nRuntimeError: no licence\n"
    assert told(log) == "; the last error in its log: RuntimeError: no licence"


@settings(max_examples=50)
@given(st.text())
def test_whatever_a_log_says_is_told_in_few_words(text: str) -> None:
    assert len(told(text)) < 700


@pytest.mark.parametrize(
    ("log", "down", "words"),
    [(b"\xff end\n", False, "end"), (None, False, "it wrote no log"), (b"x", True, "")],
)
async def test_a_log_is_asked_for_and_nothing_hangs_on_it(
    log: bytes | None, down: bool, words: str
) -> None:
    node = model("one")
    if log is not None:
        node.files["logs/p/s/c.b7.a3.log"] = log
    node.down = NoReply if down else None
    found = await NodeClient(spec=SPEC, sender=ModelSender([node]), timeout=1.0).last_words(
        out_on(node.node)
    )
    assert found.text.endswith(words)
    assert bool(found.text) is bool(words)
    assert not found.was_told_to_end


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("", {"needs_client": False}),
        ("redis", {"needs_client": True}),  # as code of every version knows it
        ("psycopg", {"needs_client": True, "client": "psycopg"}),
    ],
)
def test_an_introduction_says_which_client_the_store_needs(
    client: str, told: dict[str, Any]
) -> None:
    member = NodeState(node=Node.parse("one"))
    entry = WorkerEntry(number=1, job="c.w1.a1", url=member.node.url, pool="x", since=0.0)
    worker = WorkerRun.of_entry(entry, member, start_by=9.0)
    way = Way(job_settings={"store": "x"}, client=client)
    call = call_for_introduction(SPEC, worker, WorkerRequest(), way)
    texts = dict(value.split("=", 1) for name, value in call.data if name == "setting")
    pull = json.loads(texts["DISTRIBUTED_PULL"])
    assert {name: pull[name] for name in pull if "client" in name} == told
    assert "store" not in pull
