"""The verbs of a strategy's store in dicts, and a worker that answers from a table of pages: no file, no process."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from scrapyd_dist.batches import Batch, BatchState
from scrapyd_dist.errors import StepRefused
from scrapyd_dist.frontier.backlog import Backlog, SlotCount
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import RequestValue, decode
from scrapyd_dist.strategy import BasicStrategy, BreadthFirst, CrawlingStrategy, Request, Response
from scrapyd_dist.strategy.links import (
    PARTITIONS,
    EventKind,
    FoundLink,
    Link,
    LinkChange,
    LinkEvent,
    LinkMove,
    States,
    StrategyBacklog,
    StrategyProcess,
    StrategyStep,
    is_empty,
    partition_of,
)
from scrapyd_dist.strategy.manager import StrategyManager

#: how often a page that fails is tried
TRIES = 2


class Counting(BreadthFirst):
    """Counts what each handler was told of, in the metadata."""

    def page_crawled(self, response: Response) -> None:
        super().page_crawled(response)
        self.count(response.request.site, "pages")

    def links_extracted(self, request: Request, links: list[Request]) -> None:
        for link in links:
            self.count(link.site, "links")
        super().links_extracted(request, links)

    def request_error(self, request: Request, error: str) -> None:
        super().request_error(request, error)
        self.count(request.site, error)
        request.meta["tries"] = request.meta.get("tries", 1) + 1
        if request.meta["tries"] <= TRIES:
            self.schedule(request, 0.1)

    def count(self, site: str, what: str) -> None:
        metadata = self.domains[site]
        metadata[what] = metadata.get(what, 0) + 1


class Killed(BaseException):
    """The process is gone: nothing of it can handle this."""


def fingerprint_of(value: RequestValue) -> bytes:
    """The address with the body, hashed."""
    body = json.dumps(value.get("body", ""))
    return hashlib.sha1(
        f"{value.get('method', 'GET')} {value['url']} {body}".encode(), usedforsecurity=False
    ).digest()


@dataclass
class MemoryStore:
    """One strategy; `before` is called in front of each verb, and may raise in its place."""

    before: Callable[[str], None] = lambda _: None
    clock: Callable[[], float] = lambda: 0.0
    queue: dict[bytes, Link] = field(default_factory=dict)  #: every link, in order of arrival
    waiting: dict[int, LinkEvent] = field(default_factory=dict)
    dead: dict[int, LinkEvent] = field(default_factory=dict)
    metadata: dict[str, dict[str, Any]] = field(default_factory=dict)
    cut: dict[int, tuple[Batch, dict[str, str]]] = field(default_factory=dict)
    processes: dict[str, tuple[float, bool, set[int]]] = field(default_factory=dict)
    producers: dict[str, float] = field(default_factory=dict)
    log: list[LinkChange] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    ended: bool = False
    number: int = 0

    def _enter(self, verb: str) -> None:
        self.before(verb)
        self.calls[verb] += 1

    def _next(self) -> int:
        self.number += 1
        return self.number

    # partitions

    def hold_partitions(
        self, crawl: str, process: str, seconds: float, *, finished: bool = False
    ) -> list[int]:
        self._enter("hold_partitions")
        now = self.clock()
        mine = self.processes.get(process, (0.0, False, set()))[2]
        self.processes = {
            name: one for name, one in self.processes.items() if one[0] > now and name != process
        }
        taken = {number for _, _, numbers in self.processes.values() for number in numbers}
        share = -(-PARTITIONS // (len(self.processes) + 1))
        wanted = [
            *sorted(mine - taken),
            *(one for one in range(PARTITIONS) if one not in taken | mine),
        ]
        self.processes[process] = (now + seconds, finished, set(wanted[:share]))
        return sorted(wanted[:share])

    def leave_partitions(self, crawl: str, process: str) -> None:
        self._enter("leave_partitions")
        self.processes.pop(process, None)

    # reading

    def events(self, crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        self._enter("events")
        mine = [event for _, event in sorted(self.waiting.items()) if event.partition in partitions]
        return [_copied(event) for event in mine[:limit]]

    def links(self, crawl: str, fingerprints: Collection[bytes]) -> dict[bytes, Link]:
        self._enter("links")
        found = {one: self.queue[one] for one in fingerprints if one in self.queue}
        return {
            one: replace(link, request=None, waits=link.request is not None)
            for one, link in found.items()
        }

    def domains(self, crawl: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
        self._enter("domains")
        return {
            name: json.loads(json.dumps(self.metadata[name]))
            for name in names
            if name in self.metadata
        }

    def queue_heads(
        self, crawl: str, partitions: Collection[int], *, ahead: int, limit: int, now: float
    ) -> list[Link]:
        self._enter("queue_heads")
        if self.ended:
            return []
        room = Counter[str]()
        for batch, _ in self.cut.values():
            room[batch.slot] += batch.size if batch.state is BatchState.SEALED else 0
        heads = []
        for link in sorted(self.queue.values(), key=lambda one: -one.score):
            if (
                link.request
                and link.partition in partitions
                and link.due <= now
                and room[link.slot] < ahead
            ):
                room[link.slot] += 1
                heads.append(link)
        return heads[:limit]

    # steps

    def apply(self, step: StrategyStep) -> list[Batch]:
        self._enter("apply")
        self._check(step)
        for number in step.handled:
            del self.waiting[number]
        for number, fault in step.dead.items():
            self.dead[number] = replace(self.waiting.pop(number), fault=fault)
        for link in step.links:
            self._keep(link, step.now)
        for fingerprint, move in step.moved.items():
            self._move(fingerprint, move)
        self.tell(step.events)
        self.metadata.update(
            {name: json.loads(json.dumps(one)) for name, one in step.domains.items() if one}
        )
        for name in [name for name, one in step.domains.items() if not one]:
            self.metadata.pop(name, None)
        for number in step.dropped:
            del self.cut[number]
        self.counts.update(step.counts)
        batches = []
        for new in step.new:
            batch = new.numbered(self._next())
            self.cut[batch.number] = (batch, dict(new.payload))
            batches.append(batch)
            for fingerprint in new.fingerprints:
                self.queue[fingerprint] = replace(self.queue[fingerprint], request=None)
        self.before("applied")
        return batches

    def _check(self, step: StrategyStep) -> None:
        held = self.processes.get(step.process, (0.0, False, set()))
        if not set(step.partitions) <= held[2] or (step.partitions and held[0] <= self.clock()):
            raise StepRefused(f"{step.process} does not hold all of these partitions")
        if any(number not in self.waiting for number in (*step.handled, *step.dead)):
            raise StepRefused("an event was handled already")
        for number in step.dropped:
            if number not in self.cut or self.cut[number][0].state is not BatchState.DEAD:
                raise StepRefused(f"batch {number} is not dead")
        for new in step.new:
            assert len(new.fingerprints) == new.size
            if any(self.queue[one].request is None for one in new.fingerprints):
                raise StepRefused("a link is in a batch already")

    def _move(self, fingerprint: bytes, move: LinkMove) -> None:
        link = self.queue.get(fingerprint)
        if link is not None and link.state is States.QUEUED:
            due = link.due if move.due is None else move.due
            self.queue[fingerprint] = replace(link, score=move.score, due=due)

    def _keep(self, link: Link, now: float) -> None:
        assert (link.request is not None) is (link.state is States.QUEUED), link
        old = self.queue.get(link.fingerprint)
        before = old.state if old else States.NOT_CRAWLED
        self.queue[link.fingerprint] = link
        self.log.append(
            LinkChange(
                number=len(self.log) + 1, at=now, fingerprint=link.fingerprint, url=link.url, before=before,
                after=link.state, score=link.score, reason=link.reason,
            )
        )  # fmt: skip

    # the crawl

    def strategy_backlog(self, crawl: str) -> StrategyBacklog:
        self._enter("strategy_backlog")
        return self._strategy_backlog()

    def _strategy_backlog(self) -> StrategyBacklog:
        waits, now = [link for link in self.queue.values() if link.request], self.clock()
        return StrategyBacklog(
            states=Counter(link.state for link in self.queue.values()), events=len(self.waiting), dead=len(self.dead),
            queued=sum(link.due <= now for link in waits), later=sum(link.due > now for link in waits),
            processes=[
                StrategyProcess(name=name, partitions=numbers, finished=finished)
                for name, (until, finished, numbers) in self.processes.items() if until > now
            ],
            ended=self.ended,
        )  # fmt: skip

    def end_strategy(self, crawl: str, *, ended: bool = True, if_empty: bool = False) -> bool:
        self._enter("end_strategy")
        if if_empty and not is_empty(self._backlog(), self._strategy_backlog()):
            return False
        self.ended = ended
        return True

    def backlog(self, crawl: str) -> Backlog:
        self._enter("backlog")
        return self._backlog()

    def _backlog(self) -> Backlog:
        slots = [
            SlotCount(
                slot=batch.slot,
                batches={batch.state.value: 1},
                requests={batch.state.value: batch.size},
            )
            for batch, _ in self.cut.values()
        ]
        now = self.clock()
        return Backlog(
            slots=slots, producers=[name for name, until in self.producers.items() if until > now],
            lost=[name for name, until in self.producers.items() if until <= now],
        )  # fmt: skip

    def batches(self, crawl: str, states: Collection[BatchState] = ()) -> list[Batch]:
        self._enter("batches")
        return [batch for batch, _ in self.cut.values() if batch.state in states]

    def payload(self, crawl: str, number: int) -> dict[str, str]:
        self._enter("payload")
        return self.cut[number][1]

    def register_producer(self, crawl: str, producer: str, seconds: float) -> None:
        self._enter("register_producer")
        self.producers[producer] = self.clock() + seconds

    def sign_off(self, crawl: str, producer: str) -> None:
        self._enter("sign_off")
        self.producers.pop(producer, None)

    # for tests

    def tell(self, events: Iterable[LinkEvent]) -> None:
        """Keep events, as in the step of an ack."""
        for event in events:
            number = self._next()
            self.waiting[number] = replace(_copied(event), number=number)

    def set_state(self, number: int, state: BatchState) -> None:
        batch, payload = self.cut[number]
        self.cut[number] = (replace(batch, state=state), payload)

    def replay(self) -> None:
        self.waiting.update(
            {number: replace(event, fault="") for number, event in self.dead.items()}
        )
        self.dead.clear()

    def states(self) -> dict[str, States]:
        """URL -> state."""
        return {link.url: link.state for link in self.queue.values()}


@dataclass(kw_only=True)
class Page:
    """What a site answers."""

    links: Collection[str] = ()
    error: str = ""
    status: int = 200
    body: str = ""
    sitemap: bool = False  #: its links are sitemaps


@dataclass
class MemoryWorker:
    """Requests what is in batches, of a table of pages, and acks."""

    store: MemoryStore
    pages: Mapping[str, Page]
    made: list[str] = field(default_factory=list)  #: URLs, in order
    values: list[RequestValue] = field(default_factory=list)  #: the requests in full
    key: bytes | None = None

    def work(self, batches: int = 1_000_000) -> bool:
        """Ack the next batches, the highest priority first; whether there were any."""
        waiting = [
            batch for batch, _ in self.store.cut.values() if batch.state is BatchState.SEALED
        ]
        waiting.sort(key=lambda batch: (-batch.priority, batch.number))
        for batch in waiting[:batches]:
            for value in decode(self.store.cut[batch.number][1].get, key=self.key):
                self.made.append(value["url"])
                self.values.append(value)
                self.store.tell(events_of(value, self.pages))
            del self.store.cut[batch.number]
        return bool(waiting)


def events_of(value: RequestValue, pages: Mapping[str, Page]) -> list[LinkEvent]:
    """What a worker tells of a request, when its pages are these."""
    url, told = value["url"], value["meta"]["distributed_link"]
    page = pages.get(url, Page(status=404))
    ours = {
        "fingerprint": bytes.fromhex(told["fingerprint"]), "request": value, "url": url,
    }  # fmt: skip
    if page.error:
        return [
            LinkEvent(
                kind=EventKind.ERROR, partition=partition_of(site_of(url)), error=page.error, **ours
            )
        ]
    body = page.body if told["read"] == "body" else None
    digest = hashlib.sha1(page.body.encode(), usedforsecurity=False).hexdigest()
    crawled = LinkEvent(
        kind=EventKind.CRAWLED, partition=partition_of(site_of(url)), status=page.status, body=body, digest=digest,
        **ours,
    )  # fmt: skip
    by_partition: dict[int, list[FoundLink]] = {}
    for link in page.links:
        meta = {"meta": {"distributed_link": {"read": "sitemap"}}} if page.sitemap else {}
        found = FoundLink(fingerprint=fingerprint_of({"url": link}), request={"url": link, **meta})
        by_partition.setdefault(partition_of(site_of(link)), []).append(found)
    told_of = [
        LinkEvent(kind=EventKind.LINKS, partition=number, links=links, **ours)
        for number, links in by_partition.items()
    ]
    return [crawled, *told_of]


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


class StrategyRig:
    """A strategy with its store, its worker and its manager."""

    def __init__(
        self,
        strategy: CrawlingStrategy | None = None,
        pages: Mapping[str, Page] | None = None,
        **options: Any,
    ) -> None:
        self.clock = HandClock()
        self.store = MemoryStore(clock=self.clock)
        self.strategy = strategy or BasicStrategy()
        self.worker = MemoryWorker(
            self.store, {} if pages is None else pages, key=options.get("key")
        )
        self.options = options
        self.manager = self.another("one", self.strategy)

    def another(self, name: str, strategy: CrawlingStrategy | None = None) -> StrategyManager:
        return StrategyManager(
            store=self.store, crawl="c", process=name, strategy=strategy or type(self.strategy)(),
            fingerprint=fingerprint_of, clock=self.clock, **self.options,
        )  # fmt: skip

    def seed(self, *urls: str) -> int:
        return self.manager.read_seeds(iter(urls))

    def crawl(self, *managers: StrategyManager, rounds: int = 200) -> None:
        """Go on until all managers see the end, or for so many rounds."""
        every = managers or (self.manager,)
        for _ in range(rounds):
            self.clock.time += 1
            for manager in every:
                manager.work()
            self.worker.work()
            if all(manager.over for manager in every):
                break

    def seen(self, url: str) -> bytes:
        """The fingerprint of a URL."""
        return fingerprint_of({"url": url})


def web(seed: int, sites: int, pages: int) -> dict[str, Page]:
    """Pages of some sites that link to each other; some fail."""
    chance = Random(seed)
    urls = [f"http://site{chance.randrange(sites)}.com/{number}" for number in range(pages)]
    return {
        url: Page(
            links=chance.choices(urls, k=chance.randrange(6)),
            error="TimeoutError" if chance.random() < 0.15 else "",
        )
        for url in urls
    }


def body_of(text: str) -> dict[str, str]:
    """A body as a request's value has it."""
    return {"$bytes": base64.b64encode(text.encode()).decode()}


def _copied(event: LinkEvent) -> LinkEvent:
    """As read from a store: changes of its values do not come back."""
    return replace(
        event, request=json.loads(json.dumps(event.request)),
        links=[replace(link, request=json.loads(json.dumps(link.request))) for link in event.links],
    )  # fmt: skip
