"""Fetches the items of crawls and jobs: from home, from a worker's part, or Scrapyd's folder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.config import PARTS
from scrapyd_dist.items.download import DownloadedFile, DownloadState, WantedFile, copy_home
from scrapyd_dist.items.download import pull as fetch
from scrapyd_dist.items.kept_parts import is_whole
from scrapyd_dist.items.stored_crawl import StoredCrawl
from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.joblogs.worker_report import part_path
from scrapyd_dist.nodes import PresentNodes
from scrapyd_dist.plurals import counted

from .job_judge import JobJudge
from .job_list import JobFilter, ListedJob, remembered
from .job_site import JobSite


@dataclass(frozen=True, kw_only=True)
class PullRequest:
    """One file to fetch."""

    job: str
    node: str  #: its name; `producer` for the producer's own items
    bring: Callable[[], DownloadedFile]  #: raises NodeError


class ItemPuller:
    """Finds what there is to fetch into a folder: of these crawls, and of other jobs by name.

    names: jobs for which the nodes are asked; wanted: the nodes, and how long they may be silent;
    find_folder: gives the folder with what has come home of a crawl.

    Raises:
        NothingMatched: a name is none of a job.
    """

    def __init__(
        self,
        site: JobSite,
        folder: Path,
        crawls: Sequence[StoredCrawl],
        names: Sequence[str],
        wanted: JobFilter,
        find_folder: Callable[[str], Path],
    ) -> None:
        self._sender = site.sender
        self._folder = folder
        self._find_folder = find_folder
        self._crawls = crawls
        self._timeout = wanted.timeout
        self._nodes = PresentNodes(wanted.nodes)
        self._is_narrowed = wanted.narrowed  #: to some of the nodes
        asked = wanted.nodes if names else ()
        self.listed = replace(wanted, nodes=asked).list_jobs(site).about(names)
        self._rows = self.listed.named(names, remembered(site, names, wanted.nodes))
        places: list[Place] = []
        for crawl in crawls:
            for attempt in crawl.attempts:
                place = self._place(crawl, attempt)
                if place is not None:
                    places.append(place)
        self._judge = JobJudge(site, [*places, *self._rows], timeout=wanted.timeout)

    def find_requests(self) -> Iterator[PullRequest]:
        """Generate what to fetch: accepted and open parts of crawls, and items of other jobs."""
        for crawl in self._crawls:
            if not self._is_narrowed:
                yield from self._own_files(crawl)
            yield from self._parts(crawl)
        for row in self._rows:
            yield PullRequest(job=row.job, node=row.node.name, bring=self._bring_job(row))

    def _own_files(self, crawl: StoredCrawl) -> Iterator[PullRequest]:
        for path in crawl.own:
            bring = partial(copy_home, path, self._folder / crawl.crawl.id / path.name)
            yield PullRequest(job=path.stem, node="producer", bring=bring)

    def _parts(self, crawl: StoredCrawl) -> Iterator[PullRequest]:
        out = {AttemptState.SENT, AttemptState.RUNNING}
        open_attempts = [attempt for attempt in crawl.attempts if attempt.state in out]
        for attempt in [*crawl.accepted, *open_attempts]:
            place = self._place(crawl, attempt)
            if self._is_narrowed and place is None:
                continue
            over = attempt.state is AttemptState.ACCEPTED
            bring = self._bring_attempt(crawl.crawl.id, attempt, place, over=over)
            yield PullRequest(job=attempt.job, node=attempt.node, bring=bring)

    def _place(self, stored_crawl: StoredCrawl, attempt: Attempt) -> Place | None:
        """Return the attempt as a job of a node; None where that is none of the chosen nodes."""
        node = self._nodes.find(attempt.node, attempt.url)
        if node is None:
            return None
        crawl = stored_crawl.crawl
        return Place(node=node, project=crawl.project, spider=crawl.spider, job=attempt.job)

    def _bring_attempt(
        self, crawl: str, attempt: Attempt, place: Place | None, *, over: bool
    ) -> Callable[[], DownloadedFile]:
        target = self._folder / crawl / f"{attempt.job}.jl"
        if attempt.part:
            home = self._find_folder(crawl) / PARTS / attempt.part
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
        pulled = fetch(self._sender, wanted, silence=self._timeout)
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
