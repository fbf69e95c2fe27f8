"""A fleet that is asked once: its exit code, its rows, what is remembered of its nodes."""

from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.fleet.node_status import NodeStatus
from scrapyd_dist.fleet.survey import fleet_exit_code
from scrapyd_dist.nodes import Node


def test_a_node_that_starts_nothing_is_a_failure_of_one() -> None:
    nodes = [NodeStatus(node=Node.parse("web1"), wedged=True), NodeStatus(node=Node.parse("web2"))]
    assert (fleet_exit_code(nodes), fleet_exit_code(nodes[1:])) == (3, 0)


def test_a_drained_node_need_not_answer_unless_it_is_the_only_one() -> None:
    drained = NodeStatus(node=Node.parse("web1"), error=ConnectionRefused(), draining=1.0)
    down = NodeStatus(node=Node.parse("web3"), error=ConnectionRefused())
    well = NodeStatus(node=Node.parse("web2"))
    codes = [
        fleet_exit_code(seen)
        for seen in ([drained, well], [drained, well, down], [drained], [drained, down])
    ]
    assert codes == [0, 3, 5, 5]
