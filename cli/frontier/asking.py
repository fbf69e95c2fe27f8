"""What `sdist consume` can be asked for. Rule: an option that `sdist crawl` has, too, is called the same there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from scrapyd_dist.errors import ConfigError

from ..candidates import frontiers, nodes, spiders
from ..crawls.asking import output_of

if TYPE_CHECKING:
    from scrapyd_dist.managing.staffing import Staffing

_WORKERS, _SPIDER, _ITEMS, _NODES = "Workers", "The spider", "Items", "Nodes"


def _option(panel: str, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What `sdist consume` can be asked for; a field is a parameter of the command."""

    spider: Annotated[
        str,
        typer.Argument(
            help="The spider's name, as `scrapy list` shows it.",
            metavar="SPIDER",
            autocompletion=spiders,
            show_default=False,
        ),
    ]
    frontier: Annotated[
        str,
        typer.Argument(
            metavar="FRONTIER", autocompletion=frontiers, help="The frontier's name, as `sdist frontier list` shows it."
        ),
    ]
    slots: Annotated[
        Optional[str], _option(_WORKERS, "Only the slots whose names begin like this.", metavar="PREFIX")
    ] = None
    max_running: Annotated[int, _option(_WORKERS, "Workers at one time, over all nodes.", metavar="N", min=0)] = 8
    per_slot: Annotated[int, _option(_WORKERS, "Workers on one slot; 0 binds none to a slot.", metavar="N", min=0)] = 1
    fair: Annotated[
        Optional[str],
        _option(_WORKERS, "Take from the slots in turn: spread, or by-domain (a slot stays with one worker). Binds no "
                "worker to a slot.", metavar="KIND"),
    ] = None  # fmt: skip
    loop: Annotated[
        Optional[float],
        _option(_WORKERS, "Start workers every so often only; 0: once, and leave. Without it, whenever there is work.",
                metavar="SECONDS", min=0),
    ] = None  # fmt: skip
    max_time: Annotated[
        Optional[str], _option(_WORKERS, "Start no more after this time (90, 30m, 2h), and leave.", metavar="TIME")
    ] = None
    max_batches: Annotated[
        int, _option(_WORKERS, "A worker ends after so many batches; 0: no limit.", metavar="N", min=0)
    ] = 0
    max_requests: Annotated[
        int, _option(_WORKERS, "A worker takes no batch after so many requests; 0: no limit.", metavar="N", min=0)
    ] = 0
    idle: Annotated[
        Optional[str],
        _option(_WORKERS, "At a standing frontier, a worker ends when it had no work for so long.", metavar="TIME"),
    ] = None
    label: Annotated[
        Optional[list[str]],
        _option(_WORKERS, "A word that each job is given as DISTRIBUTED_LABELS. Repeatable.", metavar="TEXT"),
    ] = None
    arg: Annotated[
        Optional[list[str]], _option(_SPIDER, "Argument of the spider. Repeatable.", "-a", metavar="NAME=VALUE")
    ] = None
    setting: Annotated[
        Optional[list[str]],
        _option(_SPIDER, "Setting of the spider in every job. Repeatable.", "-s", "--set", metavar="NAME=VALUE"),
    ] = None
    add_to: Annotated[
        Optional[list[str]],
        _option(_ITEMS, "At the end, write all items of the frontier to this new file: .jl, .jsonl, .json, .csv.", "-o",
                "--output", metavar="FILE"),
    ] = None  # fmt: skip
    overwrite: Annotated[
        Optional[list[str]],
        _option(_ITEMS, "The same, and replace a file that is there.", "-O", "--overwrite-output", metavar="FILE"),
    ] = None
    node: Annotated[
        Optional[list[str]],
        _option(_NODES, "Use this node only: a target of scrapy.cfg, or HOST:PORT. Repeatable.",
                metavar="NAME|ADDRESS", autocompletion=nodes),
    ] = None  # fmt: skip
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on standard output, and nothing else there.")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False

    def staffing(self) -> Staffing:
        """How many workers there may be, and where."""
        from scrapyd_dist.managing.staffing import Staffing

        from ..crawls.crawl import seconds

        return Staffing(
            most=self.max_running,
            per_slot=self.per_slot,
            prefix=self.slots or "",
            every=self.loop,
            max_time=seconds("--max-time", self.max_time) or 0.0,
        )

    def check_rows(self) -> None:
        """Refuse what is for workers, at a frontier where each row is a job.

        Raises:
            ConfigError: there is such an option.
        """
        asked = {
            "--slots": self.slots, "--fair": self.fair, "--loop": self.loop is not None,
            "--max-batches": self.max_batches, "--max-requests": self.max_requests, "--idle": self.idle,
        }  # fmt: skip
        there = [name for name, it in asked.items() if it]
        if there:
            raise ConfigError(
                f"The rows of {self.frontier} are arguments, and each is a job of its own: {', '.join(there)} is for"
                " workers that lease requests. Leave it out."
            )

    def settings(self) -> dict[str, Any]:
        """What else is asked for, as settings of ours."""
        from ..crawls.crawl import seconds

        asked = {
            "DISTRIBUTED_MAX_BATCHES": self.max_batches,
            "DISTRIBUTED_MAX_REQUESTS": self.max_requests,
            "DISTRIBUTED_FAIR": self.fair,
            "DISTRIBUTED_IDLE": seconds("--idle", self.idle),
            "DISTRIBUTED_NODES": self.node,
        }
        return {name: value for name, value in asked.items() if value}

    def labels(self) -> list[str]:
        """The words for each job.

        Raises:
            ConfigError: one has a comma, which would make two of it.
        """
        for text in self.label or ():
            if "," in text:
                raise ConfigError(
                    f"--label {text!r} has a comma, which parts two labels. Give each by an option of its own."
                )
        return self.label or []

    def outputs(self) -> list[dict[str, Any]]:
        """The files that the items go to, as DISTRIBUTED_OUTPUTS has them.

        Raises:
            ConfigError: a file is there, or nothing will be home to write.
        """
        here = Path.cwd()
        outputs = [output_of(here, text, overwrite=False) for text in self.add_to or ()]
        outputs += [output_of(here, text, overwrite=True) for text in self.overwrite or ()]
        if outputs and self.loop == 0:
            raise ConfigError(
                "--loop 0 leaves before any items are home, so there is nothing to write to -o. Leave one of the two"
                f" out; `sdist items merge {self.frontier} -o FILE` makes the file of what has come home later."
            )
        return outputs
