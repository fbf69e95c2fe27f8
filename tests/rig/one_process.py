"""Runs `scrapy …` with one model node whose jobs are crawls of this process, beside that of the producer.

Both halves, the store, the files of the jobs and the scheduler's questions are the real ones; the egg, HTTP and the
start of processes are left out. Each crawl needs a process of its own, whose exit code is the producer's.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import scrapy.crawler
from scrapy.cmdline import execute
from scrapy.crawler import AsyncCrawlerRunner, Crawler
from scrapy.utils.project import get_project_settings
from scrapyd_dist.middlewares import assignment

from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import state_key
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Call, JobState
from scrapyd_dist.transports.requests import RequestsTransport
from scrapyd_dist.transports.treq import TreqTransport

from .nodemodel import ModelJob, ModelNode

T = TypeVar("T")
#: where the node is said to be; nothing is sent there
HOST = "127.0.0.1:6800"
LOGS = "logs"
ADDONS = {"scrapyd_dist.Addon": 500}


@dataclass(kw_only=True)
class LocalNode(ModelNode):
    """A node that crawls what it is sent, in this process; its files are those of a folder."""

    folder: Path
    spiders: Sequence[str] = ()
    crawlers: dict[str, Crawler] = field(default_factory=dict)
    tasks: set[asyncio.Future[Any]] = field(default_factory=set)

    def answer(self, call: Call[T]) -> T:
        if call.path.startswith(f"{LOGS}/"):
            self.files = (
                {call.path: path.read_bytes()}
                if (path := self.folder / call.path).is_file()
                else {}
            )
        return super().answer(call)

    def pages(self) -> dict[str, Any]:
        uploaded = {
            "addversion.json": self._addversion,
            "listspiders.json": lambda _: {"spiders": self.spiders},
        }
        return {**super().pages(), **uploaded}

    def requests_in(self, settings: dict[str, str]) -> int:
        return 0  # its jobs read their batches themselves

    def _addversion(self, call: Call[Any]) -> dict[str, Any]:
        data = dict(call.data)
        self.versions[data["project"]] = (*self.versions.get(data["project"], ()), data["version"])
        return {"spiders": len(self.spiders)}

    def take(self, job: ModelJob) -> None:
        from twisted.internet import reactor

        job.state = JobState.RUNNING
        self.jobs[job.id] = job
        reactor.callFromThread(self._start, job)

    def _start(self, job: ModelJob) -> None:
        """Start the crawl with the settings that Scrapyd's runner and the egg's settings module would give it."""
        settings = get_project_settings()
        settings.setdict({"DISTRIBUTED_ENABLED": False, "ADDONS": ADDONS}, priority="project")
        log = self.folder / LOGS / job.project / job.spider / f"{job.id}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        settings.setdict({**job.settings, "LOG_FILE": str(log)}, priority="cmdline")
        runner = AsyncCrawlerRunner(settings)
        self.crawlers[job.id] = runner.create_crawler(job.spider)
        task = asyncio.ensure_future(
            runner.crawl(self.crawlers[job.id], **job.args, _job=job.id, _version=job.version)
        )
        self.tasks.add(task)
        task.add_done_callback(lambda _: self.die(job.id))

    def _cancel(self, call: Call[Any]) -> dict[str, Any]:
        from twisted.internet import reactor

        crawler = self.crawlers.get(dict(call.data)["job"])
        if crawler is not None:
            reactor.callFromThread(crawler.stop)
        return super()._cancel(call)


def main(arguments: Sequence[str], *, spiders: Sequence[str]) -> None:
    """Run `scrapy` with these arguments in the current folder, whose project has these spiders."""
    node = LocalNode(
        name="here",
        node=Node.parse(HOST, name="here"),
        folder=Path("node").absolute(),
        spiders=spiders,
    )

    def send(_: RequestsTransport, __: Node, call: Call[T], *, timeout: float | None = None) -> T:
        return node.answer(call)

    async def send_later(
        _: TreqTransport, __: Node, call: Call[T], *, timeout: float | None = None
    ) -> T:
        return node.answer(call)

    state = state_dir(Path.cwd())
    words = ["-s", f"ADDONS={json.dumps(ADDONS)}", "-s", f"DISTRIBUTED_TARGET_HOSTS={HOST}"]
    with (
        patch.object(RequestsTransport, "send", send),
        patch.object(TreqTransport, "send", send_later),
        patch.object(assignment, "egg_key", lambda: state_key(state)),
        patch.object(
            scrapy.crawler, "install_scrapy_root_handler", lambda _: None
        ),  # a job's log joins this one's
    ):
        sys.argv = ["scrapy", *arguments, *words]
        execute(sys.argv)
