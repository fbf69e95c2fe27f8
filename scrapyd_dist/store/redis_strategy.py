"""The Redis store's verbs about crawling strategies."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from scrapyd_dist.batches import Batch
from scrapyd_dist.errors import ForeignRow, StepRefused
from scrapyd_dist.frontier.backlog import producer_name
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.store.base import StrategyStore
from scrapyd_dist.store.frontier_rows import at_work
from scrapyd_dist.store.judging import LARGEST, foreign
from scrapyd_dist.store.judging import whole as whole_number
from scrapyd_dist.store.link_rows import PROMOTED, UNBELIEVED, checked_metadata, split_evenly
from scrapyd_dist.store.redis_batches import KEPT_COUNT, RedisBatches, new_rows
from scrapyd_dist.store.redis_crawls import RedisCrawls
from scrapyd_dist.store.redis_jobs import RedisJobs
from scrapyd_dist.store.redis_link import (
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
from scrapyd_dist.store.redis_throttle import RedisThrottle
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
#: how often the front of the queue is looked at again, when something there cannot be read
_TRIES = 5
#: batches that are removed in one step
_BATCHES = 200
#: the counts of a strategy
_COUNTS = ("1", "2", "3", "waiting", "later", "pending", "dead")
#: digits of a link's place in the queue, before its request
_PLACE = 12


class RedisStrategy(RedisPort, StrategyStore):
    def __init__(self, connection: RedisConnection) -> None:
        super().__init__(connection)
        self._rows = connection.link_rows

    def _key(self, crawl: str, kind: str) -> str:
        return f"{self._base(crawl)}s:{kind}"

    def _ask(self, verb: str, crawl: str, **argument: Any) -> dict[str, Any]:
        """Make a step of a crawl that has to be there."""
        return self._server.step(verb, self._base(crawl), needed=[self._there(crawl)], **argument)

    def _fields(self, crawl: str, kind: str, names: Sequence[bytes | str]) -> list[bytes | None]:
        """These fields of a hash of the strategy; asked for at once, however many they are."""
        key = self._key(crawl, kind)
        answers = self._server.ask([("HMGET", key, *some) for some in split_evenly(names, _FIELDS)])
        return [one for some in answers for one in some]

    # processes

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        answer = self._ask(
            "hold_partitions", crawl, process=process, seconds=seconds, finished=finished
        )
        return list(map(int, answer["partitions"]))

    def leave_partitions(self, crawl: str, process: str) -> None:
        self._ask("leave_partitions", crawl, process=process)

    # looking

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        for _ in range(_TRIES):
            answer = self._ask("events", crawl, partitions=sorted(set(partitions)), limit=limit)
            numbers = self._numbers(crawl, answer["numbers"])
            found, dead, faults = list[LinkEvent](), list[int](), list[str]()
            for number, text in zip(
                numbers, self._fields(crawl, "events", list(map(str, numbers))), strict=True
            ):
                try:
                    found.append(self._rows.event(crawl, number, text or b""))
                except ForeignRow as error:
                    self._door.tell(str(error))
                    dead.append(number)
                    faults.append(str(error))
            if not dead:
                break
            self._set_aside(crawl, dead=dead, faults=faults)
        return found

    def _numbers(self, crawl: str, names: Iterable[str]) -> list[int]:
        what = f"a number of an event of {crawl}"

        def number(name: str) -> int:
            try:
                return int(whole_number(1, LARGEST)(int(name)))
            except ValueError:
                raise foreign(what, "it is no number") from None

        return self._door.each(number, names)

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        prints = list(dict.fromkeys(fingerprints))
        found = zip(prints, self._fields(crawl, "links", prints), strict=True)
        there = [(one, value) for one, value in found if value is not None]
        return {
            link.fingerprint: link
            for link in self._door.each(lambda pair: self._rows.link_of(*pair), there)
        }

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        every = list(dict.fromkeys(names))
        found = zip(every, self._fields(crawl, "domains", every), strict=True)
        there = [(name, kept) for name, kept in found if kept is not None]
        return dict(self._door.each(lambda pair: (pair[0], self._rows.domain(*pair)), there))

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        for _ in range(_TRIES):
            answer = self._ask(
                "queue_heads",
                crawl,
                partitions=sorted(set(partitions)),
                ahead=ahead,
                limit=limit,
                now=repr(now),
                promoted=PROMOTED,
            )
            places = [(slot, bytes.fromhex(name)) for slot, name in answer["links"]]
            prints = [one for _, one in places]
            values, requests = (
                self._fields(crawl, "links", prints),
                self._fields(crawl, "requests", prints),
            )
            heads, bad = list[Link](), list[tuple[str, bytes]]()
            for place, value, request in zip(places, values, requests, strict=True):
                try:
                    link = self._rows.link_of(place[1], value or b"")
                    heads.append(
                        replace(link, request=self._request(crawl, place[1], request or b""))
                    )
                except ForeignRow as error:
                    self._door.tell(str(error))
                    bad.append(place)
            if not bad:
                break
            self._set_links_aside(crawl, bad, dict(zip(prints, values, strict=True)), ahead, now)
        return heads

    def _request(self, crawl: str, fingerprint: bytes, kept: bytes) -> RequestValue:
        return self._rows.request(crawl, fingerprint, kept[_PLACE:])

    def _set_links_aside(
        self,
        crawl: str,
        bad: Sequence[tuple[str, bytes]],
        values: dict[bytes, bytes | None],
        front: int,
        now: float,
    ) -> None:
        """Links that cannot be requested leave the queue, or they would be in the way of the others for ever."""
        blobs: list[bytes | str] = []
        for _, fingerprint in bad:
            try:
                link = self._rows.link_of(fingerprint, values[fingerprint] or b"")
            except ForeignRow:
                link = Link(fingerprint=fingerprint, url="", state=States.ERROR)
            blobs += [
                fingerprint,
                self._rows.value(replace(link, state=States.ERROR, reason=UNBELIEVED)),
            ]
        self._set_aside(
            crawl, blobs, places=[(slot, one.hex()) for slot, one in bad], front=front, at=repr(now)
        )

    def _set_aside(self, crawl: str, blobs: Sequence[bytes | str] = (), **what: Any) -> None:
        empty: dict[str, Any] = {"dead": [], "faults": [], "places": [], "front": 0, "at": ""}
        argument = {
            **empty,
            **what,
            "links": len(blobs) // 2,
            "words": self._rows.words_of(UNBELIEVED),
        }
        self._ask("set_aside", crawl, blobs=blobs, **argument)

    # steps

    def apply(self, step: StrategyStep) -> list[Batch]:
        crawl, links = step.crawl, {link.fingerprint: link for link in step.links}
        rows, batch_blobs = new_rows(self._door, crawl, step.new)
        blobs: list[bytes | str] = []
        for link in links.values():
            request = (
                ""
                if link.request is None
                else self._rows.request_text(crawl, link.fingerprint, link.request)
            )
            blobs += [
                link.fingerprint,
                self._rows.value(link),
                request,
                self._rows.words_of(link.reason),
            ]
        for fingerprint, move in step.moved.items():
            blobs += [
                fingerprint,
                repr(float(move.score)),
                "" if move.due is None else repr(float(move.due)),
            ]
        blobs += [self._rows.event_text(crawl, event) for event in step.events]
        answer = self._ask(
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
                f"{step.process} cannot make this step of the strategy of {crawl} any more: another process has changed"
                f" what it is about ({answer['why']})"
            )
        return [
            one.numbered(number) for one, number in zip(step.new, answer["numbers"], strict=True)
        ]

    def _writes(self, step: StrategyStep) -> list[Command]:
        base, domains = self._base(step.crawl), self._key(step.crawl, "domains")
        writes: list[Command] = [
            ("HINCRBY", base + ("kept" if name == KEPT_COUNT else "counts"), name, value)
            for name, value in step.counts.items()
            if value
        ]
        for name, metadata in step.domains.items():
            gone = metadata is None
            writes.append(
                ("HDEL", domains, name)
                if gone
                else ("HSET", domains, name, checked_metadata(name, metadata or {}))
            )
        return writes

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        own = producer_name(WORK, "")
        return "refused" not in self._ask(
            "end_strategy", crawl, ended=int(ended), if_empty=if_empty, own=own
        )

    # what a person asks for

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        found = self._ask("strategy_backlog", crawl)
        meta, partitions = _pairs(found["meta"]), _pairs(found["partitions"])
        counts = {name: whole(meta.get(name), f"the count {name}", MOST_LINKS) for name in _COUNTS}
        states = {
            state: counts[f"{int(state)}"] for state in States if state is not States.NOT_CRAWLED
        }
        finished = set(found["finished"])
        processes = [
            StrategyProcess(
                name=name,
                finished=name in finished,
                partitions=sorted(
                    whole(one, "a partition")
                    for one, holder in partitions.items()
                    if holder == name
                ),
            )
            for name in sorted(found["processes"])
        ]
        return StrategyBacklog(
            states={state: number for state, number in states.items() if number},
            queued=counts["waiting"] - counts["later"],
            later=counts["later"],
            events=counts["pending"],
            dead=counts["dead"],
            processes=processes,
            ended=meta.get("ended") == "1",
        )

    def changes(self, crawl: str, after: int = 0, limit: int = 10_000) -> list[LinkChange]:
        said = self._look("HGET", self._key(crawl, "meta"), "changes")
        last = whole(said, f"the number of changes of {crawl}", MOST_LINKS)
        end = min(last, after + limit)
        looks = []
        for piece in range(after // LOG, -(-end // LOG)):
            first = piece * LOG
            looks.append(
                (
                    "LRANGE",
                    self._key(crawl, f"log:{piece}"),
                    max(0, after - first),
                    min(LOG, end - first) - 1,
                )
            )
        entries = [one for some in self._server.ask(looks) for one in some]
        changes = self._door.each(
            lambda pair: self._rows.change_of(*pair), enumerate(entries, after + 1)
        )
        known = self.links(crawl, {change.fingerprint for change in changes})
        return [
            replace(one, url=known[one.fingerprint].url) if one.fingerprint in known else one
            for one in changes
        ]

    def dead_events(self, crawl: str, limit: int = 1_000) -> list[LinkEvent]:
        if limit < 1:
            return []
        names = self._look("ZRANGE", self._key(crawl, "dead"), 0, limit - 1)
        numbers = list(map(str, self._numbers(crawl, map(word, names))))
        texts, faults = (
            self._fields(crawl, "events", numbers),
            self._fields(crawl, "faults", numbers),
        )
        rows = [
            (crawl, int(number), text or b"", word(fault or b""))
            for number, text, fault in zip(numbers, texts, faults, strict=True)
        ]
        return self._door.each(lambda row: self._rows.event(*row), rows)

    def replay(self, crawl: str, numbers: Collection[int] | None = None) -> int:
        wanted = None if numbers is None else sorted(set(numbers))
        return int(self._ask("replay", crawl, numbers=wanted)["revived"])

    def reset_strategy(self, crawl: str) -> None:
        base = self._base(crawl)
        kinds = ("counts", "kept", "misses", "misses:own")
        gone = [("UNLINK", base + kind) for kind in kinds]
        answer = self._ask("reset_strategy", crawl, singles=OF_A_STRATEGY, writes=gone)
        if "refused" in answer:
            raise at_work(crawl, int(answer.get("out", 0)), str(answer.get("process", "")))
        last = self._number_of(crawl, "batches")
        for first in range(1, last + 1, _BATCHES):
            self._ask("drop_batches", crawl, first=first, last=min(last, first + _BATCHES - 1))
        buckets = [f"{base}f:{number}" for number in range(self._number_of(crawl, "buckets"))]
        for some in split_evenly(buckets, CHUNK):
            self._server.ask([("UNLINK", *some)])
        self._write(crawl, ("HDEL", f"{base}meta", "prints", "buckets"))


def _pairs(words: Iterable[str]) -> dict[str, str]:
    each = iter(words)
    return dict(zip(each, each, strict=True))


def redis_parts(url: str, *, key: bytes | None) -> tuple[object, ...]:
    """The store on this server, 6.0 or newer: the connection, and the ports that share it."""
    connection = RedisConnection(url, key=key)
    ports = (RedisCrawls, RedisBatches, RedisThrottle, RedisJobs, RedisStrategy)
    return connection, *(port(connection) for port in ports)
