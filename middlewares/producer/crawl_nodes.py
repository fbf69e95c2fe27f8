"""Find the nodes of a crawl, bring each the code, and make the scheduler that uses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scrapy.settings import BaseSettings

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.progress.summary_document import learned_slots
from scrapyd_dist.scheduling.job_request import JobRequest
from scrapyd_dist.scheduling.node_state import NodeState
from scrapyd_dist.scheduling.placement import Placement
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy
from scrapyd_dist.scheduling.scheduler import Scheduler
from scrapyd_dist.scheduling.scheduler_state import SchedulerState
from scrapyd_dist.store.reach import Way, ways_to
from scrapyd_dist.transports import AsyncSender

from .crawl_code import TODAYS, CrawlCode
from .crawl_repository import CrawlRepository
from .crawl_request import CrawlRequest
from .job_settings import make_job_settings
from .node_sources import NodeSources
from .preflight import Prepared, bring, prepare
from .producer_options import ProducerOptions

logger = logging.getLogger(__name__)
#: what makes that workers need the store, where no setting does
RULES = "rules of `sdist throttle`"
#: the name under which the process of a crawl fills the crawl's own frontier; the one that goes on
#: with it has the same
PRODUCER = "producer"


@dataclass(kw_only=True)
class CrawlNodes:
    """Holds the nodes of one crawl, which have its code."""

    request: CrawlRequest  #: its options as the nodes allow
    repository: CrawlRepository
    sources: NodeSources
    prepared: Prepared
    ways: Callable[[Node], Way]  #: to the store, for workers
    code: CrawlCode  #: as it was settled before the nodes were asked
    _unreadable: str = ""  #: why the list of nodes could not be read last

    @classmethod
    async def prepare(
        cls, request: CrawlRequest, repository: CrawlRepository, code: CrawlCode = TODAYS
    ) -> CrawlNodes:
        """Find the nodes, and bring them the code, of which `code` is settled.

        DistError if nothing can be started.
        """
        sources = NodeSources(request)
        nodes = await asyncio.to_thread(
            sources.read, await repository.thread(repository.thread.store.nodes)
        )
        prepared = await asyncio.to_thread(prepare, request, nodes, code=code)
        learned = learned_slots(await repository.thread(repository.thread.store.crawls))
        rules = await repository.rules()
        ways = await asyncio.to_thread(settle_members, request, prepared, learned, rules=rules)
        options = settle_sending(request.options, prepared.members, rules=rules)
        request = replace(request, options=options)
        return cls(
            request=request,
            repository=repository,
            sources=sources,
            prepared=prepared,
            ways=ways,
            code=code,
        )

    async def job_request(self, settings: BaseSettings, **own: Any) -> JobRequest:
        """Return what all jobs of the crawl, with these settings, have in common.

        `own` are further fields.
        """
        request = self.request
        options = request.options
        made = make_job_settings(
            settings, given=request.given, limits=request.project.limits, leases=options.leases
        )
        return JobRequest(
            crawl=self.repository.id,
            home=self.repository.home,
            project=request.project.name,
            spider=request.spider,
            version=self.prepared.version,
            settings=made.own,
            foreign_settings=made.foreign,
            args=request.args,
            goals=options.goals.limits,
            collected=await self.repository.collected(),
            **own,
        )

    def scheduler(
        self,
        spec: JobRequest,
        *,
        sender: AsyncSender,
        staffing: ScalingPolicy | None = None,
        counts: Callable[[], Mapping[str, int]] = dict,
    ) -> Scheduler:
        """Make the scheduler of the batches of a crawl or frontier.

        `spec` says what a frontier's rows are, `staffing` how many workers `sdist frontier consume`
        was asked for; None: for a crawl, which fills its own frontier, and has items and pages of
        its own (`counts`).
        """
        options = self.request.options
        limits = options.limits
        scaling = options.scaling
        own: dict[str, Any] = {}
        if staffing is None:
            own = {"placement": Placement(options.placement), "producer": PRODUCER}
        elif spec.rows:
            limits = replace(limits, max_jobs=staffing.most)
            scaling = ScalingPolicy(max_time=staffing.max_time)
        else:
            per_slot = 0 if scaling.terms.fair else staffing.per_slot
            scaling = replace(staffing, terms=scaling.terms, per_slot=per_slot)
        state = SchedulerState(
            spec=spec,
            members=self.prepared.members,
            store=self.repository.thread,
            sender=sender,
            limits=limits,
            reach=self.ways if options.leases else None,
            sends=options.sends,
            # With the moment of the crawl's beginning: another one may have had its name.
            rules_file=self.repository.folder / f"{self.repository.home}.rules.json",
        )
        return Scheduler(
            state=state,
            folder=self.repository.parts,
            prepare=self._bring,
            listed=self._listed,
            scaling=scaling,
            key=self.prepared.key,
            own=counts,
            **own,
        )

    async def _bring(self, member: NodeState) -> str:
        """Bring the crawl's code to a node that was not there at the start and answers now.

        Returns why the node cannot be used, empty if it can.
        """
        options = self.request.options
        wrong = await asyncio.to_thread(bring, self.request, member.node, self.prepared)
        if wrong or not (options.throttled or options.heeds):
            return wrong  # the workers' supervisor asks whether they reach the store
        way = await asyncio.to_thread(self.ways, member.node)
        member.readiness.note_throttle(way.reason)
        if options.throttled or (way.reason and await self.repository.rules()):
            return way.reason
        return ""

    async def _listed(self, records: Sequence[NodeRecord]) -> tuple[Node, ...] | None:
        """Return the nodes that are listed now; None when that cannot be told at the moment."""
        try:
            return await asyncio.to_thread(self.sources.read, records)
        except (ConfigError, NothingMatched) as error:
            # A name or a list is gone, or a record is wrong.
            if str(error) != self._unreadable:  # it is read once a second
                self._unreadable = str(error)
                logger.warning("The list of nodes cannot be read: %s", error)
            return None


def settle_members(
    request: CrawlRequest, prepared: Prepared, learned: Mapping[str, int], *, rules: int
) -> Callable[[Node], Way]:
    """Note what is known of the nodes, and return the ways from them to the store.

    That is how many slots they have shown (`learned`, by base address), and whether their workers
    reach the store; `prepared` gets the warnings of that. Errors are those of `check_reach`.
    Blocking.
    """
    for member in prepared.members:
        member.capacity.recall(learned.get(member.node.url, 0))
    ways = ways_to(request.store, prepared.key)
    prepared.warnings.extend(check_reach(request.options, prepared.members, ways, rules=rules))
    return ways


def settle_sending(
    options: ProducerOptions, members: Sequence[NodeState], *, rules: int
) -> ProducerOptions:
    """Return the options with how batches reach the nodes, after `check_reach`.

    All nodes are sent their batches if no worker reaches the store. None is if the store has rules:
    a node that seems to reach it, and whose workers do not, would send requests without permits.
    """
    able = [member for member in members if member.able]
    if able and all(member.readiness.unreached for member in able):
        return replace(options, leases=False)
    if options.leases and options.heeds and rules:
        return replace(options, only_leased=options.only_leased or RULES)
    return options


def check_reach(
    options: ProducerOptions,
    members: Sequence[NodeState],
    ways: Callable[[Node], Way],
    *,
    rules: int,
) -> list[str]:
    """Mark the nodes whose workers need the store and do not reach it as unfit, with warnings.

    They need it where a setting says so, and where the store has rules that the crawl is to heed.
    Elsewhere such nodes are `unreached` if the others lease, and `deaf`: their workers would not
    hear of a later rule. ConfigError if workers need the store, and those of no node reach it.
    Blocking.
    """
    usable = [member for member in members if member.able]
    needs = options.why_reach
    if not needs and options.heeds and rules:
        needs = RULES
    if not needs:
        _note_reach(usable, ways, options)
        return []
    warnings = _mark_unfit(usable, ways)
    if usable and all(member.readiness.unfit for member in usable):
        raise _no_way(needs, usable)
    return warnings


def _note_reach(
    members: Iterable[NodeState], ways: Callable[[Node], Way], options: ProducerOptions
) -> None:
    """Note why workers of these nodes do not reach the store, where they can do without it."""
    for member in members:
        unreached = ""
        throttle_problem = ""
        if options.leases and options.sends:
            unreached = ways(member.node).reason
        if options.heeds:
            throttle_problem = ways(member.node).reason
        member.readiness.out_of_reach(unreached)
        member.readiness.note_throttle(throttle_problem)


def _mark_unfit(members: Iterable[NodeState], ways: Callable[[Node], Way]) -> list[str]:
    """Mark the nodes whose workers do not reach the store, which they need; warn of each."""
    warnings = []
    for member in members:
        reason = ways(member.node).reason
        if reason:
            member.readiness.mark_unfit(reason)
            warnings.append(f"{member.node.name} gets no workers: {reason}")
    return warnings


def _no_way(needs: str, members: Sequence[NodeState]) -> ConfigError:
    """Return the error of a crawl whose workers need the store, and reach it from no node."""
    reasons = [member.readiness.unfit.rstrip(".") for member in members]
    why = "; ".join(dict.fromkeys(reasons))
    if needs == RULES:
        return ConfigError(
            "The store has rules of `sdist throttle`, and the workers of no node could heed them:"
            f" {why}. Nothing was started. Use a store that all nodes reach, such as a Redis server"
            " (SDIST_STORE=redis://…); remove the rules, which `sdist throttle show` lists; or"
            " crawl without them: DISTRIBUTED_THROTTLE = False."
        )
    return ConfigError(
        f"Workers need a store that they reach ({needs}), and from no node they do: {why}. Nothing"
        f" was started. Without {needs.partition(',')[0]} the nodes need not reach the store."
    )
