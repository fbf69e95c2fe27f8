"""The deployment of one egg to many nodes at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.scrapyd.versions import hash_in, is_crawls, later_than, made_at, newest, version_name
from scrapyd_dist.transports.requests import RequestsTransport

from .kept_eggs import find_egg, save_egg
from .node_upload import NodeResult, NodeUpload, RollOutRequest, Step
from .node_versions import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from scrapyd_dist.nodes import Node
    from scrapyd_dist.transports import Sender

    from .egg import Egg

#: DISTRIBUTED_DEPLOY
Mode = Literal["if-missing", "never"]
#: steps after which a node may have the egg
_SENT = {Step.UPLOADING, Step.CHECKING, Step.RETRYING, Step.UPLOADED}
#: seconds for all calls to one node
NODE_TIMEOUT = 60.0


@dataclass(frozen=True, kw_only=True)
class RollOut:
    """The results of a deployment, in the order of the nodes."""

    #: the version on all good nodes; None without a good node, or with different versions (only in mode "never")
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
        """List of spiders -> names of the good nodes with that list; more than one entry is an error."""
        found: dict[tuple[str, ...], tuple[str, ...]] = {}
        for result in self.ready:
            spiders = tuple(sorted(result.spiders))
            found[spiders] = (*found.get(spiders, ()), result.node.name)
        return found

    @property
    def failures(self) -> dict[str, tuple[str, ...]]:
        """Reason -> names of the nodes that failed for it."""
        found: dict[str, tuple[str, ...]] = {}
        for result in self.failed:
            found[result.reason] = (*found.get(result.reason, ()), result.node.name)
        return found


class RollOutInterrupted(KeyboardInterrupt):
    """Ctrl-C during the upload; nodes finish what they have begun.

    Attributes:
        steps: node name -> its last step.
        version: the version's name on nodes without a given one.
    """

    def __init__(self, steps: Mapping[str, Step], version: str) -> None:
        super().__init__()
        self.steps, self.version = steps, version


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
    wish: RollOutRequest | None = None,
    progress: Callable[[Node, Step], object] = lambda _node, _step: None,
    transport: Sender | None = None,
) -> RollOut:
    """Ensure that every node has the egg's code and can import it.

    Args:
        nodes: the nodes, each handled in its own thread, at most 64 at once.
        project: the project's name on the nodes, unless a node has its own.
        egg: the egg to deploy; optional in mode "never", which then accepts any version.
        spider: a spider that the version must have.
        mode: "never" uploads nothing and takes the version with the egg's content, else the newest deployment.
        state: the state folder, where uploaded eggs are kept.
        dirty: whether a new version's name marks uncommitted changes.
        now: the time in a new version's name; by default the current time.
        timeout: seconds for each node.
        wish: further options.
        progress: called with each step, from several threads, but never concurrently.
        transport: sends calls; by default a `RequestsTransport`.

    Raises:
        ConfigError: there is no node, or no egg in mode "if-missing".
        RollOutInterrupted: Ctrl-C during the upload.
    """
    wish = wish or RollOutRequest()
    if not nodes:
        raise ConfigError("There is no node to deploy to. Name one in a [deploy:NAME] section of scrapy.cfg.")
    if egg is None and mode != "never":
        raise ConfigError("Nothing to deploy: no egg was built.")
    with ExitStack() as stack:
        sender = transport or stack.enter_context(closing(RequestsTransport()))
        tell = _one_at_a_time(progress)
        uploads = [
            NodeUpload(
                node=node, project=node.project or project, egg=egg, spider=spider, wish=wish, timeout=timeout,
                tell=tell, transport=sender,
            )
            for node in nodes
        ]  # fmt: skip
        pool = stack.enter_context(threads(len(uploads)))
        list(pool.map(NodeUpload.ask, uploads))
        if egg is None or mode == "never":
            return _rolled_out(pool.map(lambda one: one.take_what_is_there(wish.given.get(one.node.name)), uploads))
        common = _common_version(uploads, project, egg, wish, state, dirty=dirty, now=now)
        names = {one.node.name: wish.given.get(one.node.name, common) for one in uploads}
        if wish.dry_run:
            return _rolled_out(pool.map(lambda one: one.lacks(names[one.node.name]), uploads))
        try:
            result = _rolled_out(pool.map(lambda one: one.bring(names[one.node.name], egg), uploads))
            if wish.atomic and result.failed:
                result = _rolled_out(pool.map(NodeUpload.undo, uploads, result.results))
        except KeyboardInterrupt:
            steps = {one.node.name: one.step for one in uploads}
            _keep(state, project, egg, {names[name] for name, step in steps.items() if step in _SENT})
            raise RollOutInterrupted(steps, common) from None
    _keep(state, project, egg, {one.version for one in result.results if one.uploaded and one.version is not None})
    return result


def _keep(state: Path | None, project: str, egg: Egg, versions: set[str]) -> None:
    if state is not None:
        for version in versions:
            save_egg(state, project, version, egg.data)


def _common_version(
    uploads: Sequence[NodeUpload],
    project: str,
    egg: Egg,
    wish: RollOutRequest,
    state: Path | None,
    *,
    dirty: bool,
    now: datetime | None,
) -> str:
    """Return the version's name on nodes without a given one: an existing or a new one."""
    there = [one.versions for one in uploads if one.answered]
    saved = find_egg(state, project, egg.content_hash) if state is not None and not wish.for_crawl else None
    found = common_name(there, egg.content_hash, for_crawl=wish.for_crawl, kept=saved.version if saved else None)
    moment = later_than(now or datetime.now(timezone.utc), [name for one in uploads for name in one.versions])
    return found or version_name(egg.content_hash, moment, for_crawl=wish.for_crawl, dirty=dirty, label=wish.label)


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
    """Return the existing version name to use for a content on all nodes: the most common one; None for a new name.

    Args:
        there: the versions of each node that answered.
        content_hash: 12 hexadecimal digits.
        for_crawl: a deployment's name is used only if every node has it, because a crawl does not deploy. If False,
            only a deployment's name is used, and only if no other code was deployed after it.
        kept: the content's name in the state folder, used if no node has it.
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
