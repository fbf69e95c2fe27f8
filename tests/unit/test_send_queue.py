"""The batches that are about to be sent: their order, and which of them are still open."""

from collections.abc import Callable

from rig.steps import growth

from scrapyd_dist.batches import Batch
from scrapyd_dist.scheduling import send_queue
from scrapyd_dist.scheduling.send_queue import SendQueue


def batch(number: int) -> Batch:
    return Batch(number=number, size=2)


def queue(*numbers: int) -> SendQueue:
    made = SendQueue()
    for number in numbers:
        made.add(batch(number))
    return made


def waiting(of: SendQueue) -> list[int]:
    return [one.number for one in of.waiting]


def test_what_failed_is_sent_first_and_once_and_only_while_it_is_open() -> None:
    made = queue(1, 2)
    made.remove(batch(1))
    assert made.put_back(batch(1), "web1")
    assert (waiting(made), made.avoid) == ([1, 2], {1: "web1"})
    assert not made.put_back(batch(1), "web2")
    made.forget(3)
    assert not made.put_back(batch(3), "web1")
    assert (waiting(made), made.open) == ([1, 2], {1, 2})


def test_pieces_take_the_place_of_a_batch_that_is_open() -> None:
    made = queue(1, 2)
    made.remove(batch(1))
    made.replace(batch(1), [batch(3), batch(4)])
    made.forget(1)
    assert (waiting(made), made.open) == ([3, 4, 2], {2, 3, 4})
    made.replace(batch(9), [batch(10)])
    assert waiting(made) == [3, 4, 2]


def test_a_batch_that_waits_or_is_sent_is_not_added_again() -> None:
    """Its sealer adds it, and the store may have shown it before."""
    made = queue(1, 2, 1)
    made.remove(batch(2))
    made.add(batch(2))
    assert waiting(made) == [1]


def test_the_requests_of_a_piece_that_was_read_from_the_store_before_count_once() -> None:
    made = queue(1, 2)
    made.remove(batch(1))
    made.add(batch(3))  # by who fills the queue, between the split in the store and the news of it
    made.replace(batch(1), [batch(3), batch(4)])
    made.forget(1)
    assert waiting(made) == [3, 4, 2]
    assert made.requests == 3 * 2
    for number in (3, 4, 2):
        made.remove(batch(number))
    assert made.requests == 0
    made.add(batch(5))
    made.remove(batch(5))  # it is sent
    made.replace(batch(2), [batch(5), batch(6)])
    assert waiting(made) == [6]


def test_a_node_that_has_its_code_anew_is_avoided_no_more() -> None:
    made = queue(1, 2, 3)
    for number, node in ((1, "web1"), (2, "web2"), (3, "web1")):
        made.remove(batch(number))
        made.put_back(batch(number), node)
    made.end_avoidance("web1")
    assert made.avoid == {2: "web2"}


def test_the_requests_are_those_of_the_batches_that_wait() -> None:
    made = queue(1, 2, 3)
    made.remove(batch(2))
    assert made.requests == 4
    made.put_back(batch(2), "web1")
    made.put_back(batch(2), "web2")
    made.remove(batch(1))
    made.replace(batch(1), [Batch(number=4, size=1), Batch(number=5, size=1)])
    assert made.requests == sum(one.size for one in made.waiting) == 6
    assert waiting(made) == [4, 5, 2, 3]


def test_a_batch_that_failed_waits_again_without_a_look_at_all_that_wait() -> None:
    def fail_all(number: int) -> Callable[[], object]:
        made = queue(*range(2 * number))

        def work() -> None:
            for at in range(number):
                made.remove(batch(at))
                made.put_back(batch(at), "web1")

        return work

    assert growth(fail_all, 50, send_queue) < 5
