"""Nodes that lie: one whose replies are drawn by hypothesis, and one that takes jobs and does none of them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hypothesis import strategies as st

from .badpeer import Connection, Play

#: what must not reach a terminal, or a file name, as it is
NASTY = [
    "\x1b]0;owned\x07", "\x1b[666m", "\x9b31m", "\u202egnp", "\r", "\x00", "\ud800", "\U000e0041", "\u2028", "n\nm",
    "../../../tmp/pwned", "/etc/passwd", "..", ".", "", "a/b", "%2e%2e%2f", "x" * 5000, "-rf", "[bold]", "ok",
]  # fmt: skip
NUMBERS = [
    0,
    1,
    3,
    -1,
    2**31,
    2**53,
    2**53 + 1,
    10**300,
    1e308,
    float("inf"),
    float("nan"),
    "7",
    True,
    None,
    [],
    {},
]
TIMES = [
    "2026-11-20 20:00:00.000001",
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59",
    "now",
    "2026-11-20T20:00:00Z",
]
JOB, SPIDER, PROJECT = "job-1", "shop", "small"
#: a crawl of the project's store, and its jobs
CRAWL = "shop-1"
JOBS = [JOB, f"{CRAWL}.b1.a1", f"{CRAWL}.b2.a1", f"{CRAWL}.w1.a1"]

texts = st.sampled_from([*NASTY, *JOBS]) | st.text(max_size=9)
names = st.sampled_from([SPIDER, PROJECT, *JOBS]) | texts
numbers: Any = st.sampled_from(NUMBERS) | st.integers()
times = st.sampled_from([TIMES[0]] * 20 + TIMES)
junk: Any = st.recursive(
    numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=9,
)


def mostly(right: Any, other: Any = junk, times: int = 30) -> Any:
    """This so many times as often as the other."""
    return st.sampled_from([right] * times + [other]).flatmap(lambda chosen: chosen)


counts = mostly(st.integers(0, 5), numbers, 9)
versions = (
    st.sampled_from(["1770000000-000000000000001", "0-a1770000000-000000000000002", "1_9"]) | texts
)


def fields(values: Mapping[str, Any]) -> Any:
    return st.fixed_dictionaries({name: mostly(one) for name, one in values.items()})


TRACEBACK = "Traceback (most recent call last):\n  File\nOSError: \x1b[666m"


def document(**values: Any) -> Any:
    """A reply of Scrapyd in which fields are wrong, missing, or not its own; or a refusal."""
    optional = {name: mostly(one) for name, one in values.items()}
    partial = st.fixed_dictionaries({"status": st.just("ok")}, optional=optional)
    refusal = fields({"status": st.just("error"), "message": texts | st.just(TRACEBACK)})
    return mostly(fields({"status": st.just("ok"), **values}), partial | refusal, 15)


def jobs_in(state: str) -> Any:
    jobs, spiders = mostly(st.sampled_from(JOBS), texts, 6), mostly(st.just(SPIDER), texts, 9)
    row: dict[str, Any] = {
        "id": jobs,
        "project": mostly(st.just(PROJECT), texts, 9),
        "spider": spiders,
    }
    if state == "pending":
        row |= {"version": versions, "settings": st.dictionaries(texts, texts, max_size=2)}
    else:
        row |= {"start_time": times, "pid": st.integers(1, 9), "log_url": texts}
    if state == "finished":
        row |= {"end_time": times}
    return st.lists(fields(row), max_size=4)


STATES = st.sampled_from(["pending", "running", "finished", None, "odd", ""])
DOCUMENTS: dict[str, Any] = {
    "daemonstatus": document(pending=counts, running=counts, finished=counts, node_name=texts),
    "schedule": document(jobid=names),
    "status": document(currstate=STATES),
    "cancel": document(prevstate=STATES),
    "listprojects": document(projects=st.lists(names, max_size=3)),
    "listversions": document(versions=st.lists(versions, max_size=4)),
    "listspiders": document(spiders=st.lists(names, max_size=4)),
    "listjobs": document(
        pending=jobs_in("pending"), running=jobs_in("running"), finished=jobs_in("finished")
    ),
    "addversion": document(spiders=counts),
    "delversion": document(),
    "delproject": document(),
}
HEAD = "2026-11-20 20:00:0{} [scrapy.core.engine] {}: "
lines = st.builds(
    lambda head, at, level, text: head.format(at, level) + text,
    st.sampled_from([HEAD, "9999-12-31 23:59:5{} [x] {}: ", "", "\x1b[666m"]),
    st.integers(0, 9),
    st.sampled_from(["INFO", "ERROR", "CRITICAL", "A" * 99]),
    st.sampled_from(["Spider opened", "Spider closed (finished)", "Spider closed (\x1b[666m)", "Dumping Scrapy stats:",
                     "{'item_scraped_count': 9e999,\n '\x1b[666m': " + "9" * 5000 + ",\n", "[" * 3000]) | texts,
)  # fmt: skip
logs = st.lists(lines, max_size=9).map(lambda some: "\n".join(some).encode("utf-8", "replace"))
reports = fields({
    "schema": st.just(1), "state": st.sampled_from(["ended", "running"]), "updated": st.just(1.77e9),
    "started": st.just(1.7e9), **dict.fromkeys(("requests", "done", "missed", "pages", "items", "errors"), counts),
    "finish_reason": texts, "problem": texts, "no_lease": texts, "public": texts, "feeds_failed": counts,
    "feeds": st.lists(texts, max_size=2), "batches": st.dictionaries(texts, counts, max_size=2),
    "stats": st.dictionaries(texts, junk, max_size=3),
    "part": fields({"file": texts, "items": counts, "bytes": counts, "sha256": texts}),
    "failed": st.lists(fields({"url": texts, "reason": texts}), max_size=2),
    "missed_requests": st.lists(st.tuples(counts, texts, st.lists(st.tuples(counts, counts), max_size=2)), max_size=2),
})  # fmt: skip
files = logs | reports.map(lambda report: json.dumps(report).encode()) | st.binary(max_size=20)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is answered to one request."""

    body: bytes = field(repr=False)
    status: int = 200
    headers: tuple[str, ...] = ()
    ranged: str = "right"  #: how the range of a file is told
    ending: str = ""  #: what else goes wrong

    def play(self, connection: Connection, request: bytes) -> None:
        match = re.search(rb"range: bytes=(\d+)-(\d*)", request.lower())
        if match is None or self.ranged == "none" or self.status != 200:
            self._say(connection, self.status, self.body)
            return
        first, last = int(match[1]), int(match[2] or 1 << 60)
        body = self.body[first : last + 1]
        total: object = len(self.body)
        if self.ranged == "right" and not body:
            self._say(connection, 416, b"", f"Content-Range: bytes */{total}")
            return
        total = {"huge": 2**53, "unknown": "*", "digits": "9" * 5000, "less": 1}.get(
            self.ranged, total
        )
        begin = first + 7 if self.ranged == "other" else first
        self._say(
            connection,
            206,
            body,
            f"Content-Range: bytes {begin}-{begin + max(0, len(body) - 1)}/{total}",
        )

    def _say(self, connection: Connection, status: int, body: bytes, *more: str) -> None:
        headers = [*self.headers, *more]
        if self.ending == "no length":
            head = "\r\n".join([f"HTTP/1.1 {status} X", *headers, "Connection: close", "", ""])
            connection.say(head.encode("latin-1", "replace") + body)
        elif self.ending == "endless":
            connection.say(
                "\r\n".join([f"HTTP/1.1 {status} X", *headers, "", ""]).encode("latin-1", "replace")
            )
            while not connection.over:
                connection.say((body or b"[") * 100)
        elif self.ending == "drips":
            connection.say(b"HTTP/1.1 200 ")
            while not connection.over:
                connection.say(b"O")
                connection.pause(0.05)
        elif self.ending == "hangs":
            connection.hang()
        else:
            connection.answer(
                status, body, *headers, length=len(body) + 5 if self.ending == "cut" else None
            )


