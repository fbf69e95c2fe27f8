"""Whatever a node answers is a value that the rest can work with, or an error of that node: never one of ours."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rig.memory import peak_memory

from scrapyd_dist.errors import ApiRefused, NodeError
from scrapyd_dist.joblogs.joblog import LogReader, read_dump
from scrapyd_dist.joblogs.log_reads import facts_in
from scrapyd_dist.joblogs.worker_report import BadReport, read_report
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.reply import LARGEST, Reply

LONG = "9" * 5000
NUMBERS = [LONG, "9" * 4000, str(LARGEST + 1)]
NUMBERS += ["-1", "NaN", "Infinity", "-Infinity", "1e999", "1.5", "true", "null", '""']
CALLS: list[Call[Any]] = [
    api.daemonstatus(), api.listjobs(), api.listprojects(), api.listversions("p"), api.listspiders("p"),
    api.status("j"), api.cancel("p", "j"), api.addversion("p", "v", b""), api.schedule("p", "s", jobid="j"),
]  # fmt: skip
FIELDS = (
    "status", "message", "pending", "running", "finished", "node_name", "projects", "versions", "spiders", "id",
    "spider", "project", "pid", "start_time", "end_time", "log_url", "settings", "args", "version", "currstate",
    "prevstate", "jobid",
)  # fmt: skip
SCALARS: Any = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["ok", "error", "running"])
    | st.datetimes().map(str) | st.integers(min_value=10**300, max_value=10**301)
)  # fmt: skip
VALUES: Any = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=9),
    max_leaves=20,
)  # fmt: skip
ANSWERS = st.dictionaries(st.sampled_from(FIELDS), VALUES).map(
    lambda answer: {"status": "ok", **answer}
)
HEADERS = st.dictionaries(
    st.sampled_from(["date", "content-length", "content-range", "content-type"]),
    st.text() | st.sampled_from(
        ["Mon, 01 Jan 0001 00:00:00 +2300", f"Mon, 01 Jan {LONG} 00:00:00 GMT", "Fri, 31 Dec 99999999999 1:1:1 GMT",
         LONG, "\u00b2", f"bytes 0-1/{LONG}", "bytes 5-2/9", "bytes 0-9/3"]
    ),
)  # fmt: skip


def answer(body: str, **headers: str) -> Reply:
    return Reply(
        where="node",
        path="x.json",
        status=200,
        headers=headers,
        body=body.encode("utf-8", "surrogatepass"),
    )


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("field", ["pending", "running", "finished"])
def test_a_number_that_is_none_is_a_bad_answer(number: str, field: str) -> None:
    said = {
        "pending": "1",
        "running": "2",
        "finished": "3",
        "node_name": '"n"',
        "status": '"ok"',
        field: number,
    }
    body = ", ".join(f'"{name}": {value}' for name, value in said.items())
    with pytest.raises(NodeError) as caught:
        api.daemonstatus().read(answer(f"{{{body}}}"))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "body",
    ['{"status": "ok", "projects": ' + "[" * 100_000, "[" * 100_000, '{"status": "ok", "projects": ["\\ud800"]}',
     '{"status": "error", "message": ' + "[" * 500 + "]" * 500 + "}"],
    ids=["deep", "deeper", "half a character", "a deep message"],
)  # fmt: skip
def test_what_cannot_be_taken_apart_is_a_bad_answer(body: str) -> None:
    with pytest.raises(NodeError) as caught:
        api.listprojects().read(answer(body))
    assert len(str(caught.value)) < 400


EVIL = "\x1b]0;title\x07\x9b31m\u202e"
SHOWN = r"\x1b]0;title\x07\x9b31m\u202e"


def test_what_a_node_says_steers_no_terminal() -> None:
    refusal = {"status": "error", "message": EVIL}
    with pytest.raises(ApiRefused) as refused:
        api.listprojects().read(answer(json.dumps(refusal)))
    assert str(refused.value) == f"node: Scrapyd refused x.json: {SHOWN}"
    assert refused.value.scrapyd_message == SHOWN
    assert EVIL not in str(NodeError.at("node", EVIL))
    report = {
        "schema": 1, "state": "ended", "updated": 1, "requests": 1, "done": 0, "missed": 1, "pages": 0, "items": 0,
        "finish_reason": EVIL, "problem": EVIL, "failed": [{"url": EVIL, "reason": EVIL}], "stats": {EVIL: EVIL},
    }  # fmt: skip
    found = read_report(json.dumps(report).encode())
    assert (found.finish_reason, found.problem, found.stats) == (SHOWN, SHOWN, {SHOWN: SHOWN})
    assert found.missed_urls["failed"] == ((SHOWN, SHOWN),)
    with pytest.raises(BadReport) as bad:
        read_report(json.dumps({**report, "schema": EVIL * 999}).encode())
    assert "\x1b" not in str(bad.value)
    assert len(str(bad.value)) < 400
    head = "2026-11-20 20:00:00 [scrapy.core.engine]"
    log = f"{head} ERROR: {EVIL}\n{head} INFO: Spider closed ({EVIL})\n"
    facts = facts_in(api.Chunk(body=log.encode(), start=0, total=None, date=None))
    assert (facts.last_error, facts.closed) == (SHOWN, SHOWN)


@pytest.mark.parametrize(
    "dump", ["{" + "1:1," * 260_000 + "}", "{'a': 1,\n" + " 'b': 2,\n" * 110_000]
)
def test_a_large_dump_of_stats_takes_little_memory(dump: str) -> None:
    peak_memory()
    before = peak_memory()
    read_dump(dump)
    assert peak_memory() - before < 50


def test_a_log_of_many_levels_takes_little_memory() -> None:
    reader = LogReader()
    for number in range(1000):
        name = "".join(chr(65 + int(digit)) for digit in str(number))
        reader.feed(f"2026-11-20 20:00:00 [x] {name}: y\n".encode())
    assert len(reader.facts().levels) < 30


@given(ANSWERS, HEADERS)
def test_any_answer_is_a_value_or_an_error_of_the_node(
    said: dict[str, Any], headers: dict[str, str]
) -> None:
    reply = answer(json.dumps(said), **headers)
    for call in CALLS:
        try:
            value = call.read(reply)
        except NodeError:
            continue
        repr(value)
        if isinstance(value, api.Jobs):
            for job in (*value.pending, *value.running, *value.finished):
                f"{job.id}{job.project}{job.spider}".encode()


@given(st.sampled_from([200, 206, 416, 404, 500]), HEADERS, st.binary(max_size=9))
def test_any_raw_file_is_a_piece_or_an_error_of_the_node(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    reply = Reply(where="node", path="logs/x", status=status, headers=headers, body=body)
    try:
        chunk = api.fetch("logs/x", start=0, limit=5).read(reply)
    except NodeError:
        return
    assert chunk is None or chunk.start == 0
