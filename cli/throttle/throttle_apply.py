"""`sdist throttle apply`: the limits and the blacklist of a file. Rule: all of it in one step, or nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scrapyd_dist.errors import ConfigError, NothingMatched

from ..selectors import Json
from .throttle_rules import change, named

if TYPE_CHECKING:
    from .throttle_rules import Changed

#: what stands for standard input
STDIN = "-"
#: exit code: a dry run found something to do
WOULD_CHANGE = 10


def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML, as Scrapy Cluster has it; - is standard input.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; exit code 10 if it would.")] = False,
    as_json: Json = False,
) -> None:
    """Make limits and blacklist those of a file; what it does not name loses its own.

    `domains:` has hits, window (in seconds) and, if wanted, scale for each
    domain; `blacklist:` is a list of domains. A file with one mistake is refused
    whole, and each mistake is named with its line. What somebody has paused
    stays paused.

    Example: sdist throttle apply limits.yml --dry-run
    """
    from scrapyd_dist.throttle.rules_file import read, wanted

    from ..output import put_json

    said = read(_content(file), "standard input" if file == STDIN else file)
    changed = change(lambda now: wanted(said, now), dry_run=dry_run)
    if as_json:
        put_json({"file": file, "dry_run": dry_run, **changed.document()})
    else:
        _tell(changed, file, dry_run=dry_run)
    raise typer.Exit(WOULD_CHANGE if dry_run and changed.changes else 0)


def _content(file: str) -> bytes:
    """What is in the file.

    Raises:
        NothingMatched: there is no such file.
        ConfigError: it cannot be read.
    """
    if file == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise NothingMatched(f"There is no file {file}.") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error


def _tell(changed: Changed, file: str, *, dry_run: bool) -> None:
    from ..output import say

    kinds = {
        "new": [domain for domain in changed.changes if domain not in changed.before],
        "changed": [domain for domain, rule in changed.changes.items() if rule and domain in changed.before],
        "removed": [domain for domain, rule in changed.changes.items() if rule is None],
    }
    for kind, domains in kinds.items():
        if domains:
            say(f"{kind}: {named(domains)}")
    file = "standard input" if file == "-" else file
    if not changed.changes:
        say(f"The rules are those of {file} already.")
    elif dry_run:
        say(f"Nothing was changed; without --dry-run the rules would be those of {file}.")
    else:
        say(f"The rules are those of {file} now. {changed.notice}")
