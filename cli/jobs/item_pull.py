"""`sdist items pull`: fetches the items of jobs as files, and nothing twice."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from scrapyd_dist.batches import Attempt, AttemptState, Crawl
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import PARTIAL, ConfigError, NodeError, NothingMatched
from scrapyd_dist.items.delivery import FEEDS, accepted_of, feeds_of, own_parts, read_back
from scrapyd_dist.items.download import DownloadedFile, DownloadState, WantedFile, copy_home
from scrapyd_dist.items.download import pull as fetch
from scrapyd_dist.items.json_lines import Runs, left_out
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.jobs.job_judge import JobJudge
from scrapyd_dist.jobs.job_list import TIMEOUT, ListedJob, ask_jobs, mark_others, remembered
from scrapyd_dist.node_answers import exit_code
from scrapyd_dist.nodes import nodes_by_url
from scrapyd_dist.plurals import counted
from scrapyd_dist.project_settings import code_of_setting, with_settings
from scrapyd_dist.transports import sweep

from ..context import Context
from ..crawls.producer_process import crawl_folder
from ..options import Nodes, Timeout, argument, crawls, option
from ..output import Output, complain_each, say, waiting

_FEED_URL = "DISTRIBUTED_TARGET_FEED_URL"
#: seconds between two lines about how far it is
TELL = 10.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A crawl of the project's store, and where its items are on this machine."""

    crawl: Crawl
    attempts: tuple[Attempt, ...]
    root: Path  #: of its project

    @property
    def folder(self) -> Path:
        """The folder with what has come home of the crawl."""
        return crawl_folder(self.root, self.crawl.id)

    @property
    def accepted(self) -> list[Attempt]:
        """The attempts whose items count."""
        return accepted_of(self.attempts)

    @property
    def own(self) -> list[Path]:
        """The files of the producer's own items."""
        return own_parts(self.folder / PARTS)

    @property
    def left_out(self) -> dict[int, Runs]:
        """Batch -> runs of its items that count no more, since their requests were tried again."""
        return left_out(self.accepted)

    def feeds(self) -> tuple[list[tuple[Path, Runs]], list[str]]:
        """Read the accepted feeds back.

        Returns the copies, each with what of it counts no more, and a warning for each feed that
        could not be read.
        """
        accepted = self.accepted
        if not any(attempt.report.get("feeds") and not attempt.part for attempt in accepted):
            return [], []
        feed_url = self._feed_url()
        skip = self.left_out
        batches = feeds_of(accepted, feed_url)
        read, warnings = read_back(batches, feed_url, self.folder / FEEDS)
        copies = [(path, skip.get(batches[uri], [])) for uri, path in read]
        return copies, warnings

    def _feed_url(self) -> str:
        """Return the crawl's feed URL, with the password if there is one; it must not be shown."""
        settings = self.crawl.options.get("settings") or {}
        if settings.get(_FEED_URL):
            return str(settings[_FEED_URL])
        lines, why = with_settings(self.root, code_of_setting(_FEED_URL))
        if why:
            raise ConfigError(f"The project's settings cannot be loaded: {why}.")
        if not lines or lines[-1] in ("", "None"):
            raise ConfigError(
                f"The items of {self.crawl.id} are at the feed URL that the project had then, and"
                f" its settings name none now: put {_FEED_URL} back, or merge copies of the feeds;"
                f" {self.folder / 'manifest.json'} lists them."
            )
        return lines[-1]


def stored(context: Context, names: Sequence[str]) -> dict[str, Stored]:
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
            attempts = tuple(store.attempts(name))
            found[name] = Stored(crawl=crawls[name], attempts=attempts, root=context.root)
    return found


@dataclass(frozen=True, kw_only=True)
class PullRequest:
    """One file to fetch."""

    job: str
    node: str  #: its name; `producer` for the producer's own items
    bring: Callable[[], DownloadedFile]  #: raises NodeError


