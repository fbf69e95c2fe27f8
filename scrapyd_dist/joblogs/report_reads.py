"""Reads the reports that workers leave in the log folder of their nodes."""

from scrapyd_dist.joblogs.verdict import Place
from scrapyd_dist.joblogs.worker_report import BadReport, WorkerReport, read_report, report_path
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import Sender


def fetch_report(
    sender: Sender, place: Place, home: str, *, most: int, timeout: float
) -> WorkerReport | None:
    """Return the report that a job's worker left in its crawl's log folder, if it can be read.

    home: the crawl's folder on its node; most: bytes of the report; timeout: seconds.
    """
    call = api.fetch(report_path(home, place.job), start=0, limit=most)
    chunk = sender.send(place.node, call, timeout=timeout)
    if chunk is None:
        return None
    try:
        return read_report(chunk.body)
    except BadReport:
        return None
