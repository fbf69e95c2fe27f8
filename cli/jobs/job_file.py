"""Reads the file of jobs that `sdist jobs schedule --from` starts: a CSV file, a job each line."""

import csv
from collections.abc import Mapping
from pathlib import Path

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.jobs.job_posts import JobOrder
from scrapyd_dist.settings import MOST, Setting, ValueKind, check_settings

from ..options import checked_labels

#: what a column begins with that is a setting; a column that is nothing else is a spider argument
SETTING = "s:"
#: what a column begins with that is a label
LABEL = "l:"
#: the columns that are part of the job itself
_KNOWN = ("spider", "node", "priority")
PRIORITY = Setting(name="priority", kind=ValueKind.NUMBER, least=-MOST, help="")


def read_jobs(path: Path, common: JobOrder) -> list[JobOrder]:
    """Return the jobs of a CSV file, in which an empty cell says nothing.

    common: what holds for all of them, where they do not say otherwise.

    Raises:
        ConfigError: the file cannot be read, or a row of it is wrong.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if "spider" not in (reader.fieldnames or ()):
                raise ConfigError(
                    f"{path} has no column `spider`. Its first line names the columns:"
                    " spider,node,…"
                )
            return [_row(f"{path}, line {reader.line_num}", row, common) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {error}.") from error


def _row(
    where: str, row: Mapping[str | None, str | list[str] | None], common: JobOrder
) -> JobOrder:
    cells = _cells(where, row)
    settings: dict[str, str] = {}
    labels: list[str] = []
    args: dict[str, str] = {}
    for name, value in cells.items():
        if name.startswith(SETTING):
            settings[name.removeprefix(SETTING)] = value
        elif name.startswith(LABEL):
            labels.append(f"{name.removeprefix(LABEL)}={value}")
        elif name not in _KNOWN:
            args[name] = value
    priority = common.priority
    if "priority" in cells:
        priority = PRIORITY.judged(cells["priority"], f"{where}: the priority")
    try:
        check_settings(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return JobOrder(
        spider=cells["spider"],
        node=cells.get("node", common.node),
        priority=priority,
        args={**common.args, **args},
        settings={**common.settings, **settings},
        labels=(*common.labels, *checked_labels(labels)),
    )


def _cells(where: str, row: Mapping[str | None, str | list[str] | None]) -> dict[str, str]:
    """Return the cells of a row that are not empty, by column; ConfigError without a spider."""
    if None in row:
        raise ConfigError(
            f"{where}: it has more cells than there are columns. A cell with a comma wants quotes."
        )
    cells: dict[str, str] = {}
    for name, value in row.items():
        if not name or not value or not isinstance(value, str):
            continue
        cells[name] = value
    if "spider" not in cells:
        raise ConfigError(f"{where}: it names no spider.")
    return cells
