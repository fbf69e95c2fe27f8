"""The port for crawls with their samples, shards and workers; and records of nodes."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from scrapyd_dist.batches import WANTED, Crawl, Shard, WorkerEntry
from scrapyd_dist.errors import NameTaken, NothingMatched, StepRefused, StoreError
from scrapyd_dist.nodes import NodeRecord
from scrapyd_dist.store.ports.rows import (
    CRAWL_COLUMNS,
    CRAWL_FIELDS,
    SIGNED,
    Door,
    check_fields,
    check_names,
    signed_row,
)

#: tries to change a row that another client changes at the same time
_TRIES = 20


class CrawlStore(ABC):
    """Crawls with their samples, shards and workers; and records of nodes, which outlive them."""

    _door: Door

    @abstractmethod
    def nodes(self) -> list[NodeRecord]:
        """Return the records of all nodes of which anything is remembered, by name."""

    @abstractmethod
    def update_node(self, /, name: str, **changes: Any) -> None:
        """Set fields of `NodeRecord` by their names; the record is made when there is none."""

    def add_crawl(self, crawl: Crawl) -> None:
        """Keep a new crawl; `NameTaken` when there is one of its id."""
        row: dict[str, Any] = {name: getattr(crawl, name) for name in CRAWL_COLUMNS}
        check_names(row)
        row["options"] = signed_row(self._door.signer, row, crawl.options)
        if not self._add_row(crawl.id, row):
            raise NameTaken(f"there is a crawl {crawl.id} already; give this one another name.")

    def crawl(self, crawl: str) -> Crawl:
        """Return the crawl of this id.

        One that this project has not signed comes without its options (`Crawl.foreign`).

        Raises:
            NothingMatched: there is none.
            ForeignRow: its row cannot be a crawl's.
        """
        return self._door.crawl(self._row(crawl), crawl)

    def own_crawl(self, crawl: str) -> Crawl:
        """Return the crawl, for a caller that acts on its options.

        Raises `ForeignRow` when this project has not signed it.
        """
        return self._door.own(self.crawl(crawl))

    @abstractmethod
    def crawls(self) -> list[Crawl]:
        """Return all crawls, newest first.

        What cannot be a row is left out, here and in all lists, and logged.
        """

    def update_crawl(self, /, crawl: str, **changes: Any) -> None:
        """Set fields of `Crawl` by their names; nothing happens when there is no such crawl.

        Raises `ForeignRow` when what is signed would change, and this project has not signed what
        is there.
        """
        check_fields("crawl", changes, CRAWL_FIELDS)
        check_names(changes)
        if not {"options", *SIGNED} & changes.keys():
            self._set_row(crawl, changes)
            return
        for _ in range(_TRIES):
            try:
                kept = self._row(crawl)
            except NothingMatched:
                return
            new = replace(self._door.own(self._door.crawl(kept, crawl)), **changes)
            row = {**changes, "options": signed_row(self._door.signer, vars(new), new.options)}
            # What the signature covers is as it was read, or all of this is done once more.
            covered = {name: kept[name] for name in ("options", *SIGNED) if name in kept}
            if self._set_row(crawl, row, covered):
                return
        raise StepRefused(f"the row of the crawl {crawl} is changed by others all the time")

    def claim(self, crawl: str, *, pid: int, host: str, before: tuple[int | None, str]) -> bool:
        """Name a process in the crawl's row, in the place of another one.

        `before` are pid and host that the caller has read there. Returns False, and changes
        nothing, when another process is named by now. Raises `NothingMatched` when there is no such
        crawl.
        """
        self.crawl(crawl)
        return self._set_row(
            crawl, {"pid": pid, "host": host}, {"pid": before[0], "host": before[1]}
        )

    def want(self, crawl: str, what: str) -> None:
        """Ask the crawl's processes for one of `batches.WANTED`; "" takes it back.

        Raises `NothingMatched` when there is no such crawl.
        """
        if what not in WANTED:
            known = ", ".join(sorted(WANTED - {""}))
            raise StoreError(f"a crawl cannot be asked for {what!r}; there are: {known}")
        if not self._set_row(crawl, {"wanted": what}):
            raise self._door.no_crawl(crawl)

    @abstractmethod
    def wanted(self, crawl: str) -> str:
        """Return what the crawl was asked for, one of `batches.WANTED`.

        It costs little, however long the crawl's row is.
        """

    @abstractmethod
    def forget(self, crawl: str) -> None:
        """Remove a crawl and everything of it, its name last.

        This is the one verb of many steps, so that no other process waits long for its turn: when
        it is broken off, the crawl is still listed, and forgetting it again finishes the work.
        """

    # a run of a crawl, beside its batches

    @abstractmethod
    def add_sample(self, crawl: str, at: float, values: Mapping[str, Any]) -> None:
        """Keep a sample of the crawl, a JSON document; `at` is in seconds since the epoch."""

    @abstractmethod
    def samples(self, crawl: str) -> list[tuple[float, dict[str, Any]]]:
        """Return time and document of each sample, in order of time."""

    @abstractmethod
    def add_shards(self, crawl: str, shards: Sequence[Shard]) -> None:
        """Keep new shards of the index; an error says that a number is taken."""

    @abstractmethod
    def shards(self, crawl: str) -> list[Shard]:
        """Return the shards, by number."""

    @abstractmethod
    def finish_shards(self, crawl: str, numbers: Collection[int]) -> None:
        """Note that all that these shards found is sealed; they are not walked again."""

    @abstractmethod
    def walk_again(self, crawl: str) -> None:
        """Forget the producer's own misses, and all counts but what is sealed.

        The index is walked anew then.
        """

    @abstractmethod
    def add_workers(self, crawl: str, workers: Sequence[WorkerEntry], *, last: int) -> None:
        """List workers that are about to be posted, each in the place of an entry with its job.

        `last` is the highest number that any worker of the crawl was given.
        """

    @abstractmethod
    def remove_worker(self, crawl: str, job: str) -> None:
        """Take a worker from the list that has ended, or was never posted."""

    @abstractmethod
    def workers(self, crawl: str) -> tuple[list[WorkerEntry], int]:
        """Return the listed workers by number, and the highest number that any was given.

        That is 0 before the first.
        """

    # the steps in which engines differ

    @abstractmethod
    def _row(self, crawl: str) -> dict[str, Any]:
        """Return the row of a crawl as it is kept, not judged; `NothingMatched` without one."""

    @abstractmethod
    def _add_row(self, crawl: str, row: Mapping[str, Any]) -> bool:
        """Keep a new row, and return False when the crawl is there already."""

    @abstractmethod
    def _set_row(
        self, crawl: str, row: Mapping[str, Any], before: Mapping[str, Any] = MappingProxyType({})
    ) -> bool:
        """Set fields of the row, if those in `before` are still kept so.

        Returns whether that was done.
        """
