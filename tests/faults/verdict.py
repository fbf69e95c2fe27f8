"""What a broken crawl came to: judged by the item file, the site's own log, and the record in the store."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from faults import own_work
from faults.trial import Limit, Trial
from rig.commands import Result
from rig.crawls import assert_balanced, misses_in
from rig.rolling_window import most_in_window
from rig.throttled import CLOCKS, TINY

from scrapyd_dist.batches import Attempt

#: seconds by which two clocks of one machine, and the writing of a record, may differ
SLACK = 0.5
#: parts of a node that are lost, one after the other, after which it gets no more work
LOST_PARTS = 3
#: seconds in which a worker that leases there has heard of that
FENCED = 3.0
#: title of each figure -> its name in a verdict
FIGURES = {
    "runs": "runs",
    "lost": "lost",
    "duplicated": "duplicated",
    "double-sent": "double_sent",
    "dead": "dead",
    "over the limit": "over_limit",
    "under the goal": "under_goal",
    "too long": "too_long",
    "work for a bad node": "unfenced",
    "unbalanced": "unbalanced",
    "untold": "untold",
    "wrong exits": "wrong_exits",
    "fetched again": "refetched",
    "resumed": "resumes",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Counts of one trial, or of many when added up."""

    runs: int = 1
    lost: int = 0  #: items of the site that did not come home, and that the crawl does not tell
    duplicated: int = 0  #: items that came home more than once
    double_sent: int = (
        0  #: batches that two attempts fetched though the record had not given up the first
    )
    refetched: int = 0  #: pages asked for again after an attempt was given up: the price of a kill
    resumes: int = 0
    unbalanced: int = 0  #: accounts that do not add up
    untold: int = 0  #: pages that have to be missed, and are not the only miss with that reason
    wrong_exits: int = (
        0  #: exit codes that are not 0 though the crawl is whole, or not 3 though a page is missed
    )
    dead: int = 0  #: batches that died, but for that of a page that has to be missed
    over_limit: int = 0  #: requests that a throttle's rule, or a goal, did not allow
    under_goal: int = 0  #: requests that a goal allows, and that were not made
    too_long: int = 0  #: crawls that took longer than their bound
    unfenced: int = 0  #: batches for a node of which three parts in a row were lost before

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        bad = (
            self.lost,
            self.duplicated,
            self.double_sent,
            self.unbalanced,
            self.untold,
            self.wrong_exits,
            self.dead,
            self.over_limit,
            self.under_goal,
            self.too_long,
            self.unfenced,
        )
        return not any(bad)

    def __add__(self, other: Verdict) -> Verdict:
        names = self.__dataclass_fields__
        return Verdict(**{name: getattr(self, name) + getattr(other, name) for name in names})


def judge(trial: Trial, done: Result, *, bound: float) -> Verdict:
    """The verdict on a trial that has just ended; `done`: its last command, `bound`: seconds that it may take."""
    took = time.monotonic() - trial.began
    limits = Verdict(
        over_limit=_over_limit(trial) + _over_goal(trial),
        under_goal=max(0, (trial.goal or 0) - trial.hits_at_goal),
        too_long=int(took > bound),
    )
    if trial.is_store_lost:
        is_told = "The store has lost the crawl" in done.err
        return replace(limits, untold=not is_told, wrong_exits=done.code != 1)
    properties, extras = own_work.split_items(trial.items())
    found = trial.site.differences(properties)
    extras_missing, extras_repeated = _compare_extras(trial, extras)
    allowed = set() if trial.missed is None else {str(trial.missed)}
    missing = set(found.get("missing", ()))
    hits = trial.site.item_hits()
    offset = time.time() - time.monotonic()
    summary = trial.row.summary
    told = 0 if trial.is_all_to_come else told_lost(summary)
    dead = summary.get("batches", {}).get("dead", 0)
    return replace(
        limits,
        lost=abs(len(missing ^ allowed) + extras_missing - told) + len(found.get("wrong", ())),
        duplicated=len(found.get("repeated", ()))
        + len(found.get("unexpected", ()))
        + extras_repeated,
        double_sent=double_sent(trial.attempts(), _fetches(trial, offset), offset),
        refetched=sum(count - 1 for count in hits.values() if count > 1),
        resumes=trial.resumes,
        unbalanced=not balanced(summary),
        untold=bool(allowed) and not _is_told(trial),
        wrong_exits=done.code != (3 if allowed or told else 0),
        dead=max(0, dead - len(allowed)),
        unfenced=unfenced(trial.attempts(), trial.bad_node),
    )


