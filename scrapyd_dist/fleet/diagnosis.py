"""What `sdist doctor` has found out about one node, before it is judged."""

from dataclasses import dataclass, field
from datetime import datetime

from scrapyd_dist.fleet.kept_logs import KeptLogs
from scrapyd_dist.fleet.node_status import NodeStatus


@dataclass(frozen=True, kw_only=True)
class NodeDiagnosis(NodeStatus):
    """A node with all that `sdist doctor` has found out about it. None means unknown."""

    #: only if the node did not answer like Scrapyd: whether its port speaks TLS or plain HTTP
    speaks_tls: bool | None = None
    speaks_http: bool | None = None
    found_at: str = ""  #: another base address at which Scrapyd answers
    certificate_ends: datetime | None = None  #: UTC
    knows_status: bool | None = None  #: whether it has status.json
    old_scrapyd: bool = False  #: whether its Scrapyd is too old for workers
    #: the version of a Scrapy that is too old for workers, by the log of a job; empty if it is not
    old_scrapy: str = ""
    logs: bool | None = None  #: whether it serves a log folder
    ranges: bool | None = None  #: whether it supports Range requests
    start_delay: float = 0.0  #: the longest time from sent to started that was seen there, seconds
    items: bool | None = None  #: whether it has an items_dir
    kept_logs: KeptLogs = field(default_factory=KeptLogs)
    project: str | None = None  #: the examined project
    eggs: str = ""  #: its error on reading its default version; empty if it can
