"""`sdist items pull`: fetches the items of jobs as files, and nothing twice."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from scrapyd_dist.errors import PARTIAL, ConfigError, NodeError, NothingMatched
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.items.download import DownloadedFile, DownloadState
from scrapyd_dist.items.stored_crawl import FEED_URL, StoredCrawl
from scrapyd_dist.jobs.item_puller import ItemPuller, PullRequest
from scrapyd_dist.jobs.job_list import TIMEOUT, JobFilter
from scrapyd_dist.node_answers import answers_exit_code
from scrapyd_dist.plurals import counted
from scrapyd_dist.project_settings import code_of_setting, with_settings
from scrapyd_dist.transports import sweep

from ..context import Context
from ..options import Nodes, Timeout, argument, crawls, option
from ..output import Output, complain_each, say, table, waiting

#: seconds between two lines about how far it is
TELL = 10.0


def stored(context: Context, names: Sequence[str]) -> dict[str, StoredCrawl]:
    """Return those of the names that are crawls of the project, in the order of the names."""
    store = context.store_if_any
    if store is None:
        return {}
    crawls = {}
    for crawl in store.crawls():
        crawls[crawl.id] = crawl
    found = {}
    for name in names:
        if name in crawls:
            found[name] = StoredCrawl(
                crawl=crawls[name],
                attempts=tuple(store.attempts(name)),
                folder=crawl_folder(context.root, name),
                read_feed_url=partial(_read_feed_url, context.root),
            )
    return found


def _read_feed_url(root: Path) -> str:
    """Return the feed URL of the project's settings, which are loaded; empty if there is none.

    It may have a password, and must not be shown.
    """
    lines, why = with_settings(root, code_of_setting(FEED_URL))
    if why:
        raise ConfigError(f"The project's settings cannot be loaded: {why}.")
    if not lines or lines[-1] == "None":
        return ""
    return lines[-1]


def pull(
    context: Context,
    name: Annotated[list[str], argument("CRAWL|JOB", "Crawls, and ids of jobs.", crawls)],
    folder: Annotated[Path, option("Where the files go.", "--dir", "-d", metavar="FOLDER")] = Path(
        "items"
    ),
    node: Nodes = None,
    timeout: Timeout = TIMEOUT,
    output: Output = Output(),
) -> int:
    """Fetch the items of crawls and jobs, a file for each job, whether it runs or is over.

    Of a crawl these are the parts that count, those that grow now, and the
    producer's own. Of any other job it is what Scrapyd keeps below its items_dir.
    What was broken off goes on at the next pull; a part is checked by length and
    hash. The files of jobs that still run end in .part.

    Example: sdist items pull easy-20260102T030405Z -d backup
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, and -d names a folder.")
    crawls = stored(context, name)
    jobs = [job for job in name if job not in crawls]
    nodes = context.nodes(node) if jobs or node else context.all_nodes
    wanted = JobFilter(nodes=nodes, narrowed=bool(node), timeout=timeout)
    find_folder = partial(crawl_folder, context.root)
    stored_crawls = list(crawls.values())
    puller = ItemPuller(context.job_site, folder, stored_crawls, jobs, wanted, find_folder)
    results = _bring(list(puller.find_requests()))
    complain_each(puller.listed.errors)
    if not results:
        raise NothingMatched(f"{', '.join(name)}: no items yet, and no job that writes some.")
    _show(folder, results, output=output)
    return _exit_code(results, puller.listed.errors)


def _bring(wanted: Sequence[PullRequest]) -> list[tuple[PullRequest, DownloadedFile]]:
    """Fetch everything, several files at once; the results are in the order of the requests."""
    done: dict[int, DownloadedFile] = {}
    fetched = 0
    with waiting(TELL, first=TELL) as show:
        for answer in sweep(range(len(wanted)), lambda index: wanted[index].bring(), threads=16):
            file = answer.value
            if file is None:
                file = DownloadedFile(
                    state=DownloadState.LOST, reason=str(answer.error), error=answer.error
                )
            done[answer.asked] = file
            fetched += file.fetched
            show(f"{len(done)} of {len(wanted)} files, {_size(fetched)} fetched")
    return [(request, done[index]) for index, request in enumerate(wanted)]


def _size(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"


def _show(
    folder: Path, results: Sequence[tuple[PullRequest, DownloadedFile]], output: Output
) -> None:
    items = 0
    files = []
    rows = []
    for request, pulled in results:
        items += pulled.items
        file = {
            "job": request.job,
            "node": request.node,
            "state": pulled.state.value,
            "file": str(pulled.file.absolute()) if pulled.file is not None else None,
            "items": pulled.items,
            "bytes": pulled.bytes,
            "fetched_bytes": pulled.fetched,
            "torn_bytes": pulled.torn,
            "reason": pulled.reason,
        }
        files.append(file)
        rows.append(_cells(request, pulled))
    document = {"folder": str(folder.absolute()), "items": items, "files": files}
    if not output.document(document):
        headings = ("job", "node", "state", "items", "size", "fetched", "reason")
        table(headings, rows, below=("job",))
    if not output.as_json:
        say(f"{counted(items, 'item')} in {folder}.")


def _cells(request: PullRequest, pulled: DownloadedFile) -> tuple[str | int, ...]:
    remarks = []
    if pulled.reason:
        remarks.append(pulled.reason)
    if pulled.torn:
        remarks.append(f"a torn last line of {_size(pulled.torn)} was dropped")
    return (
        request.job,
        request.node,
        pulled.state.value,
        pulled.items,
        _size(pulled.bytes),
        _size(pulled.fetched),
        "; ".join(remarks),
    )


def _exit_code(
    results: Sequence[tuple[PullRequest, DownloadedFile]], unlisted: Sequence[NodeError]
) -> int:
    """Return 0 when all that there is came home, 3 when some did not, 4, 5 or 6 when none did."""
    good = {DownloadState.GROWING, DownloadState.WAITING}
    states = set[DownloadState]()
    errors = []
    for _, pulled in results:
        if pulled.reason and pulled.state not in good:
            states.add(pulled.state)
            errors.append(pulled.error)
    if not errors:
        return PARTIAL if unlisted else 0
    if len(errors) < len(results):
        return PARTIAL
    if states == {DownloadState.NONE}:
        return NothingMatched.exit_code
    return answers_exit_code(len(errors), errors) or PARTIAL
