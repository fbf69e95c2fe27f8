"""The SQLite store's verbs about batches: sealing, requeueing, splitting; each step goes by the table of batches.py."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from scrapyd_dist.batches import Batch, BatchState, check_step
from scrapyd_dist.errors import NothingMatched
from scrapyd_dist.store.frontier_rows import batch_from, handed_down, joined, parted
from scrapyd_dist.store.rows import check_done, check_parts, crawl_row, retried_already, signed_row, storable, text
from scrapyd_dist.store.sqlite_file import SqlitePort

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from scrapyd_dist.batches import AttemptState, Miss
    from scrapyd_dist.frontier.backlog import NewBatch
    from scrapyd_dist.store.sqlite_crawls import SqliteAccount, SqliteCrawls
    from scrapyd_dist.store.sqlite_file import SqliteConnection

BATCH = ", ".join(field.name for field in fields(Batch))


class SqliteBatches(SqlitePort):
    """Batches and fingerprints."""

    def __init__(self, connection: SqliteConnection, crawls: SqliteCrawls, account: SqliteAccount) -> None:
        super().__init__(connection)
        self._crawls, self._account = crawls, account

    # sealing

    def seal(
        self,
        crawl: str,
        payload: Mapping[str, str],
        *,
        size: int,
        fingerprints: Iterable[bytes],
        now: float,
        counts: Mapping[str, int],
    ) -> Batch:
        with self._file.step():
            batch = self.insert(crawl, payload, Batch(number=0, size=size, sealed_at=now))
            number = self.crawl_number(crawl)
            rows = [(number, fingerprint) for fingerprint in fingerprints]
            self._db.executemany("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", rows)
            self._account.add_counts(crawl, counts)
        return batch

    def crawl_number(self, crawl: str) -> int:
        """The short name of a crawl."""
        row = self._db.execute("SELECT number FROM crawls WHERE id = ?", (crawl,)).fetchone()
        if row is None:
            raise self._crawls.no_crawl(crawl)
        number: int = row[0]
        return number

    def insert(self, crawl: str, payload: Mapping[str, str], new: Batch, fingerprints: Collection[bytes] = ()) -> Batch:
        self._db.execute(
            "INSERT INTO batch_numbers VALUES (?, 1) ON CONFLICT (crawl) DO UPDATE SET last = last + 1", (crawl,)
        )
        last = self._db.execute("SELECT last FROM batch_numbers WHERE crawl = ?", (crawl,)).fetchone()[0]
        row = {field.name: getattr(new, field.name) for field in fields(Batch)}
        row |= {"number": last, "state": new.state.value}
        marks = ", ".join(f":{name}" for name in row)
        self._db.execute(f"INSERT INTO batches (crawl, {BATCH}) VALUES (:crawl, {marks})", {**row, "crawl": crawl})  # noqa: S608 - own names
        self._db.execute(
            "INSERT INTO payloads VALUES (?, ?, ?, ?)",
            (crawl, last, self._door.payload_text(crawl, new, payload), joined(fingerprints) if fingerprints else None),
        )
        return replace(new, number=last)

    def fingerprints(self, crawl: str) -> Iterator[bytes]:
        query = "SELECT fingerprint FROM seen WHERE crawl = (SELECT number FROM crawls WHERE id = ?)"
        for row in self._db.execute(query, (crawl,)):
            yield row[0]

    # batches

    def batch(self, crawl: str, number: int) -> Batch:
        row = self._db.execute(
            f"SELECT {BATCH} FROM batches WHERE crawl = ? AND number = ?",  # noqa: S608 - own names
            (crawl, number),
        ).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {number}.")
        return self._door.batch(dict(row))

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        where, values = in_states(states)
        query = f"SELECT {BATCH} FROM batches WHERE crawl = ?{where} ORDER BY number"  # noqa: S608 - only marks are added
        return self._door.each(self._door.batch, map(dict, self._db.execute(query, (crawl, *values))))

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        return self.payload_of(crawl, self.batch(crawl, number))

    def payload_of(self, crawl: str, batch: Batch) -> dict[str, str]:
        row = self._db.execute(
            "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?", (crawl, batch.number)
        ).fetchone()
        if row is None:
            raise NothingMatched(f"crawl {crawl} has no batch {batch.number}.")
        return self._door.payload(crawl, batch, row[0])

    def trust(self, crawl: str) -> int:
        with self._file.step():
            row = self._crawls.crawl(crawl)
            options = self._crawls.unchecked(crawl)
            self._crawls.set_row(crawl, {"options": signed_row(self._door.signer, crawl_row(vars(row)), options)})
            return self._sign_batches(crawl)

    def _sign_batches(self, crawl: str) -> int:
        batches = self.batches(crawl)
        query = "SELECT settings FROM payloads WHERE crawl = ? AND batch = ?"
        for batch in batches:
            row = self._db.execute(query, (crawl, batch.number)).fetchone()
            payload = self._door.resigned(crawl, batch, row[0])
            self._db.execute(
                "UPDATE payloads SET settings = ? WHERE crawl = ? AND batch = ?", (payload, crawl, batch.number)
            )
        return len(batches)

    def requeue(self, crawl: str, numbers: Collection[int]) -> list[int]:
        again = []
        with self._file.step():
            for number in sorted(set(numbers)):
                batch = self.batch(crawl, number)
                if batch.state is BatchState.DEAD:
                    self.move(crawl, number, BatchState.SEALED, forgiven=batch.attempts)
                    again.append(number)
        return again

    def split(self, crawl: str, number: int, parts: Sequence[NewBatch]) -> list[Batch]:
        with self._file.step():
            whole = self.batch(crawl, number)
            check_parts(number, whole.size, [part.size for part in parts])
            self.move(crawl, number, BatchState.SPLIT)
            prints = handed_down(self.batch_fingerprints(crawl, number), whole.size, parts)
            return [
                self.insert(crawl, part.payload, batch_from(part, whole.sealed_at, parent=number), its)
                for part, its in zip(parts, prints, strict=True)
            ]

    def batch_fingerprints(self, crawl: str, number: int) -> list[bytes]:
        row = self._db.execute(
            "SELECT fingerprints FROM payloads WHERE crawl = ? AND batch = ?", (crawl, number)
        ).fetchone()
        return parted(row[0] or b"") if row else []

    def retry(
        self,
        crawl: str,
        number: int,
        parts: Sequence[tuple[Mapping[str, str], int]],
        *,
        misses: Sequence[Miss],
        now: float,
    ) -> list[Batch]:
        check_parts(number, len(misses), [size for _, size in parts])
        with self._file.step():
            old = self.batch(crawl, number)
            check_done(number, old.state)
            self._forget_misses(crawl, number, misses)
            like = Batch(number=0, size=0, sealed_at=now, slot=old.slot, priority=old.priority)
            return [self.insert(crawl, payload, replace(like, size=size)) for payload, size in parts]

    def _forget_misses(self, crawl: str, number: int, misses: Sequence[Miss]) -> None:
        """Each once; raises `StepRefused` when one of them is not there."""
        query = "SELECT rowid, url, kind, reason FROM misses WHERE crawl = ? AND batch = ?"
        there: dict[tuple[str, str, str], list[int]] = {}
        for row, *words in self._db.execute(query, (crawl, number)):
            there.setdefault(tuple(words), []).append(row)
        try:
            rows = [there[text(miss.url), miss.kind, text(miss.reason)].pop(0) for miss in misses]
        except LookupError:
            raise retried_already(crawl, number) from None
        self._db.executemany("DELETE FROM misses WHERE rowid = ?", [(row,) for row in rows])

    def move(self, crawl: str, batch: int, state: BatchState, **changes: Any) -> None:
        check_step(self.batch(crawl, batch).state, state)
        changes["state"] = state.value
        assignments = ", ".join(f"{name} = :{name}" for name in changes)
        self._db.execute(
            f"UPDATE batches SET {assignments} WHERE crawl = :crawl AND number = :number",  # noqa: S608 - own names
            {**storable(changes), "crawl": crawl, "number": batch},
        )


def in_states(states: Collection[BatchState] | Collection[AttemptState]) -> tuple[str, list[str]]:
    """A condition, and its values; nothing when no state is named."""
    if not states:
        return "", []
    return f" AND state IN ({', '.join('?' * len(states))})", [state.value for state in states]
