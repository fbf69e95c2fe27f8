"""Which version of the code a job that was started here runs, by its id."""

from collections.abc import Callable, Iterable

from scrapyd_dist.batches import Crawl, WorkerEntry, home_of
from scrapyd_dist.job_record import JobRecord
from scrapyd_dist.scrapyd.jobs import crawl_in, is_others


def versions_by_job(
    crawls: Iterable[Crawl],
    workers: Iterable[WorkerEntry] = (),
    plain_jobs: Iterable[JobRecord] = (),
) -> Callable[[str], str | None]:
    """Return what gives the version of a job by its id.

    It is one of these plain jobs, or an attempt, a row, or a worker of these crawls; for every
    other job it gives None.
    """
    of_plain_jobs = {record.id: record.version for record in plain_jobs}
    versions: dict[str, str | None] = {}
    homes: dict[str, str] = {}
    for crawl in crawls:
        homes[crawl.id] = home_of(crawl.id, crawl.created)
        versions[crawl.id] = crawl.version
        if crawl.options.get("earlier_versions"):
            # The crawl went on with other code, and a job may run either.
            versions[crawl.id] = None
    of_workers: dict[str, str] = {}
    for worker in workers:
        if worker.version:
            of_workers[worker.job] = worker.version

    def version_of(job: str) -> str | None:
        if of_plain_jobs.get(job):
            return of_plain_jobs[job]
        crawl_name = crawl_in(job)
        if crawl_name is None or is_others(job, homes):
            return None
        return of_workers.get(job) or versions.get(crawl_name)

    return version_of
