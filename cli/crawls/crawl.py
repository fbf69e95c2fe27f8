"""`sdist crawl`, `plan`, `resume`, `crawls`: a crawl from its plan on."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.errors import ConfigError, CrawlFailed
from scrapyd_dist.fleet.live_crawls import describe_crawl, list_crawls, runs
from scrapyd_dist.goals import OURS, in_words
from scrapyd_dist.plurals import counted
from scrapyd_dist.progress.crawl_outcome import NEW_CODE, next_command
from scrapyd_dist.progress.crawl_words import state_of
from scrapyd_dist.progress.summary_document import count_in, summary_of
from scrapyd_dist.project_settings import written_names
from scrapyd_dist.python_process import command_of_module
from scrapyd_dist.settings import describe_unknown
from scrapyd_dist.store import Store
from scrapyd_dist.time_spans import describe_age

from .. import producer_standby
from ..context import Context
from ..options import OnlyLabels, argument, option, spiders
from ..options import crawls as crawl_names
from ..output import Listing, Output, complain_each, put, put_text, say, table
from . import producer_process, watcher, wording
from .crawl_options import CrawlOptions, GoalOptions, is_stdout, refuse_secrets, stdout_for
from .producer_process import kept_code
from .watcher import WATCHING, WatchOptions

#: of a longer list of shards, so many from its beginning are shown
_FIRST = 4
Name = Annotated[
    str | None,
    option("Name of the crawl; made from spider and time if left out.", metavar="NAME"),
]
Detach = Annotated[
    bool, option("Start it and come back at once; `sdist watch` shows it.", panel=WATCHING)
]
NewCode = Annotated[
    bool, option("Go on with the code that is here now, not with what the crawl began with.")
]
SomeCrawl = Annotated[
    str | None, argument("CRAWL", "Its name; the newest if left out.", crawl_names)
]
Probe = Annotated[
    int | None,
    option(
        "Fetch up to N index pages and N detail pages of the site (30 s at most; no item is kept, "
        "no pipeline runs), and forecast how long the crawl will take.",
        metavar="N",
        min=1,
        show_default=False,
    ),
]
RunningCrawl = Annotated[
    str | None, argument("CRAWL", "Its name; if left out, the only one that runs.", crawl_names)
]


def show(plan: Mapping[str, Any]) -> None:
    """Print a plan as the planning process gives it."""
    put(
        f"Spider {plan['spider']} of the project {plan['project']}; nothing is started by this "
        "command."
    )
    put(f"To the nodes go: {plan['target']}")
    if plan["limit"]:
        put(f"Limited to the first {counted(plan['limit'], 'target request')}")
    if plan["goals"]:
        goals = [in_words(name, most) for name, most in plan["goals"].items()]
        put(f"Ends at {' or '.join(goals)}")
    put(f"Batches: up to {counted(plan['batch_size'], 'request')}")
    put(f"Items: {', '.join(plan['output'])}")
    if plan["throttle"]["rules"]:
        put_text(_throttle_line(plan["throttle"]))
    if plan["shards"]:
        put(f"\n{counted(len(plan['shards']), 'shard')}:")
        table(("shard", "pages", "starts at"), shard_rows(plan["shards"]))
    if plan["nodes"]:
        put(f"\n{counted(len(plan['nodes']), 'node')}:")
        table(("node", "state", "slots", "code", "url", ""), node_rows(plan))
    if "forecast" in plan:
        put_text(f"\n{wording.forecast(plan['forecast'], time.time())}")
    for note in wording.notes(plan):
        put_text(f"\nNote: {note}")


def _throttle_line(throttle: Mapping[str, Any]) -> str:
    how = "every process heeds them"
    if not throttle["heeded"]:
        how = f"heeded by none: {throttle['reason']}"
    return f"Throttle: {counted(throttle['rules'], 'rule')} in the store; {how}"


def shard_rows(shards: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each of the first shards and for the last one."""
    rows: list[tuple[str, ...]] = []
    for shard in shards:
        pages = "-"
        if shard["first_page"] is not None:
            pages = f"{shard['first_page']}-{shard['last_page']}"
        rows.append((str(shard["number"]), pages, shard["url"]))
    if len(rows) <= _FIRST + 2:
        return rows
    return [*rows[:_FIRST], ("…", f"{len(rows) - _FIRST - 1} more", ""), rows[-1]]


