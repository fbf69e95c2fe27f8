"""Finds out which accepted parts are at home as their workers wrote them.

The rule it keeps: a part that is damaged, or is not there any more, is never merged or delivered in
silence.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.items.json_lines import Runs, count_items
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd.jobs import crawl_in


def part_of(report: Mapping[str, Any]) -> PartInfo | None:
    """Return the part as its worker has described it; None if the store has not kept that."""
    part = report.get("part")
    if not isinstance(part, Mapping):
        return None
    return PartInfo(
        file="",
        items=int(report.get("items") or 0),
        bytes=int(part["bytes"]),
        sha256=str(part["sha256"]),
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, as a worker's report has it."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def is_whole(path: Path, report: Mapping[str, Any]) -> bool:
    """Say whether a part is there, with the length and the hash that its worker reported."""
    try:
        size = path.stat().st_size
        part = part_of(report)
        if part is None:
            return path.is_file()
        return size == part.bytes and sha256_of(path) == part.sha256
    except OSError:  # it is not there, or its disk cannot read it any more
        return False


@dataclass(frozen=True, kw_only=True)
class KeptParts:
    """The parts of accepted attempts, by what is at home of them."""

    folder: Path
    whole: tuple[Attempt, ...]
    damaged: tuple[Attempt, ...]  #: another file than the worker wrote
    gone: tuple[Attempt, ...]

    @classmethod
    def found_in(cls, folder: Path, accepted: Iterable[Attempt]) -> "KeptParts":
        """Check all parts in this folder, each of which is read."""
        whole: list[Attempt] = []
        damaged: list[Attempt] = []
        gone: list[Attempt] = []
        for attempt in accepted:
            path = folder / attempt.part
            if not attempt.part:  # its items went to a feed
                continue
            if is_whole(path, attempt.report):
                whole.append(attempt)
            elif path.exists():
                damaged.append(attempt)
            else:
                gone.append(attempt)
        return cls(folder=folder, whole=tuple(whole), damaged=tuple(damaged), gone=tuple(gone))

    @property
    def bad(self) -> tuple[Attempt, ...]:
        """The attempts whose parts have to be fetched again."""
        return (*self.damaged, *self.gone)

    def losses(self, left_out: Mapping[int, Runs]) -> tuple[int, list[str]]:
        """Return how many items are lost with bad parts, and the sentences that say so.

        `left_out`: runs of items that count no more, by batch.
        """
        sentences = []
        lost_with_gone = _reported_items(self.gone, left_out)
        lost_with_damaged = _reported_items(self.damaged, left_out)
        if self.gone:
            parts = counted(len(self.gone), "part that came home is", "parts that came home are")
            sentences.append(
                f"{counted(lost_with_gone, 'item is', 'items are')} lost: {parts} not in"
                f" {self.folder} any more{_remedy(self.gone)}"
            )
        if self.damaged:
            parts = counted(len(self.damaged), "part has", "parts have")
            sentences.append(
                f"{counted(lost_with_damaged, 'item is', 'items are')} lost: {parts} changed in"
                f" {self.folder} since the worker wrote it, and nothing of it is"
                f" used{_remedy(self.damaged)}"
            )
        return lost_with_gone + lost_with_damaged, sentences


def _reported_items(attempts: Iterable[Attempt], left_out: Mapping[int, Runs]) -> int:
    """Return the number of items by the reports, without those that count no more."""
    items = 0
    for attempt in attempts:
        reported = int(attempt.report.get("items") or 0)
        items += reported - count_items(left_out.get(attempt.batch, ()))
    return items


def _remedy(bad: tuple[Attempt, ...]) -> str:
    crawl = crawl_in(bad[0].job)
    return f". `sdist items pull {crawl}` fetches those that their nodes still have."


def differing_counts(counts: Iterable[tuple[int, int]]) -> tuple[int, list[str]]:
    """Return how many items are missing in files, and the sentence that says so.

    `counts`: of each file, the items that were reported, and those that are in it.
    """
    lost = 0
    short = 0
    for reported, found in counts:
        if found < reported:
            lost += reported - found
            short += 1
    if not short:
        return 0, []
    files = counted(short, "file has", "files have")
    items = counted(lost, "item is", "items are")
    return lost, [f"{items} lost: {files} fewer of them than reported."]
