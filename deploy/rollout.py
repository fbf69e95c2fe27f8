"""One egg onto many nodes at the same time; rule: a node that fails stops no other, and no broken egg stays behind.

A version is known by the content hash in its name, so what a node has already is not sent again.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from scrapyd_dist.errors import ConfigError, NodeError
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.versions import hash_in, is_crawls, later_than, made_at, newest, version_name
from scrapyd_dist.transports.requests import RequestsTransport

from .side_by_side import threads
from .talk import Line, NodeResult, Step, Talk
from .versions import find_egg, save_egg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

    from .egg import Egg

#: DISTRIBUTED_DEPLOY
Mode = Literal["if-missing", "never"]

#: after one of these a node may have the egg
_SENT = {Step.UPLOADING, Step.CHECKING, Step.RETRYING, Step.UPLOADED}

#: seconds for all that one node is asked
NODE_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class RollOut:
    """What came of all nodes, in the order they were given."""

    #: the one name that all good nodes have; None = no good node, or different ones (only mode "never")
    version: str | None
    results: tuple[NodeResult, ...]

    @property
    def ready(self) -> tuple[NodeResult, ...]:
        return tuple(result for result in self.results if result.error is None and not result.undone)

    @property
    def failed(self) -> tuple[NodeResult, ...]:
        return tuple(result for result in self.results if result.error is not None)

    @property
    def spider_lists(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """What the good nodes found in the version -> the names of the nodes; more than one entry is a fault."""
        found: dict[tuple[str, ...], tuple[str, ...]] = {}
        for result in self.ready:
            spiders = tuple(sorted(result.spiders))
            found[spiders] = (*found.get(spiders, ()), result.node.name)
        return found

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """Each reason once -> the names of the nodes it holds for."""
        found: dict[str, tuple[str, ...]] = {}
        for result in self.failed:
            found[result.reason] = (*found.get(result.reason, ()), result.node.name)
        return found


class RollOutInterrupted(KeyboardInterrupt):
    """Ctrl-C while the egg was on its way; the nodes finish what they have begun.

    Attributes:
        steps: node name -> what was known of it last.
        version: the name that nodes without one of their own get.
    """

    def __init__(self, steps: Mapping[str, Step], version: str) -> None:
        super().__init__()
        self.steps, self.version = steps, version


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What may be asked of a roll-out beside the ordinary."""

    #: what the commit is called, for the name of a new version
    label: str = ""
    #: a crawl needs it: it becomes no node's default beside a deployment
    for_crawl: bool = False
    #: node name -> name of the version there, in place of one that is chosen by time and content
    given: Mapping[str, str] = field(default_factory=dict)
    #: a given name that a node has is taken for this content; otherwise it is uploaded again
    only_missing: bool = False
    #: when one node fails, no other one keeps what was uploaded
    atomic: bool = False
    #: how often a call to a node is repeated whose failure may pass
    retries: int = 0
    #: ask only; what would be uploaded is `planned`
    dry_run: bool = False


