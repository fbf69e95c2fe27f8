"""Consume a frontier in this process, from its checks to the word of its end.

`sdist frontier consume` and `sdist strategy run` call it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import DistError
from scrapyd_dist.progress.summary_document import summary_of
from scrapyd_dist.transports.requests import ThreadTransport

from .completion_hooks import notify_on_finish, read_on_finish, refusal
from .consume_request import ConsumeRequest
from .consume_run import ConsumeRun, end_row
from .crawl_repository import CrawlRepository
from .frontier_start import FrontierStart
from .run_order import RunPhase

logger = logging.getLogger(__name__)


class ConsumeProcess:
    """Consumes a frontier as a user has asked for it.

    `show` is given the summary now and then.
    """

    def __init__(self, request: ConsumeRequest, show: Callable[[dict[str, Any]], None]) -> None:
        self._request = request
        self._sender = ThreadTransport()
        self._start = FrontierStart(
            request,
            sender=self._sender,
            show=show,
            began=time.monotonic(),
        )

    async def run(self) -> int:
        """Consume the frontier, and notify DISTRIBUTED_ON_FINISH of the end; return the exit code.

        DistError if nothing was started.
        """
        on_finish = read_on_finish(self._request.settings)
        try:
            document = await self._consume()
        except DistError as error:
            has_begun = self._start.phase is RunPhase.RUNNING
            state = CrawlState.STOPPED if has_begun else CrawlState.REFUSED
            crawl = self._request.crawl
            document = refusal(crawl.options.crawl, crawl.spider, error)
            document["state"] = state.value
            await _notify(on_finish, document)
            raise
        await _notify(on_finish, document)
        return int(document["exit_code"])

    async def _consume(self) -> dict[str, Any]:
        """Consume the frontier, and return the summary at the end."""
        try:
            run = await self._begin()
            code = await run.keep()
            return await self._summarize(run.repository, code)
        finally:
            self._sender.close()
            if self._start.repository is not None:
                self._start.repository.thread.close()

    async def _begin(self) -> ConsumeRun:
        """Start the workers; a row that this process has claimed says why it could not."""
        try:
            return await self._start.start()
        except BaseException as error:
            if self._start.repository is not None:
                await end_row(self._start.repository, CrawlState.STOPPED, 1, str(error))
            raise

    async def _summarize(self, repository: CrawlRepository, code: int) -> dict[str, Any]:
        """Return the summary of the frontier as it is now."""
        store = repository.thread.store
        row = await repository.read_row()
        document = {**summary_of(row), "exit_code": code}
        if self._request.strategy is not None:
            backlog = await repository.thread(store.strategy_backlog, repository.id)
            document["strategy"] = backlog.to_document()
        return document


async def _notify(on_finish: str, document: Mapping[str, Any]) -> None:
    """Notify DISTRIBUTED_ON_FINISH, if it is set, and log what goes wrong."""
    wrong = await asyncio.to_thread(notify_on_finish, on_finish, document)
    if wrong:
        logger.warning("%s", wrong)
