"""What a way to crawl is called, and what its name says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: what `--ways` takes
FORMS = "plain, bound, sdistN, pullN, pullN-redis, scrapy-redisN; N nodes, or processes; -fast: with the profile"
_FORM = re.compile(
    r"plain|bound|scrapy-redis(?P<processes>\d+)|(?P<ours>sdist|pull)(?P<nodes>\d+)(?P<redis>-redis)?(?P<fast>-fast)?"
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to crawl the site."""

    kind: str  #: "plain", "bound", "sdist", "pull" or "scrapy-redis"
    count: int = 0  #: nodes; with scrapy-redis, processes beside the one that walks the index
    redis: bool = False  #: the store is a Redis server
    fast: bool = False  #: with the profile

    @classmethod
    def named(cls, name: str) -> Way:
        """The way of that name.

        Raises:
            ValueError: there is none.
        """
        form = _FORM.fullmatch(name)
        if form is None:
            raise ValueError(f"no way is called {name!r}; there are {FORMS}")
        kind = form["ours"] or ("scrapy-redis" if form["processes"] else name)
        count = int(form["nodes"] or form["processes"] or 0)
        return cls(kind=kind, count=count, redis=bool(form["redis"]), fast=bool(form["fast"]))

    @property
    def ours(self) -> bool:
        """Whether `sdist crawl` does it."""
        return self.kind in {"sdist", "pull"}

    @property
    def needs_redis(self) -> bool:
        return self.redis or self.kind == "scrapy-redis"

    @property
    def says(self) -> str:
        """The name as a table has it."""
        if not self.ours:
            plain = {"plain": "plain Scrapy, one process", "bound": "the bound, by hand"}
            return plain.get(self.kind) or f"scrapy-redis, {self.count} processes and the index"
        words = [
            "sdist crawl",
            *(["--pull"] if self.kind == "pull" else []),
            *(["--profile fast"] if self.fast else []),
        ]
        return f"`{' '.join(words)}` on {self.count} nodes{', Redis' if self.redis else ''}"
