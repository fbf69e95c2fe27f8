"""The steps of a start in their order, how far it is when one fails, and the users' commands."""

from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from scrapyd_dist.middlewares.producer.run_order import BaseRun, RunPhase, RunStart

from scrapyd_dist.batches import CANCEL, PAUSE
from scrapyd_dist.errors import ConfigError


class Start(RunStart[str, str, str]):
    """Notes its phase in each step; one of them may fail."""

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.failing = failing
        self.steps: list[tuple[str, RunPhase]] = []
        self.row: Any = object()

    def note(self, step: str) -> None:
        self.steps.append((step, self.phase))
        if step == self.failing:
            raise ConfigError(f"{step} failed")

    def check(self) -> str:
        self.note("check")
        return "checked"

    async def claim(self, checked: str) -> Any:
        self.note("claim")
        return self.row

    async def prepare(self, checked: str, repository: Any) -> str:
        self.note("prepare")
        assert repository is self.row
        return f"{checked}, prepared"

    async def begin(self, checked: str, prepared: str) -> str:
        self.note("begin")
        return f"{prepared}, begun"


async def test_a_run_is_checked_claimed_prepared_and_begun() -> None:
    start = Start()
    assert await start.start() == "checked, prepared, begun"
    assert start.steps == [
        ("check", RunPhase.CHECKING),
        ("claim", RunPhase.CLAIMING),
        ("prepare", RunPhase.PREPARING),
        ("begin", RunPhase.BEGINNING),
    ]
    assert start.phase is RunPhase.RUNNING


@pytest.mark.parametrize(
    ("failing", "phase", "has_row"),
    [
        ("check", RunPhase.CHECKING, False),
        ("claim", RunPhase.CLAIMING, False),
        ("prepare", RunPhase.PREPARING, True),
        ("begin", RunPhase.BEGINNING, True),
    ],
)
async def test_what_fails_leaves_the_start_where_it_is(
    failing: str, phase: RunPhase, has_row: bool
) -> None:
    start = Start(failing)
    with pytest.raises(ConfigError, match=failing):
        await start.start()
    assert start.steps[-1][0] == failing
    assert start.phase is phase
    assert (start.repository is start.row) is has_row


class Run(BaseRun):
    cancelled = 0

    async def tick(self) -> None:
        await self.obey()

    async def finish(self, reason: str) -> None:
        """There is nothing to finish."""

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.mark.parametrize(
    ("wanted", "was_paused", "cancelled", "paused"),
    [
        ("", False, 0, None),
        (PAUSE, False, 0, True),
        (PAUSE, True, 0, None),
        ("", True, 0, False),
        (CANCEL, False, 1, None),
        (CANCEL, True, 1, None),
    ],
)
async def test_a_run_obeys_its_row(
    wanted: str, was_paused: bool, cancelled: int, paused: bool | None
) -> None:
    reporter = MagicMock()
    reporter.repository.wanted = AsyncMock(return_value=wanted)
    reporter.scheduler.state.paused = was_paused
    run = Run(reporter)
    await run.tick()
    assert run.cancelled == cancelled
    changes = [call.kwargs["paused"] for call in reporter.scheduler.set_paused.call_args_list]
    assert changes == ([] if paused is None else [paused])