_HEADERS = st.lists(
    st.sampled_from([
        "Date: Fri, 20 Nov 2026 20:00:00 GMT", "Date: Fri, 31 Dec 9999 23:59:59 GMT", "Date: \x1b[666m",
        "Content-Type: text/html", "Content-Type: text/plain", "Content-Encoding: gzip", "Location: file:///etc/passwd",
        "Last-Modified: Fri, 31 Dec 99999 23:59:59 GMT", "Last-Modified: Fri, 20 Nov 2026 20:00:00 GMT",
        f"X: {'x' * 3000}",
    ]),
    max_size=2,
)  # fmt: skip
_STATUSES = st.sampled_from([200] * 90 + [404, 416, 500, 401, 302, 999, 206, 204])
_RANGED = st.sampled_from(["right"] * 9 + ["none", "huge", "unknown", "digits", "less", "other"])
_ENDINGS = st.sampled_from([""] * 90 + ["no length", "no length", "cut", "cut"])
_SLOW = st.sampled_from([""] * 900 + ["endless", "drips", "hangs"])


def answers(body: Any) -> Any:
    return st.builds(
        lambda body, status, headers, ranged, ending, slow: Answer(
            body=body, status=status, headers=tuple(headers), ranged=ranged, ending=slow or ending
        ),
        body, _STATUSES, _HEADERS, _RANGED, _ENDINGS, _SLOW,
    )  # fmt: skip


