"""Sealing: whole batches or nothing, whichever process is killed, and whichever else seals."""

import hashlib
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest
from rig.stores import answers_of, go, ready, seal

from scrapyd_dist.batches import Batch
from scrapyd_dist.errors import StoreError
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import Store


def test_a_sealed_batch_has_its_number_its_payload_and_its_fingerprints(
    store: Store, opened: Callable[[], Store]
) -> None:
    first = store.seal(
        "c",
        NewBatch(payload={"A": "ü", "B": "="}, size=3, sealed_at=10.0),
        [b"1", b"2", b"1"],
        {"sealed": 3},
    )
    second = store.seal("c", NewBatch(payload={"A": "2"}, size=1), [b"2", b"\0"], {})
    assert first == Batch(number=1, size=3, sealed_at=10.0)
    other = opened()
    assert other.batches("c") == [first, second]
    assert other.batch("c", 2) == second
    assert other.payload("c", 1) == {"A": "ü", "B": "="}
    assert sorted(other.fingerprints("c")) == [b"\0", b"1", b"2"]


def test_a_seal_that_fails_leaves_nothing(store: Store) -> None:
    def prints() -> Iterator[bytes]:
        yield b"1"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        seal(store, fingerprints=prints(), counts={"sealed": 2})
    with pytest.raises((StoreError, OverflowError)):
        seal(
            store, fingerprints=[b"1"], counts={"sealed": 2, "offsite": 1 << 80}
        )  # the last thing that is written
    assert (store.batches("c"), list(store.fingerprints("c")), store.counts("c")) == ([], [], {})
    assert seal(store) == 1


SEALER = """
import sys, threading
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.store import open_store
pause = threading.Event()  # a writer that never pauses starves the other
store, who, count = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for n in range(count):
    new = NewBatch(payload={"WHO": who, "PAD": "x" * 20000}, size=50)
    batch = store.seal("c", new, [f"{who}.{n}.{k}".encode() for k in range(50)], {"sealed": 50})
    print(batch.number, flush=True)
    pause.wait(0.002)
"""


def test_two_processes_that_seal_at_once_get_different_numbers(where: str, store: Store) -> None:
    told = answers_of([ready(SEALER, where, who, "150") for who in ("one", "two")])
    numbers = [[int(line) for line in lines.split()] for lines in told]
    assert sorted(itertools.chain(*numbers)) == list(range(1, 301))
    for who, own in zip(("one", "two"), numbers, strict=True):
        assert own == sorted(own)
        assert own[-1] - own[0] > 149, "they did not seal at the same time"
        assert {store.payload("c", number)["WHO"] for number in own} == {who}
    assert store.counts("c") == {"sealed": 15_000}


@pytest.mark.parametrize("kill_after", [1, 4, 9])
def test_a_process_that_is_killed_while_it_seals_leaves_whole_batches(
    where: str, store: Store, kill_after: int
) -> None:
    with ready(SEALER, where, "me", "10000") as sealer:
        assert sealer.stdout
        go(sealer)
        told = [int(sealer.stdout.readline()) for _ in range(kill_after)]
        sealer.send_signal(signal.SIGKILL)
    batches = store.batches("c")
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert len(batches) >= told[-1]
    by_batch = Counter(print_.rsplit(b".", 1)[0] for print_ in store.fingerprints("c"))
    assert by_batch == {f"me.{n}".encode(): 50 for n in range(len(batches))}
    assert all(store.payload("c", batch.number)["WHO"] == "me" for batch in batches)
    assert store.counts("c") == {"sealed": 50 * len(batches)}
    assert seal(store) == len(batches) + 1


def test_a_reader_is_not_held_up_by_a_writer_and_sees_whole_steps_only(
    store: Store, opened: Callable[[], Store]
) -> None:
    reader, stop, seen = opened(), Event(), []

    def read() -> None:
        while not stop.is_set():
            batches = reader.batches("c")
            seen.append(len(batches))
            assert all(reader.payload("c", batch.number) == {"A": "1"} for batch in batches[-3:])

    thread = Thread(target=read)
    thread.start()
    sealed = 0
    while len(set(seen)) < 5 and sealed < 5000 and thread.is_alive():
        sealed = seal(store, fingerprints=[str(sealed).encode()])
    stop.set()
    thread.join()
    assert seen == sorted(seen)
    assert len(set(seen)) >= 5  # it read between the writer's steps
    assert len(reader.batches("c")) == sealed


def test_fingerprints_are_kept_exactly_however_many_and_whatever_they_are(store: Store) -> None:
    prints = [hashlib.sha1(str(n).encode(), usedforsecurity=False).digest() for n in range(3000)]
    prints += [
        b"",
        b"\0",
        b"\xff" * 20,
        b"same beginning " * 3 + b"a",
        b"same beginning " * 3 + b"b",
        b"x" * 200,
    ]
    for start in range(0, len(prints), 250):
        seal(store, fingerprints=prints[start : start + 250] + prints[:50])
    kept = list(store.fingerprints("c"))
    assert len(kept) == len(prints)
    assert set(kept) == set(prints)
