"""`sdist items pull`: fetches the items of jobs as files. What was fetched earlier is not fetched again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from scrapyd_dist.batches import Attempt, AttemptState, Crawl
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import ConfigError, NodeError, NothingMatched
from scrapyd_dist.items.delivery import FEEDS, accepted_of, feeds_of, own_parts, read_back
from scrapyd_dist.items.download import DownloadedFile, DownloadState, WantedFile, copy_home
from scrapyd_dist.items.download import pull as fetch
from scrapyd_dist.items.json_lines import Runs, left_out
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.plurals import counted
from scrapyd_dist.transports import sweep

from ..context import Context, code_of_setting, exit_code, with_settings
from ..crawls.producer_process import crawl_folder
from ..options import Nodes, Timeout, argument, crawls, option
from ..output import Output, complain_each, say, waiting
from .job_list import TIMEOUT, Listed, ask_jobs, remembered, told_apart
from .jobs_table import Judge

_FEED_URL = "DISTRIBUTED_TARGET_FEED_URL"


@dataclass(frozen=True, kw_only=True)
class Stored:
    crawl: Crawl
    attempts: tuple[Attempt, ...]
    root: Path  #: of its project

    @property
    def folder(self) -> Path:
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
        """The accepted feeds read back, each with what of it counts no more; a warning for each that could not be."""
        if not any(attempt.report.get("feeds") and not attempt.part for attempt in self.accepted):
            return [], []
        feed_url = self._feed_url()
        out, feeds = self.left_out, feeds_of(self.accepted, feed_url)
        copies, warnings = read_back(feeds, feed_url, self.folder / FEEDS)
        return [(path, out.get(feeds[uri], [])) for uri, path in copies], warnings

    def _feed_url(self) -> str:
        """The crawl's feed URL, with the password if there is one; it must not be shown."""
        found = str((self.crawl.options.get("settings") or {}).get(_FEED_URL) or "")
        if not found:
            lines, why = with_settings(self.root, code_of_setting(_FEED_URL))
            if why:
                raise ConfigError(f"The project's settings cannot be loaded: {why}.")
            found = lines[-1] if lines and lines[-1] != "None" else ""
        if not found:
            raise ConfigError(
                f"The items of {self.crawl.id} are at the feed URL that the project had then, and its settings name "
                f"none now: put {_FEED_URL} back, or merge copies of the feeds; "
                f"{self.folder / 'manifest.json'} lists them."
            )
        return found


def stored(context: Context, names: Sequence[str]) -> dict[str, Stored]:
    """Those of the names that are crawls of the project, in the order of the names."""
    store = context.store_if_any
    if store is None:
        return {}
    crawls = {crawl.id: crawl for crawl in store.crawls()}
    return {
        name: Stored(crawl=crawls[name], attempts=tuple(store.attempts(name)), root=context.root)
        for name in names
        if name in crawls
    }


@dataclass(frozen=True, kw_only=True)
class PullRequest:
    job: str
    node: str
    bring: Callable[[], DownloadedFile]  #: raises NodeError