class ItemPuller:
    """Finds what there is to fetch into a folder: of these crawls, and of other jobs by name.

    names: jobs for which the nodes are asked; patterns: names and globs of the nodes that are
    meant, None = all; timeout: seconds that a node may be silent.

    Raises:
        NothingMatched: a name is none of a job, or a pattern fits no node.
    """

    def __init__(
        self,
        context: Context,
        folder: Path,
        crawls: Sequence[Stored],
        names: Sequence[str],
        patterns: Sequence[str] | None,
        timeout: float,
    ) -> None:
        nodes = context.nodes(patterns) if names or patterns else context.all_nodes
        self._context = context
        self._folder = folder
        self._crawls = crawls
        self._timeout = timeout
        self._nodes = nodes_by_url(nodes)
        self._is_narrowed = bool(patterns)  #: to nodes of these patterns
        asked = nodes if names else ()
        site = context.job_site
        found = mark_others(site, ask_jobs(context.sender, asked, timeout=timeout))
        self.listed = found.without_drained(site, asked).about(names)
        self._rows = self.listed.named(names, remembered(site, names, nodes))
        places: list[Place] = []
        for crawl in crawls:
            for attempt in crawl.attempts:
                place = self._place(crawl, attempt)
                if place is not None:
                    places.append(place)
        self._judge = JobJudge(site, [*places, *self._rows], timeout=timeout)

    def wishes(self) -> Iterator[PullRequest]:
        """Generate what to fetch: accepted and open parts of crawls, and items of other jobs."""
        for crawl in self._crawls:
            if not self._is_narrowed:
                yield from self._own_files(crawl)
            yield from self._parts(crawl)
        for row in self._rows:
            yield PullRequest(job=row.job, node=row.node.name, bring=self._bring_job(row))

    def _own_files(self, crawl: Stored) -> Iterator[PullRequest]:
        for path in crawl.own:
            bring = partial(copy_home, path, self._folder / crawl.crawl.id / path.name)
            yield PullRequest(job=path.stem, node="producer", bring=bring)

    def _parts(self, crawl: Stored) -> Iterator[PullRequest]:
        out = {AttemptState.SENT, AttemptState.RUNNING}
        open_attempts = [attempt for attempt in crawl.attempts if attempt.state in out]
        for attempt in [*crawl.accepted, *open_attempts]:
            if self._is_narrowed and attempt.url not in self._nodes:
                continue
            place = self._place(crawl, attempt)
            over = attempt.state is AttemptState.ACCEPTED
            bring = self._bring_attempt(crawl.crawl.id, attempt, place, over=over)
            yield PullRequest(job=attempt.job, node=attempt.node, bring=bring)

    def _place(self, stored_crawl: Stored, attempt: Attempt) -> Place | None:
        """Return the attempt as a job of a node; None where that is none of the chosen nodes."""
        node = self._nodes.get(attempt.url)
        if node is None:
            return None
        crawl = stored_crawl.crawl
        return Place(node=node, project=crawl.project, spider=crawl.spider, job=attempt.job)

    def _bring_attempt(
        self, crawl: str, attempt: Attempt, place: Place | None, *, over: bool
    ) -> Callable[[], DownloadedFile]:
        target = self._folder / crawl / f"{attempt.job}.jl"
        if attempt.part:
            home = crawl_folder(self._context.root, crawl) / PARTS / attempt.part
            if is_whole(home, attempt.report):
                return partial(copy_home, home, target)
        elif attempt.state is AttemptState.ACCEPTED:
            return partial(_elsewhere, list(map(str, attempt.report.get("feeds", ()))))
        if place is None:
            return _absent
        return partial(self._bring_ours, place, target, over=over)

    def _bring_job(self, row: ListedJob) -> Callable[[], DownloadedFile]:
        kept = self._judge.crawl_job_of(row)
        if kept is not None and kept.attempt is not None:
            return self._bring_attempt(kept.crawl.id, kept.attempt, row, over=row.over)
        # Names of jobs and nodes are foreign: none of them may lead out of the folder.
        target = self._folder / file_name(row.node.name) / f"{file_name(row.job)}.jl"
        return partial(self._bring_plain, row, target)

    def _bring_ours(self, place: Place, target: Path, *, over: bool) -> DownloadedFile:
        """Fetch the part of a job that carries our worker half."""
        pulled = self._fetch_part(place, target, over=over)
        if pulled.state in {DownloadState.NONE, DownloadState.WAITING}:
            # It may have got its final name just now.
            return self._fetch_part(place, target, over=over)
        return pulled

    def _fetch_part(self, place: Place, target: Path, *, over: bool) -> DownloadedFile:
        kept = self._judge.crawl_job_of(place)
        report = self._judge.report(place)
        if kept is None:
            return _absent()
        part = None
        if report is not None:
            part = report.part
            if report.ended and part is None:
                return _elsewhere(report.feeds)
        path = part_path(kept.home, place.job)
        if part is None:
            path = f"{path}.part"
        else:
            over = True
        wanted = WantedFile(node=place.node, path=path, target=target, part=part, over=over)
        return self._fetch(wanted, "there is nothing of it there")

    def _fetch(self, wanted: WantedFile, why: str) -> DownloadedFile:
        """Fetch a file; why: the reason where it is not there, though its job is over."""
        pulled = fetch(self._context.sender, wanted, silence=self._timeout)
        if pulled.state is not DownloadState.NONE:
            return pulled
        if not wanted.over:
            return replace(
                pulled, state=DownloadState.WAITING, reason="it has written no items yet"
            )
        return replace(pulled, reason=why)

    def _bring_plain(self, row: ListedJob, target: Path) -> DownloadedFile:
        """Fetch what Scrapyd keeps of any job; its log may count other items than the file has."""
        path = f"items/{row.project}/{row.spider}/{row.job}.jl"
        why = (
            "no items of it are there: no items_dir in the node's scrapyd.conf (set it if plain"
            " jobs have no FEEDS), or jobs_to_keep removed them"
        )
        if row.crawl is not None:
            why = "its crawl is not in this project's store, which alone knows where its part is"
        wanted = WantedFile(node=row.node, path=path, target=target, over=row.over)
        pulled = self._fetch(wanted, why)
        if pulled.state is not DownloadState.WHOLE:
            return pulled
        logged = self._judge.judge(row).verdict.items
        if logged is None or logged == pulled.items:
            return pulled
        reason = f"its log counts {counted(logged, 'item')}, and the file has {pulled.items:,}"
        return replace(pulled, reason=reason)


def file_name(text: str) -> str:
    """Return a file name for a foreign name; different names stay different."""
    quoted = quote(text, safe=" ")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def _absent() -> DownloadedFile:
    why = "its node is none of those that were chosen, or of scrapy.cfg"
    return DownloadedFile(state=DownloadState.LOST, reason=why)


def _elsewhere(feeds: Sequence[str]) -> DownloadedFile:
    reason = "its worker wrote no part"
    if feeds:
        reason = f"it wrote to {', '.join(feeds)}; `sdist items merge` reads that back"
    return DownloadedFile(state=DownloadState.NONE, reason=reason)


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
    puller = ItemPuller(context, folder, list(crawls.values()), jobs, node, timeout)
    results = _bring(list(puller.wishes()))
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
    output.table(document, ("job", "node", "state", "items", "size", "fetched", ""), rows)
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
    return exit_code(len(errors), errors) or PARTIAL
