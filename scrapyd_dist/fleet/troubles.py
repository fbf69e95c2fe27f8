"""What can be wrong in a fleet, and one look at a thing that is in trouble or well."""

from dataclasses import dataclass
from enum import Enum


class TroubleKind(str, Enum):
    """What can be wrong with a node, a job, a spider or a crawl."""

    NODE_DOWN = "node-down"
    NODE_WEDGED = "node-wedged"
    NODE_FULL = "node-full"
    JOB_FAILED = "job-failed"
    JOB_STALLED = "job-stalled"
    CRAWL_FAILED = "crawl-failed"
    CRAWL_STALLED = "crawl-stalled"
    FEW_ITEMS = "few-items"

    def well(self, subject: str) -> str:
        """Say that a trouble of this kind is over, as the beginning of a sentence."""
        return _WELL[self].format(subject)


_WELL = {
    TroubleKind.NODE_DOWN: "The node {} answers again, or is none of the fleet any more",
    TroubleKind.NODE_WEDGED: "The node {} starts jobs again, or has none that wait",
    TroubleKind.NODE_FULL: "No job on {} has ended for want of disk lately",
    TroubleKind.JOB_FAILED: "A later job of {} ended well",
    TroubleKind.JOB_STALLED: "The job {} makes progress again, or is over",
    TroubleKind.CRAWL_FAILED: "A later crawl of {} ended well",
    TroubleKind.CRAWL_STALLED: "The crawl {} makes progress again, or is over",
    TroubleKind.FEW_ITEMS: "A later crawl of {} has as many items as usual",
}


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """One thing that is in trouble now, or well."""

    kind: TroubleKind
    subject: str  #: name of a node, spider, crawl or job
    message: str = ""  #: what is wrong; empty: it is well
    node: str = ""  #: where a job is

    @property
    def key(self) -> str:
        """Return what tells one trouble from all others."""
        return f"{self.kind.value} {self.subject}"