def node_rows(plan: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return a row for each node: whether it takes part, and whether it would get the code."""
    rows: list[tuple[object, ...]] = []
    for node in plan["nodes"]:
        if node["state"] != "up":
            code = "-"
        elif node["name"] in plan["deploy"]:
            code = f"would get {plan['version'] or 'it'}"
        else:
            code = "has it"
        row = (node["name"], node["state"], node["slots"], code, node["url"], _node_remark(node))
        rows.append(row)
    return rows


def _node_remark(node: Mapping[str, Any]) -> str:
    """Return what to know of a node of a plan; empty where there is nothing."""
    if node["reason"]:
        return str(node["reason"])
    if not node["logs"]:
        return "serves no /logs/: needs --feed"
    if node["unreached"]:
        return f"is sent its batches: {node['unreached']}"
    return ""


def crawl(
    context: Context,
    asked: CrawlOptions,
    watched: WatchOptions,
    name: Name = None,
    detach: Detach = False,
) -> int:
    """Spread one crawl over the nodes, and bring the items home.

    Nodes that lack the code get it, for this crawl only: other jobs keep using what
    was deployed. The index is crawled here, and the pages that it leads to by jobs
    on the nodes. The crawl runs in a process of its own, so Ctrl-C ends only the
    watching.

    Example: sdist crawl books --callback parse_book -o books.jl
    """
    taken = detach or watched.as_json
    with stdout_for(asked.add_to, asked.overwrite, context, taken=taken) as (add_to, overwrite):
        options = replace(asked, add_to=add_to, overwrite=overwrite)
        return _crawl(context, options, watched, name, detach=detach)


def _crawl(
    context: Context, asked: CrawlOptions, watched: WatchOptions, name: str | None, *, detach: bool
) -> int:
    order = asked.order(Path.cwd())
    kept = kept_code(context.root, order.version)
    refuse_secrets(order.spider_settings)
    # Before the start, and whatever is quiet: the crawl would run with a default in its place.
    project = context.project
    names = {*order.spider_settings, *written_names(project.root, project.settings_module)}
    complain_each(describe_unknown(names, os.environ))
    begun, process = producer_process.begin(context.root, context.new_store, order, name, kept)
    code = follow(context, begun, process, watched, detach=detach)
    if not detach:
        producer_process.forget_refused(context.root, context.store, begun.id)
    return code


def follow(
    context: Context,
    begun: Crawl,
    process: subprocess.Popen[bytes],
    watched: WatchOptions,
    *,
    detach: bool,
) -> int:
    """Watch a crawl that was started to its end, or leave it running and print its name.

    Gives the exit code.
    """
    if not detach:
        return watcher.watch(context.root, context.store, begun.id, watched, process)
    process.returncode = 0  # it outlives this object, which would warn about that
    if not watched.document(describe_begun(begun, process.pid)):
        put(begun.id)
    if not watched.quiet:
        say(f"The crawl runs on its own. See it with: sdist watch {begun.id}")
    return 0


def describe_begun(crawl: Crawl, pid: int) -> dict[str, Any]:
    """Return what is said of a crawl that was begun, and runs in this process."""
    return {"crawl": crawl.id, "spider": crawl.spider, "state": crawl.state.value, "pid": pid}


def plan(
    context: Context, asked: CrawlOptions, probe: Probe = None, output: Output = Output()
) -> None:
    """Show what `sdist crawl` would do, without doing it.

    Which requests go to the nodes, which shard starts where, which nodes take
    part and would get the code, how large a batch may become, and what differs
    from `scrapy crawl`. Fetches no page of the site, unless --probe is given.

    Example: sdist plan books --callback parse_book
    """
    words = [*(asked.add_to or ()), *(asked.overwrite or ())]
    to_stdout = any(map(is_stdout, words))
    asked = replace(
        asked,
        add_to=_without_stdout(asked.add_to),
        overwrite=_without_stdout(asked.overwrite),
    )
    answer = _ask_planner(context, asked, probe)
    if to_stdout:
        paths = [output["path"] for output in asked.outputs(Path.cwd())]
        answer["output"] = [*paths, "standard output"]
    if not output.document(answer):
        show(answer)


def _without_stdout(words: Sequence[str] | None) -> list[str]:
    return [word for word in words or () if not is_stdout(word)]


def _ask_planner(context: Context, asked: CrawlOptions, probe: int | None) -> dict[str, Any]:
    """Let a process of its own make the plan; CrawlFailed says why there is none."""
    order = asked.order(Path.cwd())
    kept = kept_code(context.root, order.version)
    request = {**asdict(order), "probe": probe}
    if kept:
        request |= kept._asdict()
    done = subprocess.run(
        command_of_module("scrapyd_dist.middlewares.producer.process", "--plan"),
        cwd=context.root,
        input=json.dumps(request, default=str),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    try:
        answer = json.loads(done.stdout)  # {"plan": …} or {"error": …, "exit_code": …}
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        end = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        error = f"The planning process ended with code {done.returncode}, without a plan: {end}"
        answer = {"error": error, "exit_code": 1}
    if "plan" not in answer:
        # --debug shows what its process wrote, such as the traceback of the project's code.
        raise CrawlFailed(answer["error"], answer["exit_code"]) from RuntimeError(done.stderr)
    plan: dict[str, Any] = answer["plan"]
    return plan


def resume(
    context: Context,
    goals: GoalOptions,
    watched: WatchOptions,
    crawl: SomeCrawl = None,
    new_code: NewCode = False,
    detach: Detach = False,
) -> int:
    """Go on with a crawl that was stopped or paused, or that died.

    Batches that are done stay done. Jobs that still run on the nodes are found
    again, not started twice. It goes on with the code that it began with, of which
    an egg is kept in its folder, whatever the working tree has now. A goal that was
    reached holds no more, unless it is given again: its counts include all that the
    crawl has done so far. Where a crawl is finished, nothing is left to resume: it
    is summed up again, with its own exit code.

    Example: sdist resume easy-20260102T030405Z
    """
    store = context.store
    row = producer_process.crawl_or_latest(store, crawl)
    crawl = row.id
    ended_early = bool(row.summary.get("goal") or row.summary.get("closed_by"))
    row = _with_goals(store, row, goals.goals())
    if not new_code and row.wanted == "pause" and runs(row):
        return _end_pause(context, crawl, watched, detach=detach)
    if row.state is CrawlState.FINISHED and not ended_early:
        hint = _hint_at_retry(row) if new_code else ""
        say(f"The crawl {crawl} is finished; there is nothing to resume.{hint}")
        return watcher.sum_up(context.root, store, row, watched)
    again, process = producer_process.begin_again(
        context.root, store, crawl, finished=ended_early, new_code=new_code
    )
    return follow(context, again, process, watched, detach=detach)


def _hint_at_retry(row: Crawl) -> str:
    """Return how today's code gets to what failed in a finished crawl; empty if nothing has."""
    command = next_command(summary_of(row))
    if not command.startswith("retry"):
        return ""
    command = command.removesuffix(f" {NEW_CODE}")
    return f" To try again what failed, with the code that is here now: sdist {command} {NEW_CODE}"


def _with_goals(store: Store, row: Crawl, goals: Mapping[str, Any]) -> Crawl:
    """Give a crawl that does not run new goals in its options, in place of a reached one.

    ConfigError for goals of a crawl that rests, since its process keeps those it began with.
    """
    if runs(row):
        if row.wanted == "pause" and goals:
            raise _resting(row)
        return row
    reached = str(row.summary.get("goal") or "")
    if not (reached or goals):
        return row
    row = store.own_crawl(row.id)
    options = producer_process.options_for_rewrite(row) if reached else row.options
    if reached in OURS:
        goals = {OURS[reached]: 0, **goals}
    store.update_crawl(row.id, options=_changed_options(options, goals))
    return row


def _changed_options(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a crawl with these settings, which `-s` does not override any more."""
    settings = dict(options.get("settings") or {})
    spider_settings = dict(options.get("spider_settings") or {})
    for name, value in changes.items():
        settings[name] = value
        spider_settings.pop(name, None)
    return {**options, "settings": settings, "spider_settings": spider_settings}


def _resting(row: Crawl) -> ConfigError:
    return ConfigError(
        f"The crawl {row.id} rests, and its process keeps the goals it began with. Go on "
        f"without new ones: sdist resume {row.id}. Or end it first, to give it others: "
        f"sdist stop {row.id}"
    )


def _end_pause(context: Context, crawl: str, watched: WatchOptions, *, detach: bool) -> int:
    """Let a crawl go on that rests: its process is there, and one that waits is not needed."""
    producer_standby.end()
    context.store.want(crawl, "")
    if not detach:
        return watcher.watch(context.root, context.store, crawl, watched)
    if not watched.quiet:
        say(f"The crawl {crawl} goes on. See it with: sdist watch {crawl}")
    return 0


def list_(
    context: Context,
    label: OnlyLabels = None,
    spider: Annotated[
        str | None,
        option(
            "Only crawls of this spider, or of spiders that fit, as in 'shop*'.",
            metavar="NAME",
            autocompletion=spiders,
        ),
    ] = None,
    limit: Annotated[
        int | None, option("Only so many crawls, the newest.", "--limit", "-n", metavar="N", min=1)
    ] = None,
    output: Listing = Listing(),
) -> None:
    """List the crawls of this project, the newest first.

    Example: sdist crawls --label night=1
    Example: sdist crawls --spider easy -n 20
    """
    rows = list_crawls(context.store_if_any, label)
    if spider is not None:
        rows = [row for row in rows if fnmatchcase(row.spider, spider)]
    rows = rows[:limit]
    documents = []
    for row in rows:
        document = describe_crawl(row)
        documents.append(document)
    if output.rows({"crawls": documents}, "crawls", "crawl"):
        return
    if not rows:
        none = "There are no crawls yet."
        if spider is not None:
            none = "There is no such crawl."
        elif label:
            none = "There is no crawl with that label."
        say(f"{none} `sdist crawl SPIDER` starts one.")
        return
    headings, cells = crawls_table(rows, documents, time.time())
    # The name of a crawl has that of its spider, and its state says what its exit code does.
    table(headings, cells, left_out=("spider", "exit"))


def crawls_table(
    rows: Sequence[Crawl], documents: Sequence[Mapping[str, Any]], now: float
) -> tuple[tuple[str, ...], list[list[object]]]:
    """Return headings and cells of crawls.

    documents: their summaries, with their states now; now: in seconds since the epoch.
    """
    headings = ("crawl", "spider", "state", "age", "batches", "items", "exit", "next")
    cells = []
    for row, document in zip(rows, documents, strict=True):
        cells.append(_cells(row, document, now))
    return headings, cells


def _cells(row: Crawl, document: Mapping[str, Any], now: float) -> list[object]:
    done = count_in(row.summary, "batches", "done")
    total = count_in(row.summary, "batches", "total")
    command = next_command(document)
    return [
        row.id,
        row.spider,
        state_of(document),
        describe_age(now - row.created),
        f"{done:,}/{total:,}",
        count_in(row.summary, "items"),
        row.exit_code,
        f"go on with: sdist {command}" if command else None,
    ]
