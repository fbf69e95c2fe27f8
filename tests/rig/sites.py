"""The demo site as a process of its own, and the judgement whether a list of items is exactly the site's."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrapyd_dist.examples.pages import Site

from .http import fetch
from .processes import private_environment


class SiteProcess:
    """A running demo site, in an empty folder; `options` are more of its command line, like "--latency", "0.2"."""

    def __init__(self, folder: Path, site: Site, *options: str) -> None:
        self.site = site
        folder.mkdir(parents=True)
        described = {"items": site.items, "per-page": site.per_page, "url-style": site.url_style,
                     "offsite": site.offsite, "duplicates": site.duplicates}  # fmt: skip
        arguments = [f"--{name}={value}" for name, value in described.items()]
        self._errors = (folder / "site.err").open("wb")
        program = [
            sys.executable,
            "-m",
            "scrapyd_dist.examples.site",
            "--until-eof",
            *arguments,
            *options,
        ]
        env, pipe = private_environment(folder), subprocess.PIPE
        self._process = subprocess.Popen(
            program, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=self._errors
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the site did not start:\n{(folder / 'site.err').read_text()}"
        #: without a slash at the end
        self.url: str = json.loads(line)["url"]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def template(self) -> str:
        """The `--index` template of its index pages."""
        return self.url + "/properties/index_%05d.html"

    @property
    def start_url(self) -> str:
        """Its first index page."""
        return self.index(0)

    def index(self, page: int) -> str:
        return f"{self.url}{self.site.index_path(page)}"

    def detail(self, number: int) -> str:
        return f"{self.url}{self.site.detail_path(number)}"

    def hits(self) -> dict[str, int]:
        """Path with query -> how often it was asked for."""
        counts: dict[str, int] = json.loads(fetch(self.url + "/__hits__").body)
        return counts

    def item_hits(self) -> Counter[int]:
        """Item number -> how often its page was asked for."""
        found: Counter[int] = Counter()
        for target, count in self.hits().items():
            number = self.site.numbers.get(target.partition("?")[0])
            if number is not None:
                found[number] += count
        return found

    def log(self) -> list[dict[str, Any]]:
        """All hits in their order; `time` is time.monotonic() of this machine."""
        return [json.loads(line) for line in fetch(self.url + "/__log__").body.splitlines()]

    def reset(self) -> None:
        """Forget all hits."""
        fetch(self.url + "/__reset__", method="POST")

    def behave(self, behaviours: Mapping[str, str]) -> None:
        """From now on these paths behave so (see scrapyd_dist.examples.behaviour), and all others well."""
        reply = fetch(self.url + "/__behave__", method="POST", json=dict(behaviours))
        assert reply.status == 200, reply.body

    def differences(
        self, items: Iterable[Mapping[str, Any]], *, without: Iterable[int] = ()
    ) -> dict[str, list[str]]:
        """How items of the demo project differ from the site's `without` these numbers; {} when each is there once."""
        expected = {str(number) for number in range(self.site.items)} - {
            str(number) for number in without
        }
        rows = list(items)
        counts = Counter(str(row.get("number")) for row in rows)
        found = {
            "missing": sorted(expected - set(counts)),
            "unexpected": sorted(set(counts) - expected),
            "repeated": sorted(number for number, count in counts.items() if count > 1),
            "wrong": sorted(number for number in map(self._wrong, rows) if number),
        }
        return {name: numbers for name, numbers in found.items() if numbers}

    def _wrong(self, row: Mapping[str, Any]) -> str:
        number = str(row.get("number"))
        if not number.isdigit() or int(number) >= self.site.items:
            return ""
        expected = self.site.item(int(number))
        return "" if {name: row.get(name) for name in expected} == expected else number

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this it answers nothing, and refuses nothing: a crawl stands still without a look at a clock."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=20)
        self._errors.close()
