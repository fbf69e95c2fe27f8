"""How many jobs a node runs at once: as its target states, or as it has shown."""

from rig.members import load

from scrapyd_dist.scheduling.node_capacity import SLOTS_UNKNOWN, NodeCapacity


def test_slots_that_are_stated_are_believed_and_others_are_learned() -> None:
    stated, node = NodeCapacity(stated=2), NodeCapacity(stated=None)
    for _ in range(5):
        stated.show(load(9, pending=9))
    assert stated.slots == 2

    assert node.slots == SLOTS_UNKNOWN
    node.show(load(7))
    assert (node.slots, node.learned) == (7, 7)  # more run than were thought possible
    node.show(load(7))
    assert (node.slots, node.learned) == (8, 7)  # all in use and none waits: there may be more
    node.show(load(3, pending=2))
    assert node.slots == 8  # jobs are started one by one: one look proves nothing
    node.show(load(3, pending=2))
    assert node.slots == 3
    node.show(load(0, pending=2))
    node.show(load(0, pending=2))
    assert node.slots == 3  # a node that starts nothing has not no slots
    assert (node.learned, stated.learned) == (3, 0)

    again = NodeCapacity(stated=None)
    again.recall(node.learned)
    assert (again.slots, again.likely_slots, again.learned) == (3, 3, 3)
    stated.recall(7)
    assert stated.slots == 2