def ensure(
    nodes: Sequence[Node],
    project: str,
    egg: Egg | None,
    *,
    spider: str | None = None,
    mode: Mode = "if-missing",
    state: Path | None = None,
    dirty: bool = False,
    now: datetime | None = None,
    timeout: float = NODE_TIMEOUT,
    wish: Wish = Wish(),
    progress: Callable[[Node, Step], object] = lambda _node, _step: None,
    transport: Sender | None = None,
) -> RollOut:
    """See to it that every node has the egg's code, and can import it.

    Args:
        nodes: where to; each is asked in a thread of its own, at most 64 at once.
        project: Scrapyd's name of the project; a node's own `project` goes before it.
        egg: what to deploy. Mode "never" does without: then any version will do.
        spider: one that the version must have.
        mode: "never" uploads nothing and takes the version with our content, else the newest deployment.
        state: the state folder; eggs that were uploaded are kept there.
        dirty: whether a new version's name says that the work tree had uncommitted changes.
        now: the moment in a new version's name.
        timeout: seconds for each node.
        wish: what else is asked for.
        progress: called with each step; from several threads, but never twice at the same time.
        transport: what sends; by default one of requests.

    Raises:
        ConfigError: no node, or mode "if-missing" without an egg.
        RollOutInterrupted: Ctrl-C, after the first node was sent the egg.
    """
    if not nodes:
        raise ConfigError("There is no node to deploy to. Name one in a [deploy:NAME] section of scrapy.cfg.")
    if egg is None and mode != "never":
        raise ConfigError("Nothing to deploy: no egg was built.")
    with ExitStack() as stack:
        sender = transport or stack.enter_context(closing(RequestsTransport()))
        tell = _one_at_a_time(progress)
        line = Line(timeout=timeout, tell=tell, transport=sender, retries=wish.retries, undoable=wish.atomic)
        talks = [Talk(node=node, project=node.project or project, egg=egg, spider=spider, line=line) for node in nodes]
        pool = stack.enter_context(threads(len(talks)))
        list(pool.map(Talk.ask, talks))
        if egg is None or mode == "never":
            return _rolled_out(pool.map(lambda talk: talk.take_what_is_there(wish.given.get(talk.node.name)), talks))
        moment = later_than(now or datetime.now(timezone.utc), [name for talk in talks for name in talk.versions])
        fresh = version_name(egg.content_hash, moment, for_crawl=wish.for_crawl, dirty=dirty, label=wish.label)
        there = [talk.versions for talk in talks if talk.answered]
        saved = find_egg(state, project, egg.content_hash) if state is not None else None
        kept = saved.version if saved and not wish.for_crawl else None
        common = common_name(there, egg.content_hash, for_crawl=wish.for_crawl, kept=kept) or fresh
        if wish.dry_run:
            return _rolled_out(pool.map(lambda talk: talk.lacks(wish.given.get(talk.node.name, common)), talks))
        try:
            result = _bring(pool, talks, egg, common, wish)
        except KeyboardInterrupt:
            steps = {talk.node.name: talk.step for talk in talks}
            sent = {wish.given.get(name, common) for name, step in steps.items() if step in _SENT}
            _keep(state, project, sent, egg)
            raise RollOutInterrupted(steps, common) from None
    _keep(state, project, {found.version for found in result.results if found.uploaded}, egg)
    return result


def _keep(state: Path | None, project: str, names: Iterable[str | None], egg: Egg) -> None:
    for name in names:
        if state is not None and name is not None:
            save_egg(state, project, name, egg.data)


def _bring(pool: ThreadPoolExecutor, talks: Sequence[Talk], egg: Egg, common: str, wish: Wish) -> RollOut:
    def one(talk: Talk) -> NodeResult:
        name = wish.given.get(talk.node.name)
        again = name is not None and not wish.only_missing
        return talk.bring(name or common, egg.data, again=again)

    result = _rolled_out(pool.map(one, talks))
    if wish.atomic and result.failed:
        return _rolled_out(pool.map(Talk.undo, talks, result.results))
    return result


def present(nodes: Sequence[Node], project: str) -> dict[str, tuple[str, ...] | None]:
    """The versions that each node has: node name -> in Scrapyd's order, None where it does not answer."""
    if not nodes:
        return {}
    sender = RequestsTransport()

    def look(node: Node) -> tuple[str, ...] | None:
        try:
            return sender.send(node, api.listversions(node.project or project))
        except NodeError:
            return None

    with threads(len(nodes)) as pool:
        return dict(zip((node.name for node in nodes), pool.map(look, nodes), strict=True))


def _rolled_out(results: Iterable[NodeResult]) -> RollOut:
    results = tuple(results)
    versions = {result.version for result in results if result.version is not None}
    return RollOut(version=versions.pop() if len(versions) == 1 else None, results=results)


def _one_at_a_time(progress: Callable[[Node, Step], object]) -> Callable[[Node, Step], object]:
    lock = threading.Lock()

    def tell(node: Node, step: Step) -> None:
        with lock:
            progress(node, step)

    return tell


def common_name(
    there: Sequence[Sequence[str]], content_hash: str, *, for_crawl: bool = False, kept: str | None = None
) -> str | None:
    """The name under which all nodes are to have a content: that which most of them have for it; None = a new one.

    Args:
        there: the versions of each node that answered.
        content_hash: 12 hexadecimal digits.
        for_crawl: a deployment's name will do only where every node has it, since a crawl deploys nothing. Otherwise
            only a deployment's name will do, and only while no other code was deployed after it.
        kept: a name that the content had, where no node has it any more.
    """
    names = Counter(name for node in there for name in node if hash_in(name) == content_hash)
    if for_crawl:
        names = Counter({name: n for name, n in names.items() if is_crawls(name) or n == len(there)})
    else:
        names = Counter({name: n for name, n in names.items() if not is_crawls(name)} or ({kept: 1} if kept else {}))
        last = newest(name for node in there for name in node)
        if last is not None and hash_in(last) != content_hash:
            return None
    return max(names, key=lambda name: (names[name], made_at(name) or 0.0, name), default=None)
