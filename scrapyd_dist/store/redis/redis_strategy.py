"""The Redis store's verbs about crawling strategies."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from scrapyd_dist.batches import Batch
from scrapyd_dist.errors import ForeignRow, StepRefused
from scrapyd_dist.frontier.backlog import producer_name
from scrapyd_dist.store.ports.frontier_rows import at_work
from scrapyd_dist.store.ports.judging import LARGEST, foreign
from scrapyd_dist.store.ports.judging import whole as whole_number
from scrapyd_dist.store.ports.link_rows import (
    PROMOTED,
    UNBELIEVED,
    by_fingerprint,
    checked_metadata,
    split_evenly,
)
from scrapyd_dist.store.ports.strategy_store import StrategyStore
from scrapyd_dist.store.redis.redis_batches import count_writes, new_rows, numbered
from scrapyd_dist.store.redis.redis_link import (
    CHUNK,
    LOG,
    MOST_LINKS,
    OF_A_STRATEGY,
    Command,
    RedisConnection,
    RedisPort,
    whole,
    word,
)
from scrapyd_dist.strategy.links import (
    WORK,
    Link,
    LinkChange,
    LinkEvent,
    States,
    StrategyBacklog,
    StrategyProcess,
    StrategyStep,
)

#: fields that are asked for with one command
_FIELDS = 5_000
#: how often events, or the front of the queue, are read again when some cannot be read
_TRIES = 5
#: batches that are removed in one step
_BATCHES = 200
#: the counts of a strategy: of links by state, of the queue, of events
_COUNTS = ("1", "2", "3", "waiting", "later", "pending", "dead")
#: digits of a link's place in the queue, before its request
_PLACE = 12

K = TypeVar("K")


class RedisStrategy(RedisPort, StrategyStore):
    """The port for crawling strategies on a Redis server."""

    def __init__(self, connection: RedisConnection) -> None:
        super().__init__(connection)
        self._rows = connection.link_rows

    def _key(self, crawl: str, kind: str) -> str:
        return f"{self._base(crawl)}s:{kind}"

    def _fields(self, crawl: str, kind: str, names: Sequence[bytes | str]) -> list[bytes | None]:
        """Return these fields of a hash of the strategy; None for what is not there."""
        key = self._key(crawl, kind)
        chunks = split_evenly(names, _FIELDS)
        values: list[bytes | None] = []
        for answer in self._server.query_all(("HMGET", key, *chunk) for chunk in chunks):
            values += answer
        return values

    # processes

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        """Take the process's share of the partitions, and return it."""
        answer = self._crawl_step(
            "hold_partitions", crawl, process=process, seconds=seconds, finished=finished
        )
        return list(map(int, answer["partitions"]))

    def leave_partitions(self, crawl: str, process: str) -> None:
        """Free the partitions of a process that ends."""
        self._crawl_step("leave_partitions", crawl, process=process)

    # events

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        """Return the oldest events of these partitions; those that cannot be read become dead."""
        wanted = sorted(set(partitions))
        for _ in range(_TRIES):
            answer = self._crawl_step("events", crawl, partitions=wanted, limit=limit)
            found, faults = self._readable_events(crawl, answer["numbers"])
            if not faults:
                break
            self._set_aside(crawl, dead=list(faults), faults=list(faults.values()))
        return found

    def _readable_events(
        self, crawl: str, names: Iterable[str]
    ) -> tuple[list[LinkEvent], dict[int, str]]:
        """Return the events that can be read, and why the others cannot, by number."""
        numbers = self._event_numbers(crawl, names)
        texts = self._fields(crawl, "events", list(map(str, numbers)))
        found: list[LinkEvent] = []
        faults: dict[int, str] = {}
        for number, text in zip(numbers, texts, strict=True):
            try:
                found.append(self._rows.event(crawl, number, text or b""))
            except ForeignRow as error:
                self._door.log_fault(str(error))
                faults[number] = str(error)
        return found, faults

    def _event_numbers(self, crawl: str, names: Iterable[str]) -> list[int]:
        what = f"a number of an event of {crawl}"

        def read_number(name: str) -> int:
            try:
                return int(whole_number(1, LARGEST)(int(name)))
            except ValueError:
                raise foreign(what, "it is no number") from None

        return self._door.each(read_number, names)

    # links and domains

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        """Return those of these links that are there, without their requests."""
        prints = list(dict.fromkeys(fingerprints))
        values = self._fields(crawl, "links", prints)
        links = self._door.each(lambda row: self._rows.link_of(*row), _kept_pairs(prints, values))
        return by_fingerprint(links)

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the metadata of those of these sites that have any."""
        sites = list(dict.fromkeys(names))
        rows = _kept_pairs(sites, self._fields(crawl, "domains", sites))
        return dict(self._door.each(lambda row: (row[0], self._rows.domain(*row)), rows))

    # the front of the queue

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        """Return the links to be requested next; those that cannot be read leave the queue."""
        wanted = sorted(set(partitions))
        for _ in range(_TRIES):
            answer = self._crawl_step(
                "queue_heads",
                crawl,
                partitions=wanted,
                ahead=ahead,
                limit=limit,
                now=repr(now),
                promoted=PROMOTED,
            )
            places: list[tuple[str, bytes]] = []
            prints: list[bytes] = []
            for slot, name in answer["links"]:
                fingerprint = bytes.fromhex(name)
                places.append((slot, fingerprint))
                prints.append(fingerprint)
            values = self._fields(crawl, "links", prints)
            requests = self._fields(crawl, "requests", prints)
            heads: list[Link] = []
            bad: list[tuple[str, bytes]] = []
            for place, value, request in zip(places, values, requests, strict=True):
                try:
                    heads.append(self._head(crawl, place[1], value or b"", request or b""))
                except ForeignRow as error:
                    self._door.log_fault(str(error))
                    bad.append(place)
            if not bad:
                break
            self._set_links_aside(crawl, bad, dict(zip(prints, values, strict=True)), ahead, now)
        return heads

    def _head(self, crawl: str, fingerprint: bytes, value: bytes, request: bytes) -> Link:
        link = self._rows.link_of(fingerprint, value)
        return replace(link, request=self._rows.request(crawl, fingerprint, request[_PLACE:]))

    def _set_links_aside(
        self,
        crawl: str,
        bad: Sequence[tuple[str, bytes]],
        values: dict[bytes, bytes | None],
        front: int,
        now: float,
    ) -> None:
        """Take links that cannot be requested out of the queue, or they would block it for ever.

        `bad` are slot and fingerprint of each, `values` the links' texts.
        """
        blobs: list[bytes | str] = []
        places: list[tuple[str, str]] = []
        for slot, fingerprint in bad:
            try:
                link = self._rows.link_of(fingerprint, values[fingerprint] or b"")
            except ForeignRow:
                link = Link(fingerprint=fingerprint, url="", state=States.ERROR)
            failed = replace(link, state=States.ERROR, reason=UNBELIEVED)
            blobs += [fingerprint, self._rows.value(failed)]
            places.append((slot, fingerprint.hex()))
        self._set_aside(crawl, blobs, places=places, front=front, at=repr(now))

    def _set_aside(self, crawl: str, blobs: Sequence[bytes | str] = (), **what: Any) -> None:
        """Make the step that buries events and takes links aside, with what is named."""
        argument: dict[str, Any] = {"dead": [], "faults": [], "places": [], "front": 0, "at": ""}
        argument |= what
        argument["links"] = len(blobs) // 2
        argument["words"] = self._rows.words_of(UNBELIEVED)
        self._crawl_step("set_aside", crawl, blobs=blobs, **argument)

    # steps

    def apply(self, step: StrategyStep) -> list[Batch]:
        """Make the step in one call of the script."""
        crawl = step.crawl
        links = by_fingerprint(step.links)
        rows, batch_blobs = new_rows(self._door, crawl, step.new)
        blobs = self._link_blobs(crawl, links.values())
        blobs += _move_blobs(step)
        blobs += self._rows.event_texts(crawl, step.events)
        answer = self._crawl_step(
            "strategy",
            crawl,
            process=step.process,
            partitions=sorted(set(step.partitions)),
            handled=sorted(set(step.handled)),
            dead=list(step.dead),
            faults=list(step.dead.values()),
            dropped=list(step.dropped),
            links=len(links),
            moved=len(step.moved),
            at=repr(float(step.now)),
            events=[event.partition for event in step.events],
            new=rows,
            writes=self._writes(step),
            blobs=[*blobs, *batch_blobs],
        )
        if "refused" in answer:
            raise StepRefused(
                f"{step.process} cannot make this step of the strategy of {crawl} any more: another"
                f" process has changed what it is about ({answer['why']})"
            )
        return numbered(step.new, answer["numbers"])

    def _link_blobs(self, crawl: str, links: Iterable[Link]) -> list[bytes | str]:
        """Return four blobs for each link: fingerprint, text, request (or empty) and reason."""
        blobs: list[bytes | str] = []
        for link in links:
            request = ""
            if link.request is not None:
                request = self._rows.request_text(crawl, link.fingerprint, link.request)
            blobs += [
                link.fingerprint,
                self._rows.value(link),
                request,
                self._rows.words_of(link.reason),
            ]
        return blobs

    def _writes(self, step: StrategyStep) -> list[Command]:
        domains = self._key(step.crawl, "domains")
        writes = count_writes(self._base(step.crawl), step.counts)
        for name, metadata in step.domains.items():
            if metadata is None:
                writes.append(("HDEL", domains, name))
            else:
                writes.append(("HSET", domains, name, checked_metadata(name, metadata)))
        return writes

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        """Close the queue, or open it again; returns whether that was done."""
        own = producer_name(WORK, "")
        answer = self._crawl_step(
            "end_strategy", crawl, ended=int(ended), if_empty=if_empty, own=own
        )
        return "refused" not in answer

    # what a person asks for

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        """Return the counts that the script keeps, whatever the number of links."""
        found = self._crawl_step("strategy_backlog", crawl)
        meta = _pairs(found["meta"])
        counts = {name: whole(meta.get(name), f"the count {name}", MOST_LINKS) for name in _COUNTS}
        states: dict[States, int] = {}
        for state in States:
            if state is not States.NOT_CRAWLED and counts[f"{int(state)}"]:
                states[state] = counts[f"{int(state)}"]
        return StrategyBacklog(
            states=states,
            queued=counts["waiting"] - counts["later"],
            later=counts["later"],
            events=counts["pending"],
            dead=counts["dead"],
            processes=_processes(
                found["processes"], found["finished"], _pairs(found["partitions"])
            ),
            ended=meta.get("ended") == "1",
        )

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        """Return the changes behind that number, with the links' addresses where they are known."""
        kept = self._query("HGET", self._key(crawl, "meta"), "changes")
        last = whole(kept, f"the number of changes of {crawl}", MOST_LINKS)
        entries = self._log_entries(crawl, after, min(last, after + limit))
        changes = self._door.each(
            lambda numbered_entry: self._rows.change_of(*numbered_entry),
            enumerate(entries, after + 1),
        )
        links = self.links(crawl, {change.fingerprint for change in changes})
        with_urls = []
        for change in changes:
            link = links.get(change.fingerprint)
            with_urls.append(change if link is None else replace(change, url=link.url))
        return with_urls

    def _log_entries(self, crawl: str, after: int, end: int) -> list[bytes]:
        """Return the entries of the log from number `after` + 1 to `end`."""
        commands = []
        for piece in range(after // LOG, -(-end // LOG)):
            first = piece * LOG
            start = max(0, after - first)
            stop = min(LOG, end - first) - 1
            commands.append(("LRANGE", self._key(crawl, f"log:{piece}"), start, stop))
        entries: list[bytes] = []
        for answer in self._server.query_all(commands):
            entries += answer
        return entries

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        """Return the dead letters that can be read, by number."""
        if limit < 1:
            return []
        names = self._query("ZRANGE", self._key(crawl, "dead"), 0, limit - 1)
        numbers = self._event_numbers(crawl, map(word, names))
        fields = list(map(str, numbers))
        texts = self._fields(crawl, "events", fields)
        faults = self._fields(crawl, "faults", fields)

        def read_event(row: tuple[int, bytes | None, bytes | None]) -> LinkEvent:
            number, text, fault = row
            return self._rows.event(crawl, number, text or b"", word(fault or b""))

        return self._door.each(read_event, zip(numbers, texts, faults, strict=True))

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        """Let dead letters wait again, and return how many there were."""
        wanted = None if numbers is None else sorted(set(numbers))
        return int(self._crawl_step("replay", crawl, numbers=wanted)["revived"])

    def reset_strategy(self, crawl: str) -> None:
        """Forget the strategy in one step, then its batches and fingerprints in pieces."""
        base = self._base(crawl)
        writes = [("UNLINK", base + kind) for kind in ("counts", "kept", "misses", "misses:own")]
        answer = self._crawl_step("reset_strategy", crawl, singles=OF_A_STRATEGY, writes=writes)
        if "refused" in answer:
            raise at_work(crawl, int(answer.get("out", 0)), str(answer.get("process", "")))
        last = self._number_of(crawl, "batches")
        for first in range(1, last + 1, _BATCHES):
            piece_end = min(last, first + _BATCHES - 1)
            self._crawl_step("drop_batches", crawl, first=first, last=piece_end)
        buckets = [f"{base}f:{number}" for number in range(self._number_of(crawl, "buckets"))]
        for chunk in split_evenly(buckets, CHUNK):
            self._server.query_all([("UNLINK", *chunk)])
        self._write(crawl, ("HDEL", f"{base}meta", "prints", "buckets"))


def _kept_pairs(names: Sequence[K], values: Sequence[bytes | None]) -> list[tuple[K, bytes]]:
    """Return the names that have a value, each with it."""
    pairs = []
    for name, value in zip(names, values, strict=True):
        if value is not None:
            pairs.append((name, value))
    return pairs


def _move_blobs(step: StrategyStep) -> list[bytes | str]:
    """Return three blobs for each moved link: fingerprint, score, and when it is due (or empty)."""
    blobs: list[bytes | str] = []
    for fingerprint, move in step.moved.items():
        due = "" if move.due is None else repr(float(move.due))
        blobs += [fingerprint, repr(float(move.score)), due]
    return blobs


def _processes(
    names: Iterable[str], finished: Collection[str], holders: Mapping[str, str]
) -> list[StrategyProcess]:
    """Return the processes by name; `holders` is partition -> process."""
    live = set(names)
    partitions: defaultdict[str, list[int]] = defaultdict(list)
    for partition, holder in holders.items():
        if holder in live:
            partitions[holder].append(whole(partition, "a partition"))
    processes = []
    for name in sorted(live):
        held = sorted(partitions[name])
        processes.append(StrategyProcess(name=name, finished=name in finished, partitions=held))
    return processes


def _pairs(words: Iterable[str]) -> dict[str, str]:
    """Return names and values that stand one after the other, as a dictionary."""
    iterator = iter(words)
    return dict(zip(iterator, iterator, strict=True))
