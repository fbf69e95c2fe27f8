"""Waits until several crawls are at their ends, and shows nothing before."""

from collections.abc import Iterable, Iterator, Sequence

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import PARTIAL
from scrapyd_dist.jobs.job_wait import wait_until_over
from scrapyd_dist.progress.summary_document import summary_of

from ..context import Context
from ..output import Output, complain
from .watcher import LOOK, ProducerDied, describe_bad_end, interruptible_pause, watch_row


def combine_codes(codes: Iterable[int]) -> int:
    """Return one exit code for several: 0 when all are, 3 when only some are, else the first."""
    every = list(codes)
    if not any(every):
        return 0
    if len(every) > 1 and (0 in every or PARTIAL in every):
        return PARTIAL
    return every[0]


def wait_for_crawls(context: Context, names: Sequence[str], deadline: float, output: Output) -> int:
    """Wait until these crawls are at their ends, say which ended badly, and return the exit code.

    deadline: by `time.monotonic`; StillRuns when it has come.
    """
    waited = _WaitedCrawls(context, names)
    wait_until_over(
        waited.find_left,
        interruptible_pause,
        every=LOOK,
        deadline=deadline,
        kind="crawl",
        see="sdist watch",
    )
    rows = []
    complaints = []
    for name in names:
        crawl = context.store.crawl(name)
        code = waited.codes[name]
        rows.append({**summary_of(crawl), "exit_code": code})
        if code and name not in waited.died:
            complaints.append(describe_bad_end(crawl, code))
    output.document({"crawls": rows})
    for text in complaints:
        complain(text)
    return combine_codes(waited.codes[name] for name in names)


class _WaitedCrawls:
    """The crawls that are waited for, and the exit codes of those that are at their end."""

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        self.codes: dict[str, int] = {}
        self.died = set[str]()  #: the crawls whose producers died, which has been said
        self._states: dict[str, Iterator[Crawl]] = {}
        for name in names:
            self._states[name] = watch_row(context.root, context.store, name)

    def find_left(self) -> list[str]:
        """Look at each crawl once, and return those that are not at their end."""
        left = []
        for name, states in self._states.items():
            if name in self.codes:
                continue
            try:
                crawl = next(states)
            except ProducerDied as error:
                complain(str(error))
                self.died.add(name)
                self.codes[name] = 1
                continue
            if crawl.state.ended:
                self.codes[name] = 1
                if crawl.exit_code is not None:
                    self.codes[name] = crawl.exit_code
            else:
                left.append(name)
        return left
