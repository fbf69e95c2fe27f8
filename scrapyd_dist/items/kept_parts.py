"""Which accepted parts are at home as their workers wrote them.

The rule it keeps: a part that is damaged, or is not there any more, is never merged or delivered in silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapyd_dist.batches import Attempt
from scrapyd_dist.items.json_lines import Runs, number
from scrapyd_dist.items.merging import sha256_of
from scrapyd_dist.joblogs.worker_report import PartInfo
from scrapyd_dist.plurals import counted
from scrapyd_dist.scrapyd.jobs import crawl_in


def part_of(report: Mapping[str, Any]) -> PartInfo | None:
    """The part as its worker has described it; None if the store has not kept that."""
    part = report.get("part")
    if not isinstance(part, Mapping):
        return None
    return PartInfo(
        file="",
        items=int(report.get("items") or 0),
        bytes=int(part["bytes"]),
        sha256=str(part["sha256"]),
    )


def is_whole(path: Path, report: Mapping[str, Any]) -> bool:
    """Whether a part is there, with the length and the hash that its worker reported."""
    try:
        size = path.stat().st_size
        part = part_of(report)
        return (
            path.is_file()
            if part is None
            else size == part.bytes and sha256_of(path) == part.sha256
        )
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
        """Look at all parts in this folder; reads each of them."""
        whole, damaged, gone = list[Attempt](), list[Attempt](), list[Attempt]()
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
        """Those that have to be fetched again."""
        return (*self.damaged, *self.gone)

    def losses(self, left_out: Mapping[int, Runs]) -> tuple[int, list[str]]:
        """How many items are lost with bad parts, and the sentences that say so.

        `left_out`: runs of items that count no more, by batch.
        """

        def lost(some: Iterable[Attempt]) -> int:
            return sum(
                int(one.report.get("items") or 0) - number(left_out.get(one.batch, ()))
                for one in some
            )

        said = []
        if self.gone:
            said.append(
                f"{counted(lost(self.gone), 'item is', 'items are')} lost:"
                f" {counted(len(self.gone), 'part that came home is', 'parts that came home are')} not in"
                f" {self.folder} any more{_remedy(self.gone)}"
            )
        if self.damaged:
            said.append(
                f"{counted(lost(self.damaged), 'item is', 'items are')} lost:"
                f" {counted(len(self.damaged), 'part has', 'parts have')} changed in {self.folder} since the worker"
                f" wrote it, and nothing of it is used{_remedy(self.damaged)}"
            )
        return lost(self.bad), said


def _remedy(bad: tuple[Attempt, ...]) -> str:
    return f". `sdist items pull {crawl_in(bad[0].job)}` fetches those that their nodes still have."


def differing_counts(counts: Iterable[tuple[int, int]]) -> tuple[int, list[str]]:
    """How many items are missing in files that have fewer than they should, and the sentence that says so.

    `counts`: of each file, the items that were reported, and those that are in it.
    """
    short = [(reported, there) for reported, there in counts if there < reported]
    if not short:
        return 0, []
    lost = sum(reported - there for reported, there in short)
    what = counted(len(short), "file has", "files have")
    return lost, [
        f"{counted(lost, 'item is', 'items are')} lost: {what} fewer of them than reported."
    ]
