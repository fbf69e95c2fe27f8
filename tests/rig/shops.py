"""A small project whose code is on real nodes, and `sdist` in it: for rows that share both."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from .commands import READING, SDIST, Command, Result, path_of, run_here
from .nodes import ScrapydNode
from .projects import Project
from .waiting import wait_for

#: spiders without a site: a good one, one that fails, and one that goes on
SPIDERS = """\
import scrapy


class Good(scrapy.Spider):
    name = "good"
    pages = "3"

    async def start(self):
        self.logger.info("category is %s", getattr(self, "category", "none"))
        for number in range(int(self.pages)):
            yield scrapy.Request(f"data:,{number}", dont_filter=True)

    def parse(self, response):
        yield {"text": response.text}


class Broken(Good):
    name = "broken"

    def parse(self, response):
        raise ZeroDivisionError("a needle in the log")


class Slow(Good):
    name = "slow"
    pages = "6000"
    custom_settings = {"DOWNLOAD_DELAY": 0.3, "CONCURRENT_REQUESTS": 1}
"""
#: commands that a row runs in this process
_HERE = {*READING, "nodes api", "nodes list", "nodes add", "nodes remove", "jobs schedule"}


class Shop:
    """The project `shop` of one spider module, deployed on these nodes; `close` ends its commands alone."""

    def __init__(
        self, folder: Path, nodes: list[ScrapydNode], spiders: str = SPIDERS, **settings: Any
    ) -> None:
        self.nodes = nodes
        settings = {
            "TELNETCONSOLE_ENABLED": False,
            **settings,
        }  # jobs that start in one moment may choose one port
        self.project = Project.small(folder / "shop", "shop", {"all": spiders}, settings)
        self.project.targets(nodes)
        self._stack = ExitStack()
        self.run("deploy", "--all", "--json", code=0)

    def start(self, *arguments: object, program: tuple[str, ...] = SDIST) -> Command:
        """A command in the background; ended with the shop."""
        line, made = [*program, *map(str, arguments)], self.project
        return self._stack.enter_context(
            closing(Command(line, cwd=made.path, folder=made.output, home=made.home))
        )

    def run(self, *arguments: object, code: int | None = None) -> Result:
        """`sdist` to its end, with this exit code; in this process where it only asks."""
        words = list(map(str, arguments))
        if path_of(words) in _HERE:
            return run_here(words, cwd=self.project.path, home=self.project.home).expect(code)
        return self.start(*words).wait(code=code)

    def scheduled(self, *arguments: object) -> list[dict[str, Any]]:
        """The rows of `sdist jobs schedule …`."""
        rows: list[dict[str, Any]] = self.run(
            "jobs", "schedule", *arguments, "--json", code=0
        ).json()["jobs"]
        return rows

    def job(self, job: str) -> dict[str, Any]:
        """Its row in `sdist jobs`."""
        rows: list[dict[str, Any]] = self.run("jobs", "--json").json()["jobs"]
        return next(row for row in rows if row["job"] == job)

    def node_states(self) -> dict[str, str]:
        """Node -> its state in `sdist nodes`."""
        return {row["name"]: row["state"] for row in self.run("nodes", "--json").json()["nodes"]}

    def wait_pid(self, job: str) -> int:
        """The process of a job, once it has begun to crawl."""

        def pid() -> int:
            for node in self.nodes:
                if "Spider opened" in node.job_log(job):
                    return next((pid for pid, name in node.job_pids().items() if name == job), 0)
            return 0

        return wait_for(pid, 60, f"the process of {job}")

    def wait_idle(self) -> None:
        for node in self.nodes:
            node.wait_idle()

    def close(self) -> None:
        self._stack.close()
