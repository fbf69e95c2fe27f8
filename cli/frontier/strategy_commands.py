"""`sdist strategy`: how strategies stand, their rest and reset, their log and dead letters."""

import json
import shutil
from datetime import datetime, timezone
from typing import Annotated, Any

from scrapyd_dist.batches import CrawlState
from scrapyd_dist.errors import ConfigError, NothingMatched, StepRefused
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.fleet.live_crawls import lives
from scrapyd_dist.fleet.strategy_listing import describe_strategy, list_strategies
from scrapyd_dist.frontier.backlog import Backlog
from scrapyd_dist.plurals import counted
from scrapyd_dist.store import Store
from scrapyd_dist.strategy.links import WORK, LinkChange

from ..context import Context
from ..crawls import stored_crawls
from ..crawls.watcher import interruptible_pause
from ..options import Yes, argument, option
from ..output import Listing, Output, confirm, put, put_values, say, table
from .strategy_run import StrategyName, counts_line, found_strategy

#: dead letters that `status` shows
LETTERS = 20
#: changes that are read in one step
_PAGE = 10_000
#: seconds between two looks for new ones
_EVERY = 1.0


def list_(context: Context, output: Listing = Listing()) -> None:
    """List the crawling strategies of this project, and how each stands.

    A strategy is a class that decides what is requested next, and in which order.
    Its links and their states are in the store.

    Example: sdist strategy
    """
    documents = list_strategies(context.store_if_any)
    if output.rows({"strategies": documents}, "strategies", "strategy"):
        return
    if not documents:
        say(
            "There are no strategies yet. `sdist strategy run MODULE:CLASS --spider SPIDER "
            "--seeds FILE` starts one."
        )
        return
    cells = []
    for document in documents:
        links = document["links"]
        row = (document["strategy"], document["class"], document["state"])
        cells.append((*row, links["queued"], links["crawled"], links["error"]))
    table(("strategy", "class", "state", "queued", "crawled", "error"), cells)


def status(context: Context, name: StrategyName, output: Output = Output()) -> None:
    """Say how a strategy stands: its links, its queue, what waits to be handled, its processes \
and workers.

    A dead letter is an event whose handler raised: the fault is shown, and `sdist
    strategy replay` lets it be handled again, once the code is corrected.

    Example: sdist strategy status news
    """  # noqa: D205  # the summary is one line of the help
    store, row, terms = found_strategy(context, name)
    backlog = store.strategy_backlog(name)
    letters = _dead_letters(store, name) if backlog.dead else []
    document = {**describe_strategy(row, terms, backlog), "letters": letters}
    if output.document(document):
        return
    put(f"{name}: {document['state']} · {terms.path} · spider {terms.spider}")
    put(counts_line(backlog))
    _put_batches(store.backlog(name))
    for process in document["processes"]:
        finished = ", has finished" if process["finished"] else ""
        put(f"process {process['name']}: {counted(process['partitions'], 'partition')}{finished}")
    put(f"workers: {document['workers']:,}")
    for letter in letters:
        put(f"dead letter {letter['number']}: {letter['kind']} {letter['url']}: {letter['fault']}")
    if len(letters) < backlog.dead:
        say(f"And {backlog.dead - len(letters):,} more dead letters.")


def _dead_letters(store: Store, name: str) -> list[dict[str, Any]]:
    documents = []
    for event in store.dead_events(name, LETTERS):
        document = {
            "number": event.number,
            "kind": event.kind.value,
            "url": event.url or str(event.request["url"]),
            "fault": event.fault,
        }
        documents.append(document)
    return documents


def _put_batches(backlog: Backlog) -> None:
    """Print what waits in batches, and which seeds were not read to their end."""
    put(
        f"batches: {backlog.waiting_requests:,} requests wait in {backlog.waiting:,}; "
        f"{backlog.leased:,} are leased"
    )
    for producer in backlog.lost:
        if not producer.startswith(f"{WORK}@"):
            work, _, process = producer.rpartition("@")
            put(
                f"{work} were not read to their end by {process}, so the crawl does not end: give "
                "them to another run."
            )


def pause(context: Context, name: StrategyName) -> None:
    """Let a strategy rest: no request of it leaves, and none leaves its queue, until \
`sdist strategy resume`.

    Example: sdist strategy pause news
    """  # noqa: D205  # the summary is one line of the help
    found_strategy(context, name)
    stored_crawls.pause_crawl(
        context, name, f"The strategy {name} rests. Go on with: sdist strategy resume {name}"
    )