def unfenced(attempts: Sequence[Attempt], node: str) -> int:
    """How many attempts a node got after so many of its parts were lost, one after the other."""
    mine = [attempt for attempt in attempts if attempt.node == node]
    streak = 0
    for attempt in sorted(mine, key=lambda attempt: attempt.ended_at or math.inf):
        is_lost = attempt.state.value == "failed" and attempt.reason.startswith("the part of ")
        if is_lost:
            streak += 1
        elif attempt.state.value == "accepted":
            streak = 0
        if streak == LOST_PARTS:
            fenced_at = (attempt.ended_at or math.inf) + FENCED
            return sum(later.sent_at > fenced_at for later in mine)
    return 0


def _over_goal(trial: Trial) -> int:
    """How many requests the site had beyond the goal, when the crawl had ended by it."""
    return 0 if trial.goal is None else max(0, trial.hits_at_goal - trial.goal)


def _over_limit(trial: Trial) -> int:
    """How many requests more than its rule allows the site had in some window."""
    if trial.limit is None:
        return 0
    offset = time.time() - time.monotonic()
    hits = []
    for hit in trial.site.log():
        permit = hit["headers"].get("x-permit")
        hits.append((hit["time"], float(permit) - offset if permit else None))
    return over_limit(trial.limit, hits)


def over_limit(limit: Limit, hits: Sequence[tuple[float, float | None]]) -> int:
    """How many of the requests at the site a rule did not allow.

    Each needs a permit. The permits are counted in any window, and the arrivals in any that is shorter by the longest
    way from a permit to the site. `hits`: the moments of arrival and permit of each, by one clock.
    """
    permits = [permit for _, permit in hits if permit is not None]
    ways = [arrival - permit for arrival, permit in hits if permit is not None]
    width = max(TINY, limit.window - max(ways, default=0.0) - CLOCKS)
    granted = most_in_window(permits, limit.window - TINY)
    arrived = most_in_window([arrival for arrival, _ in hits], width)
    without = len(hits) - len(permits)
    return max(0, granted - limit.hits, arrived - limit.hits, without)


def _compare_extras(trial: Trial, extras: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How many items are missing and repeated of the pages that the project's own code asks for."""
    if not trial.asks_for_more:
        return 0, 0
    numbers = set(range(trial.site.site.items)) - {trial.missed}
    return own_work.compare_extras(extras, numbers)


def told_lost(summary: Mapping[str, Any]) -> int:
    """How many items, or pages with one each, are lost with a folder or steps of the store, as the crawl says."""
    found = [
        re.match(r"([\d,]+) (?:item|request)s? (?:are|is) lost: ", text)
        for text in summary.get("warnings", ())
    ]
    return sum(int(one[1].replace(",", "")) for one in found if one)


def _is_told(trial: Trial) -> bool:
    """Whether the page that has to be missed is the only miss, and the reason says so."""
    misses = [
        (urlsplit(row["url"]).path, trial.reason in row["reason"])
        for row in misses_in(trial.row.summary)
    ]
    return misses == [(trial.site.site.detail_path(trial.missed or 0), True)]


def _fetches(trial: Trial, offset: float) -> Mapping[str, tuple[float, float]]:
    """Attempt's name -> its first and its last detail page, by time.monotonic(); `offset` as in `double_sent`."""
    asked: dict[str, list[tuple[float, str]]] = defaultdict(list)  # by whom the site's log names
    for hit in trial.site.log():
        target = hit["target"].partition("?")[0]
        if target in trial.site.site.numbers:
            asked[hit["headers"].get("user-agent", "")].append((hit["time"], target))
    spans = {}
    for attempt in trial.attempts():
        times = [when for when, _ in asked.get(attempt.job, ())]
        if attempt.worker:  # which asks for the pages of many batches
            mine, since = trial.targets(attempt.batch), attempt.sent_at - offset - SLACK
            # It may have had the same batch before, in an earlier attempt.
            times = [
                when
                for when, target in asked.get(attempt.worker, ())
                if target in mine and when >= since
            ]
        if times:
            spans[attempt.job] = (min(times), max(times))
    return spans


def double_sent(
    attempts: Sequence[Attempt], fetches: Mapping[str, tuple[float, float]], offset: float
) -> int:
    """How many batches were fetched by a later attempt before the record had given up an earlier one.

    `fetches`: attempt's name -> its first and last fetch, by time.monotonic(); `offset` makes that one since the epoch.
    """
    by_batch: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.job in fetches:
            by_batch[attempt.batch].append(attempt)
    bad = 0
    for tries in by_batch.values():
        tries.sort(key=lambda attempt: attempt.number)
        for earlier, later in pairwise(tries):
            begun = fetches[later.job][0] + offset
            bad += earlier.ended_at is None or begun < earlier.ended_at - SLACK
    return bad


def balanced(summary: Mapping[str, Any]) -> bool:
    """Whether every URL that was found is accounted for, to the unit, of a crawl that has finished."""
    try:
        assert_balanced(summary)
    except AssertionError:
        return False
    return bool(summary["state"] == "finished")
