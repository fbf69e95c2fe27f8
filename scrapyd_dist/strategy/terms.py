"""Defines what a frontier's row says of its strategy: class, arguments and terms of the crawl."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.intake import STRATEGY


@dataclass(frozen=True, kw_only=True)
class StrategyTerms:
    """A strategy as each of its processes makes it.

    It is signed with the row, because it names code to run.
    """

    path: str  #: MODULE:CLASS
    spider: str
    args: Mapping[str, str] = field(default_factory=dict)  #: of the class
    standing: bool = False  #: it does not end when nothing is left
    max_depth: int = 0  #: links from a seed; 0: any
    ahead: int = 0  #: requests of a slot that wait in batches; 0: as many as usual

    def to_option(self) -> dict[str, Any]:
        """Return it as the row has it."""
        return {**asdict(self), "args": dict(self.args)}

    @classmethod
    def from_row(cls, row: Crawl) -> "StrategyTerms":
        """Read them from a row that this project has signed; ConfigError if it is no strategy's."""
        option = row.options.get(STRATEGY)
        if not isinstance(option, dict):
            kind = "a frontier" if row.kind == "frontier" else "a crawl"
            raise ConfigError(
                f"{row.id} is no crawling strategy's: it is {kind}. `sdist strategy` lists the"
                " strategies."
            )
        # A row of another version may have more.
        return cls(**{name: option[name] for name in cls.__dataclass_fields__ if name in option})
