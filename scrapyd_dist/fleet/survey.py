"""Asks a whole fleet once how it is: what `sdist nodes` lists, and metrics and pages show."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from scrapyd_dist.errors import PARTIAL
from scrapyd_dist.fleet.node_poll import TIMEOUT, newest_by_project, newest_of, poll_nodes
from scrapyd_dist.fleet.node_status import NodeHealth, NodeStatus
from scrapyd_dist.fleet.recalled_states import recall_states
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.messenger import NO_MESSENGER, Messenger
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.nodes import Node
from scrapyd_dist.transports import Sender

#: opens what is told of each answer; it gets the number of nodes that are asked
Progress = Callable[[int], AbstractContextManager[Callable[[NodeStatus], None] | None]]


@dataclass(frozen=True, kw_only=True)
class FleetSurvey:
    """How the nodes of a fleet are, in the order in which they are listed."""

    project: str | None  #: whose versions are compared, where a target names no project
    statuses: Sequence[NodeStatus]
    newest: Mapping[str | None, str | None]  #: project -> its newest deployment in the fleet

    @property
    def usual_version(self) -> str | None:
        """The newest deployment of the project; where no node is for it, of all that there are."""
        return self.newest.get(self.project) or newest_of(self.statuses)

    def in_states(self, states: Sequence[NodeHealth] | None) -> list[NodeStatus]:
        """Return the nodes that are in one of these states; without any state, all.

        One that is down and drained is in both states.
        """
        wanted = set(states or NodeHealth)
        return [status for status in self.statuses if not wanted.isdisjoint(status.states)]

    @property
    def exit_code(self) -> int:
        """By the nodes alone, as of `fleet_exit_code`."""
        return fleet_exit_code(self.statuses)

    def document(self, status: NodeStatus) -> dict[str, Any]:
        """Return one of the nodes as `sdist nodes --json` gives it."""
        return status.document(self.newest[status.node.project or self.project])


def survey_fleet(
    workspace: Workspace,
    nodes: Sequence[Node],
    project: str | None = None,
    *,
    sender: Sender | None = None,
    timeout: float = TIMEOUT,
    progress: Progress = lambda _: nullcontext(),
    messenger: Messenger = NO_MESSENGER,
) -> FleetSurvey:
    """Ask all nodes at once, and recall what is remembered of them.

    project: whose versions are wanted, None = none; sender: the workspace's own if left out;
    timeout: seconds for each answer; messenger: gets what could not be found out.
    """
    sender = sender or workspace.sender
    known: Mapping[str, float] = {}
    if project is not None:
        known = workspace.known_times(nodes, project)
    with progress(len(nodes)) as note:
        answered = poll_nodes(sender, nodes, project, timeout, known, note=note)
    statuses = recall_states(workspace, sender, answered, timeout, messenger)
    newest = newest_by_project(statuses, project)
    return FleetSurvey(project=project, statuses=statuses, newest=newest)


def fleet_exit_code(statuses: Sequence[NodeStatus]) -> int:
    """Return 0 when all work, 3 when some do not, else the code of what keeps all of them away.

    A drained node need not answer.
    """
    errors = []
    for status in statuses:
        if status.error is not None and status.draining is not None:
            continue
        errors.append(status.error)
    if not errors:  # all are drained, and none answered
        errors = [status.error for status in statuses]
    code = answers_exit_code(len(errors), errors)
    if code == 0 and any(status.wedged for status in statuses):
        return PARTIAL
    return code
