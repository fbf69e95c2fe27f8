"""The manager of a strategy, round by round, against a store in memory."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from cryptography.fernet import Fernet
from rig.strategy_memory import MemoryStore, Page, StrategyRig, body_of, events_of, fingerprint_of

from scrapyd_dist.batches import BatchState
from scrapyd_dist.errors import StepRefused, StoreError
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.payload import RequestValue, decode
from scrapyd_dist.strategy import BasicStrategy, Request, Response, States
from scrapyd_dist.strategy.links import EventKind, FoundLink, LinkEvent, partition_of
from scrapyd_dist.strategy.round_draft import RoundDraft

A, B, C, D = (f"http://{name}.example/" for name in "abcd")
#: a site of the other half of the partitions
FAR = next(
    url
    for number in range(99)
    if partition_of(site_of(url := f"http://far{number}.example/")) >= 32
)
RING = {
    A: Page(links=[B, C]),
    B: Page(links=[C, D]),
    C: Page(links=[A]),
    D: Page(error="TimeoutError"),
}


def test_every_link_is_requested_once_and_the_crawl_ends() -> None:
    rig = StrategyRig(pages=RING)
    rig.seed(A)
    rig.crawl()
    assert rig.manager.over
    assert sorted(rig.worker.made) == [A, B, C, D]
    assert rig.store.states() == {A: 2, B: 2, C: 2, D: 3}
    assert [change.reason for change in rig.store.log if change.after is States.ERROR] == [
        "TimeoutError"
    ]
    assert rig.store.counts["scheduled"] == rig.store.counts["sealed"] == 4
    rig.manager.close()
    assert rig.store.producers == {}


def test_an_empty_store_is_not_the_end() -> None:
    rig = StrategyRig()
    rig.crawl(rounds=20)
    assert not rig.manager.over
    assert not rig.store.ended


def test_a_standing_crawl_does_not_end_by_itself() -> None:
    rig = StrategyRig(pages=RING, standing=True)
    rig.seed(A)
    rig.crawl(rounds=50)
    assert len(rig.worker.made) == 4
    assert not rig.store.ended


def test_what_is_due_later_keeps_the_crawl_from_its_end() -> None:
    class Later(BasicStrategy):
        def read_seeds(self, stream: Iterable[str] | None) -> None:
            self.schedule(self.create_request(A, meta={"crawl_at": 1_500.0}))

    rig = StrategyRig(Later(), {A: Page()})
    rig.seed()
    rig.crawl(rounds=100)
    assert not rig.store.ended
    assert rig.worker.made == []
    rig.clock.time = 1_499.0  # `crawl` adds one
    rig.crawl()
    assert rig.worker.made == [A]
    assert rig.manager.over


def test_seeds_are_requested_once_however_often_they_are_read() -> None:
    rig = StrategyRig(pages=RING)
    assert rig.seed(A, B, A) == 2
    assert rig.seed(A, B) == 0
    rig.crawl()
    assert rig.seed(A, B) == 0
    assert sorted(rig.worker.made) == [A, B, C, D]


def test_seeds_are_kept_in_steps() -> None:
    rig = StrategyRig()
    most = 0

    def stream() -> Iterable[str]:
        nonlocal most
        for number in range(5_000):
            most = max(most, number - len(rig.store.queue))
            yield f"http://site{number}.example/"

    assert rig.manager.read_seeds(stream()) == 5_000
    assert most <= 1_000
    assert rig.store.calls["links"] == 5


def test_seeds_that_were_not_read_to_their_end_are_made_up_for_by_the_same_source_only() -> None:
    rig = StrategyRig(pages=RING)
    for source in ("one.txt", "two.txt"):
        rig.store.register_producer("c", f"seeds {source}@killed", 1.0)
    rig.clock.time += 5
    manager = replace(rig.manager, source="two.txt")
    manager.read_seeds(iter([A]))
    assert rig.store.backlog("c").lost == ["seeds one.txt@killed"]
    rig.crawl(manager)
    assert not manager.over, "what the first file has behind that line is missing"
    manager = replace(manager, source="one.txt")
    manager.read_seeds(iter([A]))
    rig.crawl(manager)
    assert manager.over


def test_work_goes_on_while_seeds_come_slowly() -> None:
    rig = StrategyRig(pages=RING)

    def stream() -> Iterable[str]:
        yield A
        rig.manager.work_between_seeds()
        rig.worker.work()
        assert rig.worker.made == [A]
        rig.clock.time += 1
        rig.manager.work_between_seeds()
        rig.worker.work()
        assert rig.worker.made[:2] == [A, B]
        yield "http://late.example/"

    assert rig.manager.read_seeds(stream()) == 2
    rig.crawl()
    assert sorted(rig.worker.made) == sorted([A, B, C, D, "http://late.example/"])


def test_seeds_that_the_store_does_not_take_are_kept_for_the_next_try() -> None:
    rig = StrategyRig()

    def stream() -> Iterable[str]:
        yield A
        with (
            patch.object(rig.store, "apply", side_effect=StoreError("away")),
            pytest.raises(StoreError),
        ):
            rig.manager.work_between_seeds()
        rig.manager.work_between_seeds()

    assert rig.manager.read_seeds(stream()) == 1


def test_seeds_of_partitions_of_others_are_handed_over() -> None:
    rig = StrategyRig(pages=RING)
    other = rig.another("two")
    other.work()  # it takes what there is
    rig.seed(A, B, C, D)
    assert rig.store.queue == {}
    assert [event.kind for event in rig.store.waiting.values()] == [EventKind.SCHEDULED] * 4
    rig.crawl(rig.manager, other)
    assert sorted(rig.worker.made) == [A, B, C, D]


def test_two_processes_share_the_partitions() -> None:
    rig = StrategyRig(pages=RING)
    other = rig.another("two")
    rig.seed(A)
    rig.crawl(rig.manager, other)
    assert sorted(rig.worker.made) == [A, B, C, D]
    assert other.over
    assert rig.manager.over
    held = [numbers for _, _, numbers in rig.store.processes.values()]
    assert [len(numbers) for numbers in held] == [32, 32]


def test_partitions_of_a_killed_process_move_and_nothing_is_lost() -> None:
    rig = StrategyRig(pages=RING)
    other = rig.another("two")
    other.work()
    rig.seed(A, B)  # handed over to the other, which is never heard of again
    rig.crawl(rounds=3)
    assert rig.worker.made == []
    rig.clock.time += 60
    rig.crawl()
    assert sorted(rig.worker.made) == [A, B, C, D]
    assert rig.manager.over
    assert [name for name in rig.store.producers if "two" in name] == []


def test_the_highest_score_of_a_site_is_requested_first() -> None:
    class Ordered(BasicStrategy):
        def score(self, link: Request) -> float:
            return int(link.url.rpartition("/")[2]) / 100

    rig = StrategyRig(Ordered(), size=3, ahead=7)
    urls = [f"http://a.example/{number * 37 % 100}" for number in range(100)]
    rig.seed(*urls)
    rig.crawl()
    numbers = [int(url.rpartition("/")[2]) for url in rig.worker.made]
    assert numbers == sorted(numbers, reverse=True)
    first = rig.worker.values[0]
    assert first["priority"] == 990_000
    assert first["meta"]["distributed_link"] == {
        "fingerprint": rig.seen("http://a.example/99").hex(), "depth": 0, "score": 0.99, "expires": 0.0, "read": "page",
    }  # fmt: skip


def test_no_more_of_a_slot_than_ahead_waits_in_batches() -> None:
    rig = StrategyRig(ahead=7, size=3)
    rig.seed(*(f"http://a.example/{number}" for number in range(100)))
    for _ in range(3):
        rig.clock.time += 1
        rig.manager.work()
    assert sum(batch.size for batch, _ in rig.store.cut.values()) == 7


def test_what_expired_is_an_error_once() -> None:
    class Short(BasicStrategy):
        def read_seeds(self, stream: Iterable[str] | None) -> None:
            self.schedule(self.create_request(A, meta={"expires": 1_000.5}))

    rig = StrategyRig(Short(), pages=RING)
    rig.seed()  # at 1000.0 it is cut at once
    rig.crawl()
    assert rig.worker.values[0]["meta"]["distributed_link"]["expires"] == 1_000.5
    late = StrategyRig(Short(), pages=RING)
    late.clock.time = 2_000.0
    late.seed()
    late.crawl()
    assert late.worker.made == []
    assert [(change.after, change.reason) for change in late.store.log[1:]] == [
        (States.ERROR, "expired")
    ]
    assert late.store.counts["expired"] == 1
    assert late.manager.over


def test_links_beyond_the_maximum_depth_are_not_scheduled() -> None:
    pages = {
        f"http://a.example/{number}": Page(links=[f"http://a.example/{number + 1}"])
        for number in range(9)
    }
    rig = StrategyRig(pages=pages, max_depth=2)
    rig.seed("http://a.example/0")
    rig.crawl()
    assert [url[-1] for url in rig.worker.made] == ["0", "1", "2"]
    assert rig.store.counts["beyond_depth"] == 1
    assert "http://a.example/3" not in rig.store.states()
    assert [value["meta"]["distributed_link"]["depth"] for value in rig.worker.values] == [0, 1, 2]


class Failing(BasicStrategy):
    """Raises at one page, until it is told not to."""

    broken = True

    def page_crawled(self, response: Response) -> None:
        self.domains[response.request.site]["pages"] = (
            self.domains[response.request.site].get("pages", 0) + 1
        )
        if not response.url.endswith("next"):
            self.schedule(self.create_request(f"{response.url}next"))
        if self.broken and response.url == B:
            raise LookupError("no such thing")


def test_a_handler_that_raises_leaves_a_dead_letter_and_nothing_else() -> None:
    strategy = Failing()
    rig = StrategyRig(strategy, {A: Page(), B: Page(links=[D]), C: Page()})
    rig.seed(A, B, C)
    rig.crawl()
    assert {f"{A}next", f"{C}next"} < set(rig.worker.made)
    assert f"{B}next" not in rig.worker.made
    assert D in rig.worker.made  # the links of the page are another event
    assert sorted(rig.store.metadata) == ["a.example", "c.example", "d.example"]
    assert [event.url for event in rig.store.dead.values()] == [B]
    [letter] = rig.store.dead.values()
    assert letter.fault.startswith(f"LookupError: no such thing ({__file__}, line ")
    assert rig.store.counts["handler_errors"] == 1
    assert rig.store.states()[B] is States.CRAWLED  # never QUEUED for ever
    assert rig.manager.over

    strategy.broken = False
    rig.store.replay()
    rig.store.ended = False
    again = rig.another("again", strategy)
    rig.manager.close()
    rig.crawl(again)
    assert f"{B}next" in rig.worker.made
    assert rig.store.dead == {}
    assert rig.store.metadata["b.example"] == {"pages": 2}  # of B, and of what followed


def test_a_round_that_is_refused_is_thrown_away_and_made_again() -> None:
    strategy = Failing()
    strategy.broken = False
    rig = StrategyRig(strategy, {A: Page()})
    rig.seed(A)
    refused = 0

    def refuse(verb: str) -> None:
        nonlocal refused
        if verb == "apply" and rig.store.waiting and refused < 3:
            refused += 1
            raise StepRefused("not now")

    rig.store.before = refuse
    rig.crawl()
    assert refused == 3
    assert rig.store.metadata["a.example"] == {"pages": 2}
    assert sorted(rig.worker.made) == [A, f"{A}next"]


def test_requests_of_a_dead_batch_are_errors_and_may_be_tried_again() -> None:
    class Stubborn(BasicStrategy):
        errors: list[tuple[str, str]]

        def request_error(self, request: Request, error: str) -> None:
            self.errors.append((request.url, error))
            if len(self.errors) == 1:
                self.schedule(request, 0.5)
            else:
                super().request_error(request, error)

    strategy = Stubborn()
    strategy.errors = []
    rig = StrategyRig(strategy, pages=RING)
    rig.seed(A, B)
    for number in list(rig.store.cut):
        rig.store.set_state(number, BatchState.DEAD)
    rig.crawl()
    assert sorted(strategy.errors[:2]) == [(A, "WorkerDied"), (B, "WorkerDied")]
    first, second = (url for url, _ in strategy.errors[:2])
    assert first in rig.worker.made  # it was scheduled again
    assert rig.worker.values[0]["priority"] == 500_000
    assert (
        rig.store.states()[second] is States.ERROR or second in rig.worker.made
    )  # found again by a page
    assert rig.manager.over


def test_finished_ends_the_crawl_when_all_processes_say_so() -> None:
    class Enough(BasicStrategy):
        seen = 0
        wanted = 3

        def page_crawled(self, response: Response) -> None:
            self.seen += 1

        def finished(self) -> bool:
            return self.seen >= self.wanted

    pages = {
        f"http://a.example/{number}": Page(links=[f"http://a.example/{number + 1}"])
        for number in range(99)
    }
    rig = StrategyRig(Enough(), pages)
    idle = Enough()
    idle.wanted = 0
    other = rig.another("two", idle)
    rig.seed("http://a.example/0")
    rig.crawl(rig.manager, other)
    assert len(rig.worker.made) == 3
    assert rig.store.ended
    assert rig.manager.over
    assert other.over
    assert (
        rig.store.states()["http://a.example/3"] is States.QUEUED
    )  # the rest waits for another run


def test_what_was_under_way_during_the_look_keeps_the_crawl_from_its_end() -> None:
    rig = StrategyRig(pages=RING)
    rig.seed(A)
    rig.crawl(rounds=1)
    rig.store.cut.clear()
    rig.store.waiting.clear()

    def late(verb: str) -> None:
        if verb == "end_strategy" and not rig.store.ended:
            rig.store.before = lambda _: None
            rig.store.tell([event_of(A, links=[B])])

    rig.store.before = late
    rig.crawl()
    assert B in rig.worker.made
    assert rig.manager.over


def event_of(
    url: str, *, links: Iterable[str] = (), kind: EventKind = EventKind.LINKS
) -> LinkEvent:
    found = [
        FoundLink(fingerprint=fingerprint_of({"url": link}), request={"url": link})
        for link in links
    ]
    partition = partition_of(found[0].request["url"].split("/")[2]) if found else 0
    return LinkEvent(
        kind=kind,
        fingerprint=fingerprint_of({"url": url}),
        request={"url": url},
        partition=partition,
        links=found,
    )


def test_a_round_looks_states_up_once() -> None:
    rig = StrategyRig()
    urls = [f"http://a.example/{number}" for number in range(100)]
    rig.manager.work()
    rig.store.tell(event_of(A, links=[f"{url}/{at}" for at in range(100)]) for url in urls)
    rig.store.calls.clear()
    rig.manager.work()
    assert len(rig.store.queue) == 10_000
    assert (rig.store.calls["links"], rig.store.calls["apply"]) == (
        1,
        2,
    )  # one step for the events, one for batches


def test_a_filter_that_lets_nothing_pass_ends_the_event() -> None:
    class Closed(BasicStrategy):
        def filter_extracted_links(
            self, request: Request, links: list[Request]
        ) -> Iterable[Request]:
            assert "state" not in links[0].meta
            return []

        def links_extracted(self, request: Request, links: list[Request]) -> None:
            raise AssertionError

    rig = StrategyRig(Closed(), RING)
    rig.seed(A)
    rig.crawl()
    assert rig.worker.made == [A]
    assert rig.store.dead == {}


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_score_outside_0_to_1_is_refused(score: float) -> None:
    class Wrong(BasicStrategy):
        def score(self, link: Request) -> float:
            return score

    with pytest.raises(ValueError, match=r"has to be from 0\.0 to 1\.0"):
        StrategyRig(Wrong()).seed(A)


@pytest.mark.parametrize("alone", [True, False])
def test_a_created_request_has_its_state_after_a_refresh_only(alone: bool) -> None:
    told: list[Any] = []

    class Curious(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            if response.url == A:
                return
            request = self.create_request(A)
            told.append(request.meta.get("state"))
            # Frontera's own strategies pass a single request.
            self.refresh_states(request if alone else [request])
            told.append(request.meta["state"])
            if request.meta["state"] == States.NOT_CRAWLED:
                self.schedule(request)

    rig = StrategyRig(Curious(), {A: Page(), B: Page()})
    rig.seed(A)
    rig.crawl()
    rig.store.ended = False
    rig.seed(B)
    rig.crawl()
    assert told == [None, States.CRAWLED]
    assert rig.worker.made == [A, B]


def test_a_link_may_be_scheduled_again_by_its_own_page() -> None:
    class Twice(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            times = response.meta.get("times", 0) + 1
            response.meta["times"] = times
            response.meta["state"] = States.CRAWLED
            if times < 3:
                self.schedule(response.request, 0.3)

    rig = StrategyRig(Twice(), {A: Page()})
    rig.seed(A)
    rig.crawl()
    assert rig.worker.made == [A, A, A]
    assert rig.store.states() == {A: States.CRAWLED}


def test_dont_queue_changes_the_score_only() -> None:
    class Rescoring(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            requests = [self.create_request(url) for url in (B, C)]
            self.refresh_states(requests)
            for request in requests:
                self.schedule(request, 0.25, dont_queue=True)

        def request_error(self, request: Request, error: str) -> None:
            super().request_error(request, error)
            self.schedule(request, 0.0, dont_queue=True)

        def links_extracted(self, request: Request, links: list[Request]) -> None:
            pass

    rig = StrategyRig(Rescoring(), RING)

    class Waiting(BasicStrategy):
        def read_seeds(self, stream: Iterable[str] | None) -> None:
            self.schedule(self.create_request(B, meta={"crawl_at": 5_000.0}), 0.75)

    rig.another("seeds", Waiting()).read_seeds(None)
    rig.store.processes.clear()
    rig.seed(A, D)
    rig.crawl(rounds=10)
    kept = {link.url: (link.state, link.score, link.due) for link in rig.store.queue.values()}
    assert kept[B] == (States.QUEUED, 0.25, 5_000.0)
    assert C not in kept
    assert kept[D][:2] == (States.ERROR, 0.0)
    assert rig.store.dead == {}


def test_a_queued_link_is_moved_and_not_requested_twice() -> None:
    class Mover(BasicStrategy):
        def links_extracted(self, request: Request, links: list[Request]) -> None:
            for link in links:
                self.schedule(link, 0.5)

    rig = StrategyRig(Mover(), {A: Page(links=[C]), B: Page(links=[C]), C: Page()})
    rig.seed(A, B)
    rig.worker.work(1)
    rig.crawl(rounds=1)
    rig.crawl()
    assert sorted(rig.worker.made) == [A, B, C]


def test_a_link_of_another_site_is_handed_over_with_all_that_was_said() -> None:
    class Crossing(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            if response.url == A:
                meta = {
                    "crawl_at": 1_200.0,
                    "depth": 4,
                    "colour": "red",
                    "read": "body",
                    "slot": "own",
                }
                self.schedule(
                    self.create_request(FAR, "POST", {"X-A": "b"}, {"c": "d"}, meta, "text"), 0.125
                )

    rig = StrategyRig(Crossing(), {A: Page(), FAR: Page(body="whole")}, key=Fernet.generate_key())
    other = rig.another("two", Crossing())
    other.work()
    rig.manager.work()
    rig.clock.time += 2
    other.work()
    rig.clock.time += 2
    rig.manager.work()
    halves = [numbers for _, _, numbers in rig.store.processes.values()]
    assert sum(partition_of("a.example") in half for half in halves) == 1
    assert not any({partition_of(site_of(url)) for url in (A, FAR)} <= half for half in halves)
    rig.seed(A)
    rig.crawl(rig.manager, other, rounds=10)
    assert rig.worker.made == [A]
    [link] = [link for link in rig.store.queue.values() if link.url == FAR]
    assert (link.score, link.due, link.depth, link.slot) == (0.125, 1_200.0, 4, "own")
    rig.clock.time = 1_300.0
    rig.crawl(rig.manager, other)
    value = rig.worker.values[-1]
    assert value == {
        "url": FAR, "method": "POST", "headers": {"X-A": ["b"]}, "cookies": {"c": "d"}, "body": body_of("text"),
        "priority": 125_000,
        "meta": {
            "colour": "red",
            "distributed_link": {
                "fingerprint": link.fingerprint.hex(), "depth": 4, "score": 0.125, "expires": 0.0, "read": "body",
            },
        },
    }  # fmt: skip
    assert rig.manager.over
    assert other.over


def test_metadata_of_another_process_cannot_be_changed() -> None:
    class Meddling(BasicStrategy):
        def links_extracted(self, request: Request, links: list[Request]) -> None:
            self.domains[request.site]["links"] = len(links)

    rig = StrategyRig(Meddling(), {A: Page(links=[FAR])})
    other = rig.another("two", Meddling())
    other.work()
    rig.manager.work()
    rig.clock.time += 2
    other.work()
    rig.seed(A)
    rig.crawl(rig.manager, other)
    [letter] = rig.store.dead.values()
    assert "belongs to another strategy process" in letter.fault
    assert rig.store.metadata == {}


def test_metadata_that_json_cannot_carry_is_a_fault_of_the_handler() -> None:
    class Strange(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            self.domains["a.example"]["seen"] = {1, 2}

    rig = StrategyRig(Strange(), {A: Page()})
    rig.seed(A)
    rig.crawl()
    [letter] = rig.store.dead.values()
    assert letter.fault.startswith("TypeError")
    assert rig.manager.over


def test_meta_of_a_spider_with_the_names_of_ours_travels_on() -> None:
    rig = StrategyRig()
    rig.manager.work()
    found = FoundLink(
        fingerprint=rig.seen(B),
        request={"url": B, "callback": "parse_b", "meta": {"state": "CA", "slot": 7, "x": 1}},
    )
    rig.store.tell([
        LinkEvent(
            kind=EventKind.LINKS, fingerprint=rig.seen(A), request={"url": A}, partition=partition_of("b.example"),
            links=[found],
        )
    ])  # fmt: skip
    rig.crawl(rounds=2)
    [value] = rig.worker.values
    meta = value["meta"]
    assert (meta["state"], meta["slot"], meta["x"], value["callback"]) == ("CA", 7, 1, "parse_b")


def test_a_page_that_is_told_of_twice_stays_in_the_queue() -> None:
    """The part of an attempt was lost after its ack, and its batch was requested again."""

    class Again(BasicStrategy):
        calls = 0

        def page_crawled(self, response: Response) -> None:
            self.calls += 1
            if self.calls == 1:
                response.meta["crawl_at"] = 5_000.0
                self.schedule(response.request)

    strategy = Again()
    rig = StrategyRig(strategy, {A: Page()})
    rig.seed(A)
    twice = [event for value in cut_values(rig) for event in events_of(value, rig.worker.pages)]
    rig.crawl(rounds=5)
    rig.store.tell(twice)
    rig.crawl(rounds=5)
    assert strategy.calls == 2
    [link] = rig.store.queue.values()
    assert (link.state, link.due, link.request is not None) == (States.QUEUED, 5_000.0, True)


def cut_values(rig: StrategyRig) -> list[RequestValue]:
    """The requests of the batches that wait."""
    return [value for _, payload in rig.store.cut.values() for value in decode(payload.get)]


def test_a_sitemap_is_alone_in_its_batch_and_nothing_overtakes_it() -> None:
    class Mapped(BasicStrategy):
        def read_seeds(self, stream: Iterable[str] | None) -> None:
            for number, read in enumerate(("page", "page", "sitemap", "sitemap", "page")):
                self.schedule(
                    self.create_request(f"{A}{number}", meta={"read": read}), 1 - number / 10
                )

    rig = StrategyRig(Mapped())
    rig.seed()
    rig.manager.work()
    batches = [
        [value["url"][-1] for value in decode(payload.get)] for _, payload in rig.store.cut.values()
    ]
    assert batches == [["0", "1"], ["2"], ["3"], ["4"]]


def test_memory_stays_flat_while_seeds_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapyd_dist.strategy.manager.SEEDS", 100)

    class Careful(BasicStrategy):
        most = 0

        def read_seeds(self, stream: Iterable[str] | None) -> None:
            for url in stream or ():
                seed = self.create_request(url)
                self.refresh_states([seed])
                assert "seen" not in self.domains[seed.site]
                self.schedule(seed)
                draft = self.context
                assert isinstance(draft, RoundDraft)
                self.most = max(
                    self.most, len(draft.known) + len(draft.given) + len(draft.scheduled)
                )

    strategy = Careful()
    rig = StrategyRig(strategy)
    assert rig.seed(*(f"http://site{number}.example/" for number in range(350))) == 350
    assert strategy.most <= 300


def test_events_with_many_links_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapyd_dist.strategy.manager.ROUND_LINKS", 100)
    rig = StrategyRig(BasicStrategy())
    rig.manager.work()
    pages = [f"http://a.example/{number}" for number in range(40)]
    rig.store.tell(event_of(url, links=[f"{url}/{at}" for at in range(10)]) for url in pages)
    read: list[int] = []
    events = rig.store.events

    def watched(crawl: str, partitions: Collection[int], limit: int) -> list[LinkEvent]:
        read.append(limit)
        return events(crawl, partitions, limit)

    rig.manager.store = replaced(rig.store, events=watched)
    while rig.store.waiting:
        rig.manager.work()
    assert read == [500, 20, 20, 20]
    assert len(rig.store.queue) == 400


def replaced(store: MemoryStore, **verbs: Any) -> Any:
    """The store with other verbs."""
    names = [name for name in dir(store) if not name.startswith("_")]
    return SimpleNamespace(**{**{name: getattr(store, name) for name in names}, **verbs})


def test_what_a_filter_returns_is_its_own_fault() -> None:
    class Careless(BasicStrategy):
        def filter_extracted_links(self, request: Request, links: list[Request]) -> list[Request]:
            return [None]  # type: ignore[list-item]  # as a strategy of users may

    rig = StrategyRig(Careless(), pages=RING)
    rig.seed(A)
    rig.crawl()
    assert rig.manager.over
    assert {event.fault.split(":")[0] for event in rig.store.dead.values()} == {"AttributeError"}


def test_a_fault_that_cannot_be_written_is_told_all_the_same() -> None:
    class Halved(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            raise ValueError("\ud83d" * 5_000)

    rig = StrategyRig(Halved(), pages=RING)
    rig.seed(A)
    rig.crawl()
    for event in rig.store.dead.values():
        assert event.fault.startswith("ValueError: ????")
        assert len(event.fault) < 2_200
    assert rig.store.dead


def test_a_link_that_is_moved_and_then_scheduled_again_has_its_new_place() -> None:
    class Again(BasicStrategy):
        def page_crawled(self, response: Response) -> None:
            super().page_crawled(response)
            if response.url == D:
                response.request.meta["crawl_at"] = 9_000.0
                self.schedule(response.request, 0.9)

        def links_extracted(self, request: Request, links: list[Request]) -> None:
            for link in links:
                self.schedule(link, 0.3)

    rig = StrategyRig(Again(), pages={A: Page(links=[D]), D: Page(links=[])})
    rig.seed(A, D)
    rig.manager.work()
    rig.worker.work()
    rig.clock.time += 1
    rig.manager.work()
    link = rig.store.queue[rig.seen(D)]
    assert (link.score, link.due) == (0.9, 9_000.0)


def test_a_slow_handler_does_not_cost_the_partitions() -> None:
    class Slow(BasicStrategy):
        def links_extracted(self, request: Request, links: list[Request]) -> None:
            rig.clock.time += 20
            super().links_extracted(request, links)

    pages = {A: Page(links=[B, C, D]), B: Page(links=[A]), C: Page(links=[A]), D: Page(links=[A])}
    rig = StrategyRig(Slow(), pages=pages)
    rig.seed(A)
    rig.crawl(rounds=20)
    lives = rig.store.calls["hold_partitions"]
    assert rig.manager.over
    assert lives > rig.store.calls["apply"]


def test_a_found_link_that_is_made_a_form_is_another_request() -> None:
    request = Request.from_value({"url": A}, b"found")
    assert request.fingerprint == b"found"
    request.method, request.body = "POST", "x=1"
    assert request.fingerprint == b""
