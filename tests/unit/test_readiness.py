"""Whether a node has the code and is fit: what happened, and what follows from it."""

from scrapyd_dist.scheduling.readiness import Readiness


def test_a_node_that_gets_the_code_is_prepared_and_one_that_cannot_have_it_is_unfit() -> None:
    node = Readiness()
    node.code_brought("no room on its disk")
    assert (node.prepared, node.unfit) == (False, "no room on its disk")
    node.start_over()
    node.code_brought()
    assert (node.prepared, node.unfit) == (True, "")
    node.code_lost()
    assert not node.prepared


def test_one_refusal_is_forgiven() -> None:
    node = Readiness()
    assert [node.forgive_refusal() for _ in range(3)] == [True, False, False]


def test_parts_are_counted_that_were_lost_in_a_row() -> None:
    node = Readiness()
    node.part_lost()
    node.part_lost()
    assert node.lost_parts == 2
    node.part_fetched()
    assert node.lost_parts == 0


def test_a_workers_word_does_not_replace_what_was_found_out() -> None:
    node = Readiness()
    node.believe_worker("")
    assert node.throttle_problem == ""
    node.believe_worker("no lease")
    node.believe_worker("something else")
    assert node.throttle_problem == "no lease"
