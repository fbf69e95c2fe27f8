"""The nodes of one crawl, as its process finds them: at the start, and when others come later. Nothing here blocks."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store.reach import Ways

from .code import TODAYS, Code
from .preflight import bring, members_of, prepare
from .sources import Sources

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from scrapyd_dist.coordination.fleet import Member
    from scrapyd_dist.nodes import Node, NodeRecord
    from scrapyd_dist.store.reach import Way

    from .options import Options
    from .preflight import Prepared, Project

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: what makes that workers need the store, where no setting does
RULES = "rules of `sdist throttle`"


class Fleet:
    """Finds nodes, and brings them the crawl's code."""

    prepared: Prepared
    ways: Ways  #: to the store, for workers

    def __init__(
        self, options: Options, project: Project, spider: str, store: str, rules: Callable[[], Awaitable[int]]
    ) -> None:
        """Nothing is looked at yet.

        Args:
            options: what the crawl was given.
            project: whose code the nodes get.
            spider: its name.
            store: its address.
            rules: tells how many rules of `sdist throttle` are in the store now.
        """
        self._options, self._project, self._spider = options, project, spider
        self._store, self._rules = store, rules
        self.warnings: list[str] = []  #: what is to be said of the nodes
        self._sources = Sources(options, project)
        self._unreadable = ""  #: why the list of nodes could not be read last, as it was told

    async def prepare(self, records: Sequence[NodeRecord], code: Code = TODAYS) -> Prepared:
        """See to it that nodes are there and have the code.

        Args:
            records: what the store has of nodes.
            code: what is settled of the crawl's code.

        Raises:
            DistError: nothing can be started, for this reason.
        """
        nodes = await in_thread(partial(self._sources.read, records))
        work = partial(prepare, self._options, self._project, self._spider, nodes, code=code)
        self.prepared = await in_thread(work)
        self.warnings += self.prepared.warnings
        self.ways = Ways(self._store, self.prepared.key)
        return self.prepared

    async def members(self) -> list[Member]:
        """The nodes at the start. Where workers need the store, those that do not reach it are not used.

        They need it where a setting says so, and where the store has rules that the crawl is to heed.

        Raises:
            ConfigError: no node's workers reach it.
        """
        members = members_of(self.prepared)
        needs, heeds = self._options.why_reach, self._options.heeds
        if not needs and heeds and await self._rules():
            needs = RULES
        if needs:
            self.warnings += await in_thread(partial(check_reach, members, self.ways, needs))
        elif heeds:
            await in_thread(partial(note_deaf, members, self.ways))
        return members

    async def bring(self, member: Member) -> str:
        """A node that was not there at the start answers now: bring it the crawl's code, or say why not."""
        node = member.node
        work = partial(bring, self._options, self._project, node, self.prepared, self._spider)
        wrong = await in_thread(work)
        if not wrong and (self._options.throttled or self._options.heeds):  # a manager looks for itself
            member.deaf = (await in_thread(partial(self.ways, node))).reason
            if self._options.throttled or (member.deaf and await self._rules()):
                wrong = member.deaf
        return wrong

    async def listed(self, records: Sequence[NodeRecord]) -> tuple[Node, ...] | None:
        """The nodes that are listed now; None when that cannot be told at the moment."""
        try:
            return await in_thread(partial(self._sources.read, records))
        except ConfigError as error:  # a list that was never read before, or a record that makes no sense
            if str(error) != self._unreadable:  # it is read once a second
                self._unreadable = str(error)
                logger.warning("The list of nodes cannot be read: %s", error)
            return None


def check_reach(members: Sequence[Member], ways: Callable[[Node], Way], needs: str) -> list[str]:
    """Mark the nodes whose workers do not reach the store; what is to be said of them. Blocking.

    Args:
        members: the nodes.
        ways: to the store.
        needs: which settings make that workers need it, or `RULES`.

    Raises:
        ConfigError: that is so with all of them.
    """
    usable = [member for member in members if member.able]
    for member in usable:
        member.unfit = ways(member.node).reason
    if usable and not any(member.able for member in usable):
        why = "; ".join(dict.fromkeys(member.unfit.rstrip(".") for member in usable))
        if needs == RULES:
            raise ConfigError(
                f"The store has rules of `sdist throttle`, and the workers of no node could heed them: {why}. Nothing"
                " was started. Use a store that all nodes reach, such as a Redis server (SDIST_STORE=redis://…); remove"
                " the rules, which `sdist throttle show` lists; or crawl without them: DISTRIBUTED_THROTTLE = False."
            )
        raise ConfigError(
            f"Workers need a store that they reach ({needs}), and from no node they do: {why}. Nothing was started."
            f" Without {needs.partition(',')[0]} the nodes need not reach the store."
        )
    return [f"{member.node.name} gets no workers: {member.unfit}" for member in usable if member.unfit]


def note_deaf(members: Sequence[Member], ways: Callable[[Node], Way]) -> None:
    """Note the nodes whose workers would not hear of a rule that is made later. Blocking."""
    for member in members:
        if member.able:
            member.deaf = ways(member.node).reason


async def in_thread(work: Callable[[], T]) -> T:
    """What a blocking call gives, without blocking."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
