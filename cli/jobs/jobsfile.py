"""The CSV file of jobs that `sdist schedule --from` takes. Rule: a row that makes no sense is named by its line."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: what a column begins with that is a setting; one that is neither this nor known is a spider argument
SETTING = "s:"
_KNOWN = ("spider", "node", "priority")


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """One row. An empty cell says nothing."""

    spider: str
    node: str | None = None
    priority: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_jobs(path: Path) -> list[JobRow]:
    """The rows of the file.

    Raises:
        ConfigError: it cannot be read, or a row makes no sense.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if "spider" not in (reader.fieldnames or ()):
                raise ConfigError(f"{path} has no column `spider`. Its first line names the columns: spider,node,…")
            return [_row(path, reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {error}.") from error


def _row(path: Path, line: int, row: Mapping[str | None, str | list[str] | None]) -> JobRow:
    where = f"{path}, line {line}"
    if None in row:
        raise ConfigError(f"{where}: it has more cells than there are columns. A cell with a comma wants quotes.")
    cells = {name: value for name, value in row.items() if name and isinstance(value, str) and value}
    if not cells.get("spider"):
        raise ConfigError(f"{where}: it names no spider.")
    return JobRow(
        spider=cells["spider"],
        node=cells.get("node"),
        priority=_priority(where, cells.get("priority")),
        args={name: value for name, value in cells.items() if name not in _KNOWN and not name.startswith(SETTING)},
        settings={name[len(SETTING) :]: value for name, value in cells.items() if name.startswith(SETTING)},
    )


def _priority(where: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ConfigError(f"{where}: the priority {text!r} is no number.") from None
