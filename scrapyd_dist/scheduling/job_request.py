"""Builds the call that starts a job for a batch: what every job of a crawl is given."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import NodeError
from scrapyd_dist.frontier.worklists import row_in
from scrapyd_dist.scrapyd import api
from scrapyd_dist.settings import PREFIX, Travels, travelling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.scheduling.node_state import JobRun
    from scrapyd_dist.store.reach import Way
    from scrapyd_dist.transports import AsyncSender

#: settings of the producer's process that its workers must not get
PRODUCERS_SETTINGS = frozenset({"LOG_FILE", "LOG_STDOUT", "FEEDS", "FEED_URI", "FEED_FORMAT", "JOBDIR", "ADDONS"})
#: characters of a row of arguments that name its job
ROW_WORDS = 1_000
#: bytes of a job's log that are searched for its last error
LOG_TAIL = 4096
_LOG_TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[")
# The level may be followed by a traceback only: Twisted's unhandled errors.
_LOG_HEAD = re.compile(_LOG_TIME.pattern + r"[^]]+\] (?:ERROR|CRITICAL):(?: |$)")


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What all jobs of a crawl have in common."""

    crawl: str
    home: str  #: the crawl's folder in the nodes' logs
    project: str
    spider: str
    version: str | None  #: pinned, so that every attempt runs the same code
    settings: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    feed: bool = False  #: items go to a feed URL
    collected: tuple[str, ...] = ()  #: folders of other crawls, whose files on the nodes may be deleted
    shared: Mapping[str, str] = field(default_factory=dict)  #: settings that workers of other projects get as well
    lease: float = 0.0  #: seconds for which workers that reach the store lease their attempts; 0: no leases
    rows: bool = False  #: a batch is one row of arguments, and its job a whole run of the spider with them
    ways: Callable[[Node], Way] | None = None  #: how a node's workers reach the store; may block


def passed_on(settings: Mapping[str, str]) -> dict[str, str]:
    """Of the settings given on the command line, those that reach the workers."""
    ours = travelling(Travels.JOBS, Travels.FLEET, Travels.LIMITS)
    return {
        name: value
        for name, value in settings.items()
        if name in ours or not (name in PRODUCERS_SETTINGS or name.startswith(PREFIX))
    }


def call_for(spec: JobRequest, out: JobRun, payload: Mapping[str, str], told: Mapping[str, str]) -> api.Call[str]:
    """The call that posts one attempt; `told` is what its worker is told of the store."""
    node = out.member.node
    job = {
        "crawl": spec.crawl,
        "batch": out.batch.number,
        "attempt": out.number,
        "home": spec.home,
        "start_by": round(out.start_by + out.member.skew, 1),
        "feed": spec.feed,
        "collected": list(spec.collected),
        "version": spec.version or "",
        "lease": spec.lease,
        **told,
    }
    args = {**({} if out.spider else spec.args), "batch": str(out.batch.number)}
    if spec.rows:
        words, own = row_in(payload)
        job["row"] = words[:ROW_WORDS]  # the arguments carry the rest; a setting has a size limit
        args |= own
    settings = {**spec.settings, **payload, "DISTRIBUTED_JOB": json.dumps(job, separators=(",", ":"))}
    return api.schedule(
        node.project or spec.project,
        out.spider or spec.spider,
        jobid=out.job,
        version=spec.version,
        settings=settings,
        args=args,
    )


async def last_words(sender: AsyncSender, out: JobRun, spec: JobRequest, timeout: float) -> str:
    """The last error in the log of a job that ended without a report, as the end of a sentence."""
    node = out.member.node
    path = f"logs/{out.project or node.project or spec.project}/{out.spider or spec.spider}/{out.job}.log"
    try:
        chunk = await _end_of(sender, node, path, timeout)
    except NodeError:
        return ""
    if chunk is None:
        return "; it wrote no log"
    return _last_error(chunk.body.decode(errors="replace"))


async def _end_of(sender: AsyncSender, node: Node, path: str, timeout: float) -> api.Chunk | None:
    head = await sender.send(node, api.fetch(path, start=0, limit=LOG_TAIL), timeout=timeout)
    end = api.tail(path, LOG_TAIL, head)
    return head if end is None else await sender.send(node, end, timeout=timeout)


def _last_error(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "; its log is empty"
    errors = [at for at, line in enumerate(lines) if _LOG_HEAD.match(line)]
    if not errors:
        return f"; the last line of its log: {lines[-1][:300]}"
    at = errors[-1]
    end = next((later for later in range(at + 1, len(lines)) if _LOG_TIME.match(lines[later])), len(lines))
    what = f" {lines[end - 1][:300]}" if end - 1 > at else ""  # the last line of a traceback names the error
    return f"; the last error in its log: {lines[at][:300]}{what}"