class ItemPuller:
    """What there is to fetch into a folder: of these crawls, and of other jobs by name; asks the nodes for those.

    patterns: names and globs of the nodes that are meant, None = all; timeout: seconds that a node may be silent.
    Raises NothingMatched if a name is none of a job, or a pattern fits no node.
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
        self._context, self._folder, self._crawls, self._timeout = context, folder, crawls, timeout
        self._nodes, self._some = {node.url: node for node in nodes}, bool(patterns)
        asked = nodes if names else ()
        found = told_apart(context, ask_jobs(context.sender, asked, timeout=timeout))
        self.listed = found.heard_by(context, asked).about(names)
        self._rows = self.listed.named(names, remembered(context, names, nodes))
        places = [self._place(one, attempt) for one in crawls for attempt in one.attempts]
        self._judge = Judge(context, [*filter(None, places), *self._rows], timeout=timeout)

    def wishes(self) -> Iterator[PullRequest]:
        """Generate what to fetch: accepted and open parts of crawls, and all items of other jobs."""
        for one in self._crawls:
            for path in () if self._some else one.own:
                target = self._folder / one.crawl.id / path.name
                yield PullRequest(
                    job=path.stem, node="producer", bring=partial(copy_home, path, target)
                )
            out = [
                attempt
                for attempt in one.attempts
                if attempt.state in {AttemptState.SENT, AttemptState.RUNNING}
            ]
            for attempt in [*one.accepted, *out]:
                if not self._some or attempt.url in self._nodes:
                    place, over = self._place(one, attempt), attempt.state is AttemptState.ACCEPTED
                    bring = self._of_attempt(one.crawl.id, attempt, place, over=over)
                    yield PullRequest(job=attempt.job, node=attempt.node, bring=bring)
        for row in self._rows:
            yield PullRequest(job=row.job, node=row.node.name, bring=self._of_job(row))

    def _place(self, one: Stored, attempt: Attempt) -> Place | None:
        """The attempt as a job of a node; None where its node is none of those that were chosen."""
        node = self._nodes.get(attempt.url)
        if node is None:
            return None
        return Place(node=node, project=one.crawl.project, spider=one.crawl.spider, job=attempt.job)

    def _of_attempt(
        self, crawl: str, attempt: Attempt, place: Place | None, *, over: bool
    ) -> Callable[[], DownloadedFile]:
        target, accepted = (
            self._folder / crawl / f"{attempt.job}.jl",
            attempt.state is AttemptState.ACCEPTED,
        )
        home = (
            crawl_folder(self._context.root, crawl) / PARTS / attempt.part if attempt.part else None
        )
        if home is not None and is_whole(home, attempt.report):
            return partial(copy_home, home, target)
        if home is None and accepted:
            return partial(_elsewhere, [str(uri) for uri in attempt.report.get("feeds", ())])
        return _absent if place is None else partial(self._bring_ours, place, target, over=over)

    def _of_job(self, row: Listed) -> Callable[[], DownloadedFile]:
        kept = self._judge.of_store(row)
        if kept is not None and kept.attempt is not None:
            return self._of_attempt(kept.crawl.id, kept.attempt, row, over=row.over)
        # Names of jobs and nodes are foreign: none of them may lead out of the folder.
        return partial(
            self._bring_plain,
            row,
            self._folder / file_name(row.node.name) / f"{file_name(row.job)}.jl",
        )

    def _bring_ours(self, place: Place, target: Path, *, over: bool) -> DownloadedFile:
        """The part of a job that carries our worker half."""
        pulled = self._part_of(place, target, over=over)
        missed = pulled.state in {DownloadState.NONE, DownloadState.WAITING}
        return (
            self._part_of(place, target, over=over) if missed else pulled
        )  # it may have got its final name just now

    def _part_of(self, place: Place, target: Path, *, over: bool) -> DownloadedFile:
        kept, report = self._judge.of_store(place), self._judge.report(place)
        if kept is None:
            return _absent()
        if report is not None and report.ended and report.part is None:
            return _elsewhere(report.feeds)
        path, part = part_path(kept.home, place.job), report.part if report is not None else None
        wanted = WantedFile(
            node=place.node,
            path=path if part is not None else f"{path}.part",
            target=target,
            part=part,
            over=over or part is not None,
        )
        return self._fetched(wanted, "there is nothing of it there")

    def _fetched(self, wanted: WantedFile, why: str) -> DownloadedFile:
        """The file; why: the reason where it is not there, though its job is over."""
        pulled = fetch(self._context.sender, wanted, silence=self._timeout)
        if pulled.state is not DownloadState.NONE:
            return pulled
        if not wanted.over:
            return replace(
                pulled, state=DownloadState.WAITING, reason="it has written no items yet"
            )
        return replace(pulled, reason=why)

    def _bring_plain(self, row: Listed, target: Path) -> DownloadedFile:
        """What Scrapyd keeps of any job; its log may count other items than the file has."""
        path = f"items/{row.project}/{row.spider}/{row.job}.jl"
        why = (
            "no items of it are there: no items_dir in the node's scrapyd.conf (set it if plain jobs have no FEEDS), or"
            " jobs_to_keep removed them"
        )
        if row.crawl is not None:
            why = "its crawl is not in this project's store, which alone knows where its part is"
        pulled = self._fetched(
            WantedFile(node=row.node, path=path, target=target, over=row.over), why
        )
        if pulled.state is not DownloadState.WHOLE:
            return pulled
        logged = self._judge.judge(row).verdict.items
        if logged is None or logged == pulled.items:
            return pulled
        return replace(
            pulled,
            reason=f"its log counts {counted(logged, 'item')}, and the file has {pulled.items:,}",
        )


def file_name(text: str) -> str:
    """Return a file name for a foreign name; different names stay different."""
    quoted = quote(text, safe=" ")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


def _absent() -> DownloadedFile:
    why = "its node is none of those that were chosen, or of scrapy.cfg"
    return DownloadedFile(state=DownloadState.LOST, reason=why)


def _elsewhere(feeds: Sequence[str]) -> DownloadedFile:
    told = f"it wrote to {', '.join(feeds)}; `sdist items merge` reads that back"
    return DownloadedFile(
        state=DownloadState.NONE, reason=told if feeds else "its worker wrote no part"
    )


#: seconds between two lines about how far it is
TELL = 10.0


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
    jobs = [one for one in name if one not in crawls]
    puller = ItemPuller(context, folder, list(crawls.values()), jobs, node, timeout)
    results = _bring(list(puller.wishes()))
    complain_each(puller.listed.errors)
    if not results:
        raise NothingMatched(f"{', '.join(name)}: no items yet, and no job that writes some.")
    _show(folder, results, output=output)
    return _exit_code(results, puller.listed.errors)


def _bring(wishes: Sequence[PullRequest]) -> list[tuple[PullRequest, DownloadedFile]]:
    """Fetch everything, several files at once; in the order of the wishes."""
    done: dict[int, DownloadedFile] = {}
    with waiting(TELL, first=TELL) as show:
        for answer in sweep(range(len(wishes)), lambda at: wishes[at].bring(), threads=16):
            done[answer.asked] = answer.value or DownloadedFile(
                state=DownloadState.LOST, reason=str(answer.error), error=answer.error
            )
            show(
                f"{len(done)} of {len(wishes)} files, {_size(sum(one.fetched for one in done.values()))} fetched"
            )
    return [(wish, done[at]) for at, wish in enumerate(wishes)]


def _size(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"


def _show(
    folder: Path, results: Sequence[tuple[PullRequest, DownloadedFile]], output: Output
) -> None:
    items = sum(pulled.items for _, pulled in results)
    files, rows = [], []
    for wish, pulled in results:
        files.append(
            {
                "job": wish.job,
                "node": wish.node,
                "state": pulled.state.value,
                "file": str(pulled.file.absolute()) if pulled.file is not None else None,
                "items": pulled.items,
                "bytes": pulled.bytes,
                "fetched_bytes": pulled.fetched,
                "torn_bytes": pulled.torn,
                "reason": pulled.reason,
            }
        )
        torn = f"a torn last line of {_size(pulled.torn)} was dropped" if pulled.torn else ""
        why = "; ".join(text for text in (pulled.reason, torn) if text)
        sizes = _size(pulled.bytes), _size(pulled.fetched)
        rows.append((wish.job, wish.node, pulled.state.value, pulled.items, *sizes, why))
    document = {"folder": str(folder.absolute()), "items": items, "files": files}
    output.table(document, ("job", "node", "state", "items", "size", "fetched", ""), rows)
    if not output.as_json:
        say(f"{counted(items, 'item')} in {folder}.")


def _exit_code(
    results: Sequence[tuple[PullRequest, DownloadedFile]], unlisted: Sequence[NodeError]
) -> int:
    """0 when all that there is came home, 3 when some did not, 4, 5 or 6 when none did."""
    good = {DownloadState.GROWING, DownloadState.WAITING}
    wrong = [pulled for _, pulled in results if pulled.reason and pulled.state not in good]
    if not wrong:
        return 3 if unlisted else 0
    if len(wrong) < len(results):
        return 3
    if all(pulled.state is DownloadState.NONE for pulled in wrong):
        return NothingMatched.exit_code
    return exit_code(len(wrong), [pulled.error for pulled in wrong]) or 3