GARBAGE = [
    b"",
    b"[" * 100_000,
    b"{}",
    b"\xff\xfe",
    b"<html>\x1b[666m",
    b'{"status": "ok", "pending": %s}' % (b"9" * 5000),
]


def in_json(document: Any) -> Any:
    bodies = document.map(lambda one: json.dumps(one).encode("utf-8"))
    return answers(mostly(bodies, st.sampled_from(GARBAGE)))


_ANSWERS = {page: in_json(one) for page, one in DOCUMENTS.items()} | {"file": answers(files)}


def plans(pages: Sequence[str]) -> Any:
    """Page or "file" -> answers; each list is gone through again and again."""
    return st.fixed_dictionaries(
        {page: st.lists(_ANSWERS[page], min_size=1, max_size=4) for page in pages}
    )


class HostileNode:
    """Plays a plan; counts its answers."""

    def __init__(self) -> None:
        self.plan: Mapping[str, list[Answer]] = {}
        self.answered: Counter[str] = Counter()

    def play(self, connection: Connection, request: bytes) -> None:
        target = request.split(b" ", 2)[1].decode("latin-1") if request.count(b" ") > 1 else ""
        page = re.search(r"(\w+)\.json\b", target)
        name = page[1] if page and page[1] in DOCUMENTS else "file"
        count, some = (
            self.answered[name],
            self.plan.get(name) or [Answer(status=404, body=EVIL.encode())],
        )
        self.answered[name] += 1
        some[count % len(some)].play(connection, request)


EVIL = "\x1b]0;owned\x07\x1b[666m\u202e\x9b"
#: what a lying node does with the jobs that it takes, in turn
LIES = (
    "refuses",
    "loses",
    "dies",
    "reason",
    "problem",
    "part without end",
    "huge part",
    "report without end",
)


class LyingNode:
    """Takes code and jobs, and gives a report, a part or a log of none of them that a crawl could use."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}  #: id -> the lie about it
        self._versions: list[str] = []
        self._posts = 0

    def play(self, connection: Connection, request: bytes) -> None:
        path = urlsplit(request.split(b" ", 2)[1].decode("latin-1")).path
        page = path.rpartition("/")[2].removesuffix(".json")
        job = next((job for job in self.jobs if job in path), "")
        if page in DOCUMENTS and not job:
            connection.answer(200, json.dumps(self._document(page, request)).encode())
        elif path == "/logs/":
            connection.answer(200, EVIL.encode(), "Content-Type: text/html")
        elif not job or (path.endswith(".json") and self.jobs[job] in {"loses", "dies"}):
            connection.answer(404, EVIL.encode())
        elif path.endswith(".json"):
            self._report(connection, self.jobs[job])
        elif path.endswith(".jl"):
            _endless(b"x" * 9999)(connection, request)
        else:
            connection.answer(
                200, HEAD.format(1, "ERROR").encode() + EVIL.encode(), "Content-Type: text/plain"
            )

    def _document(self, page: str, request: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "status": "ok",
            "node_name": EVIL,
            "spiders": ["easy"],
            "versions": self._versions,
        }
        if page == "daemonstatus":
            return {**answer, "pending": 0, "running": 0, "finished": 2**53}
        if page == "listjobs":
            return {**answer, "pending": [], "running": [], "finished": []}
        if page == "addversion":
            found = re.search(rb'name="version"\r\n(?:.*\r\n)*?\r\n(.*)\r\n', request)
            self._versions = [EVIL, *([found[1].decode()] if found else [])]
            return {**answer, "spiders": 1}
        if page == "schedule":
            form = parse_qs(request.partition(b"\r\n\r\n")[2].decode())
            lie = LIES[self._posts % len(LIES)]
            self._posts += 1
            if lie == "refuses":
                return {"status": "error", "message": EVIL}
            self.jobs[form["jobid"][0]] = lie
            return {**answer, "jobid": form["jobid"][0]}
        return {**answer, "currstate": "finished", "prevstate": None}

    def _report(self, connection: Connection, lie: str) -> None:
        if lie == "report without end":
            _endless(b'{"a": [')(connection, b"")
            return
        report = {"schema": 1, "state": "ended", "updated": time.time(), "started": time.time(), "requests": 20,
                  "done": 20, "missed": 0, "pages": 20, "items": 1, "finish_reason": "finished"}  # fmt: skip
        size = 2**40 if lie == "huge part" else 10
        report["part"] = {"file": "../../x", "items": 1, "bytes": size, "sha256": EVIL}
        report |= {"reason": {"finish_reason": EVIL}, "problem": {"problem": EVIL}}.get(lie, {})
        connection.answer(200, json.dumps(report).encode(), "Content-Type: text/plain")


def _endless(piece: bytes) -> Play:
    def play(connection: Connection, _: bytes) -> None:
        connection.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while not connection.over:
            connection.say(piece * 100)

    return play
