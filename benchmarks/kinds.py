"""What a way to crawl is called, and what its name says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: what `--ways` takes
FORMS = (
    "plain, bound, sdistN, sdistN-redis, pushN, settingsN, scrapy-redisN; N nodes, or processes; -none, -usual or"
    " -fast behind it: with the settings of that profile, ours and others' alike"
)
_FORM = re.compile(
    r"(?P<kind>plain|bound|scrapy-redis(?P<processes>\d+)|(?P<ours>sdist|push|settings)(?P<nodes>\d+)(?P<redis>-redis)?)"
    r"(-(?P<profile>none|usual|fast))?"
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to crawl the site."""

    kind: str  #: "plain", "bound", "sdist", "push", "settings" or "scrapy-redis"
    count: int = 0  #: nodes; with scrapy-redis, processes beside the one that walks the index
    redis: bool = False  #: the store is a Redis server
    profile: str = ""  #: what others than ours get the settings of; empty: nothing is said of it

    @classmethod
    def named(cls, name: str) -> Way:
        """The way of that name.

        Raises:
            ValueError: there is none.
        """
        form = _FORM.fullmatch(name)
        if form is None:
            raise ValueError(f"no way is called {name!r}; there are {FORMS}")
        kind = form["ours"] or ("scrapy-redis" if form["processes"] else form["kind"])
        count = int(form["nodes"] or form["processes"] or 0)
        return cls(kind=kind, count=count, redis=bool(form["redis"]), profile=form["profile"] or "")

    @property
    def ours(self) -> bool:
        """Whether nodes do it."""
        return self.kind in {"sdist", "push", "settings"}

    @property
    def needs_redis(self) -> bool:
        return self.redis or self.kind == "scrapy-redis"

    @property
    def says(self) -> str:
        """The name as a table has it."""
        if not self.ours:
            plain = {"plain": "plain Scrapy, one process", "bound": "the bound, by hand"}
            settings = f", settings of `{self.profile}`" if self.profile else ""
            return (
                plain.get(self.kind) or f"scrapy-redis, {self.count} processes and the index"
            ) + settings
        words = [
            "scrapy crawl" if self.kind == "settings" else "sdist crawl",
            *(["--push"] if self.kind == "push" else []),
            *([f"-s DISTRIBUTED_PROFILE={self.profile}"] if self.profile else []),
        ]
        return f"`{' '.join(words)}` on {self.count} nodes{', Redis' if self.redis else ''}"