def resume(context: Context, name: StrategyName) -> None:
    """Let a strategy go on that rests.

    Example: sdist strategy resume news
    """
    store, row, terms = found_strategy(context, name)
    if not lives(row):
        raise ConfigError(
            f"No process runs the strategy {name}. The command that started it goes on with it: "
            f"sdist strategy run {terms.path} --spider {terms.spider} …"
        )
    store.want(name, "")
    say(f"The strategy {name} goes on.")


def reset(
    context: Context, name: StrategyName, yes: Yes = False, output: Output = Output()
) -> None:
    """Forget all that a strategy knows: its links, events, metadata and log, and all that came \
home of it.

    The next `sdist strategy run` begins anew. Other crawls keep theirs. Refused
    while the strategy or a worker of it runs. The item files that were merged stay.

    Example: sdist strategy reset news --yes
    """  # noqa: D205  # the summary is one line of the help
    store, row, _ = found_strategy(context, name)
    if lives(row):
        raise ConfigError(
            f"Process {row.pid} on {row.host} runs the strategy {name}. Stop it first; nothing "
            "was done."
        )
    backlog = store.strategy_backlog(name)
    total = sum(backlog.states.values())
    if not yes:
        confirm(
            f"Forget all that {name} knows ({counted(total, 'link')})?",
            refusal=f"All that {name} knows would be forgotten ({counted(total, 'link')})",
        )
    _reset(store, name)
    shutil.rmtree(crawl_folder(context.root, name), ignore_errors=True)
    if not output.document({"strategy": name, "links": total}):
        say(
            f"The strategy {name} has forgotten {counted(total, 'link')}; the next run begins anew."
        )


def _reset(store: Store, name: str) -> None:
    try:
        store.reset_strategy(name)
    except StepRefused as refused:
        raise ConfigError(
            f"The strategy {name} is in use, and nothing was done: {str(refused).rstrip('.')}. "
            f"Stop its processes and wait for its workers' end; what a killed one held is free "
            f"within a minute."
        ) from None
    store.update_crawl(
        name,
        state=CrawlState.FINDING,
        summary={},
        message="",
        exit_code=None,
        ended=None,
        wanted="",
    )


def events(
    context: Context,
    name: StrategyName,
    after: Annotated[
        int, option("Only changes behind the one of this number.", metavar="N", min=0)
    ] = 0,
    follow: Annotated[
        bool, option("Go on with new ones as they come, until the strategy has ended.")
    ] = False,
) -> None:
    """Print the log of changes: each time that a link got another state, as a line of JSON.

    A line has the change's number, its time (`at`), the link's url and
    fingerprint, its state `before` and `after`, its score and the reason.

    Example: sdist strategy events news --after 1000
    """
    store, _, _ = found_strategy(context, name)
    with interruptible_pause() as pause:
        while True:
            ended = store.strategy_backlog(name).ended
            while changes := store.changes(name, after, _PAGE):
                put_values("\n".join(map(_line, changes)))
                after = changes[-1].number
            if not follow or ended:
                return
            pause(_EVERY)


def _line(change: LinkChange) -> str:
    """Return a change of a link as a line of JSON."""
    at = datetime.fromtimestamp(change.at, timezone.utc)
    document = {
        "number": change.number,
        "at": at.isoformat(timespec="milliseconds"),
        "url": change.url,
        "fingerprint": change.fingerprint.hex(),
        "before": change.before.name,
        "after": change.after.name,
        "score": change.score,
        "reason": change.reason,
    }
    return json.dumps(document, ensure_ascii=False)


def replay(
    context: Context,
    name: StrategyName,
    number: Annotated[
        list[int] | None, argument("NUMBER", "Numbers of dead letters; all if left out.")
    ] = None,
    output: Output = Output(),
) -> None:
    """Let dead letters be handled again: events at which a handler of the strategy raised.

    Correct the strategy first, and start it again. A process that runs handles
    them at once, with the code that it began with.

    Example: sdist strategy replay news
    """
    store, row, terms = found_strategy(context, name)
    events = store.replay(name, number or None)
    if not events:
        raise NothingMatched(
            f"The strategy {name} has no such dead letter. `sdist strategy status {name}` lists "
            "them."
        )
    if output.document({"strategy": name, "events": events}):
        return
    waits = "" if lives(row) else f" They wait for the next `sdist strategy run {terms.path} …`."
    say(f"{counted(events, 'dead letter')} of {name} will be handled again.{waits}")
