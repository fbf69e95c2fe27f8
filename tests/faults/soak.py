"""A fleet that is left alone with crawls, a consumer and plain jobs, and with faults; what is left in the end."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from faults.trial import Trial
from rig.commands import Command
from rig.frontiers import Frontier
from rig.nodes import ScrapydNode
from rig.processes import with_home
from rig.sites import SiteProcess
from rig.waiting import wait_for
from scrapyd_dist.examples.pages import Site

from scrapyd_dist.batches import Crawl

#: seconds between two looks at the memory
SAMPLE = 2.0
#: MB, and share, by which a process that is flat may be larger in the last quarter than in the second
SLACK, GROWTH = 8.0, 0.10
#: pages that a crawl has, and that the consumer is given in each round
CRAWL_PAGES, ROUND = 100, 60
#: pages for the consumer in all
PAGES = 100_000
#: how often a plain job is tried again that a fault ended
RETRIES = 5
#: tables of the store that hold what is no crawl's and no job's
LASTING = {"meta", "nodes", "domains", "throttle", "job_revision", "sqlite_sequence"}


@dataclass(kw_only=True)
class SoakResult:
    """What an hour came to."""

    crawls: int = 0
    jobs: int = 0
    consumed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)  #: what is lost, doubled or wrong, in words
    #: process -> MB in the first, second and last quarter
    memory: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)  #: what is left over, and where

    @property
    def growing(self) -> list[str]:
        """The processes whose memory is not flat."""
        return [
            name
            for name, (_, second, last) in self.memory.items()
            if last > second * (1 + GROWTH) + SLACK
        ]

    @property
    def good(self) -> bool:
        return not (self.lost or self.growing or any(self.left.values()))

    def document(self) -> dict[str, object]:
        return {**vars(self), "growing": self.growing, "good": self.good}

    def table(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("process", "MB, first quarter", "second quarter", "last quarter")
        ]
        rows += [
            (name, *(f"{value:.1f}" for value in values)) for name, values in self.memory.items()
        ]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|---|---|---|---|")
        lines += [
            "",
            "| left over | |",
            "|---|---|",
            *(f"| {name} | {count} |" for name, count in self.left.items()),
        ]
        told = f"{self.crawls} crawls, {self.consumed} pages consumed, {self.jobs} plain jobs; {dict(self.faults)}"
        return "\n".join([*lines, "", told, *(f"LOST: {text}" for text in self.lost)])


def resident(pid: int) -> float | None:
    """The memory of a process in MB; None when it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return None


class Soak:
    """See the module. The first two nodes and the consumer live for the whole time: their memory is looked at."""

    def __init__(self, folder: Path, python: Path, seed: int, *, redis: bool = False) -> None:
        self.trial = Trial(
            folder, python, seed, redis=redis, mode="push", items=CRAWL_PAGES, latency=0.05, nodes=3,
            node_config={"jobs_to_keep": "1000000"},
        )  # fmt: skip
        self.shop = SiteProcess(folder / "shop", Site(items=PAGES, per_page=20), "--latency=0.05")
        self.dice, self.result = self.trial.dice, SoakResult()
        self._samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._sampled = 0.0
        self._jobs: list[str] = []
        self._plain: list[Command] = []  #: commands of plain jobs that are not over
        self.trial.prepare()
        store = self.trial.redis.url if self.trial.redis else ""
        self.frontier = Frontier(self.trial.project, "shop", store=store)

    def close(self) -> None:
        self.shop.close()
        self.trial.close()

    def run(self, seconds: float) -> SoakResult:
        trial = self.trial
        self._sdist("deploy", "--all")
        self.frontier.register("soak", seconds=seconds + 3600)
        consumer = trial.cli(
            "frontier",
            "consume",
            "easy",
            "shop",
            "--max-running",
            "2",
            "-O",
            "consumed.jl",
            "--json",
        )
        begun = time.monotonic()
        number = 0
        while time.monotonic() - begun < seconds:
            number += 1
            self._round(number)
        self._end(consumer, begun, time.monotonic())
        return self.result

    # the work

    def _round(self, number: int) -> None:
        """Pages for the consumer, a plain job, and one crawl that something befalls."""
        trial, result = self.trial, self.result
        pages = range(result.consumed, min(PAGES, result.consumed + ROUND))
        self.frontier.fill(
            [self.shop.detail(page) for page in pages], slots=4, size=10, callback="parse_item"
        )
        result.consumed = pages.stop
        words = ("-s", "CLOSESPIDER_ITEMCOUNT=5", "--label", "soak=1", "--retries", str(RETRIES))
        self._plain.append(trial.cli("jobs", "schedule", "easy", *words, "--json"))
        mode, name, site = ("push", "pull")[number % 2], f"crawl{number}.jl", trial.site
        index = ["--index", site.template, "--pages", str(site.site.pages), "--name", f"c{number}"]
        command = trial.cli("crawl", "easy", *index, f"--{mode}", "-O", name, "--json")
        fault = self.dice.choice(
            [self._kill_worker, self._pause_node, self._restart_node, self._kill_producer]
        )
        self._wait(
            lambda: self._runs(f"c{number}") or not command.running(), 60, "a crawl that runs"
        )
        moment = time.monotonic() + self.dice.uniform(0.5, 5)
        self._wait(lambda: time.monotonic() > moment, 20, "the moment of a fault")
        result.faults[fault.__name__.strip("_")] += 1
        fault(f"c{number}")
        self._wait(lambda: not command.running(), 180, f"the end of {mode} crawl {number}")
        for _ in range(4):
            row = self._crawl(f"c{number}")
            if row is None or row.state.value == "finished":
                break
            command = trial.cli("resume", f"c{number}", "--json")
            self._wait(lambda: not command.running(), 180, f"the end of crawl {number}, resumed")  # noqa: B023 - at once
        done = command.wait(1)
        self.result.crawls += 1
        if done.code:
            result.lost.append(f"{mode} crawl {number} ended with {done.code}: {done.err[-300:]}")
        self._compare(f"{mode} crawl {number}", name, site, CRAWL_PAGES)
        for job in [one for one in self._plain if not one.running()]:
            self._finish_job(job)

    def _finish_job(self, command: Command) -> None:
        """A plain job finishes, on another node when a fault befalls it.

        One that a node has forgotten may run on there: it counts as lost only when its log is silent for some minutes.
        """
        self._wait(lambda: not command.running(), 900, "the end of a plain job")
        self._plain.remove(command)
        done = command.wait(1)
        self.result.jobs += 1
        if done.code:
            self.result.lost.append(
                f"plain job {self.result.jobs} ended with {done.code}: {done.out[-900:]}"
            )
        else:
            self._jobs += [row["job"] for row in json.loads(done.out)["jobs"]]

    def _compare(self, what: str, name: str, site: SiteProcess, count: int) -> None:
        without = range(count, site.site.items)
        items = (
            self.trial.project.items(name)
            if (self.trial.project.path / name).exists()
            else iter(())
        )
        if found := site.differences(items, without=without):
            shown = {kind: len(some) for kind, some in found.items()}
            self.result.lost.append(f"{what}: {shown}")

    def _crawl(self, name: str) -> Crawl | None:
        with closing(self.trial.store()) as store:
            return next((row for row in store.crawls() if row.id == name), None)

    def _runs(self, name: str) -> bool:
        row = self._crawl(name)
        return row is not None and row.pid is not None

    def _sdist(self, *words: str, code: int | None = 0) -> str:
        command = self.trial.cli(*words)
        self._wait(lambda: not command.running(), 180, f"sdist {words[0]}")
        done = command.wait(1)
        if code is not None and done.code != code:
            self.result.lost.append(
                f"sdist {' '.join(words)} ended with {done.code}: {done.err[-300:]}"
            )
        return done.out

    def _states(self) -> dict[str, str]:
        """Plain job -> how it stands by `sdist jobs`."""
        rows = {
            row["job"]: row["state"]
            for row in json.loads(self._sdist("jobs", "--json", code=None))["jobs"]
        }
        return {job: rows.get(job, "forgotten") for job in self._jobs}

    # faults

    def _kill_worker(self, _: str) -> None:
        pids = [pid for node in self.trial.nodes for pid in node.job_pids()]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.dice.choice(pids), signal.SIGKILL)

    def _pause_node(self, _: str) -> None:
        node = self.trial.victim()
        node.pause()
        until = time.monotonic() + self.dice.uniform(2, 8)
        try:
            self._wait(lambda: time.monotonic() > until, 30, "the end of a pause")
        finally:
            node.go_on()

    def _restart_node(self, _: str) -> None:
        node = self.trial.nodes[2]
        node.kill()
        node.kill_jobs()
        node.restart()

    def _kill_producer(self, name: str) -> None:
        row = self._crawl(name)
        if row is not None and row.pid:
            with suppress(ProcessLookupError):
                os.kill(row.pid, signal.SIGKILL)

    # memory

    def _wait(self, done: Callable[[], object], seconds: float, what: str) -> None:
        def look() -> object:
            self._sample()
            return done()

        wait_for(look, seconds, what)

    def _sample(self) -> None:
        now = time.monotonic()
        if now - self._sampled < SAMPLE:
            return
        self._sampled = now
        for name, pid in self._long_lived():
            if (found := resident(pid)) is not None:
                self._samples[name].append((now, found))

    def _long_lived(self) -> Iterator[tuple[str, int]]:
        for node in self.trial.nodes[:2]:
            yield f"scrapyd {node.name}", node.pid
        if pid := self.frontier.row().pid:
            yield "consumer", pid

    def _weigh(self, begun: float, ended: float) -> None:
        quarter = (ended - begun) / 4
        for name, samples in self._samples.items():
            parts = [
                [size for at, size in samples if int((at - begun) / quarter) == n]
                for n in (0, 1, 3)
            ]
            if all(parts):
                first, second, last = (mean(part) for part in parts)
                self.result.memory[name] = (first, second, last)

    # the end

    def _end(self, consumer: Command, begun: float, ended: float) -> None:
        result, trial = self.result, self.trial
        self._weigh(begun, ended)
        self._sampled = float("inf")
        self.frontier.sign_off("soak")
        self._wait(lambda: not consumer.running(), 300, "the end of the consumer")
        done = consumer.wait(1)
        if done.code:
            result.lost.append(f"the consumer ended with {done.code}: {done.err[-300:]}")
        self._compare("the consumer", "consumed.jl", self.shop, result.consumed)
        for node in trial.nodes:
            node.wait_idle()
        for command in list(self._plain):
            self._finish_job(command)
        for job, state in self._states().items():
            if state != "finished":
                result.lost.append(f"the plain job {job} is {state}")
        # As the docs have it: the next crawl's workers remove from the nodes what is home; `clean`, `prune` the rest.
        site = trial.site
        index = ["--index", site.template, "--pages", str(site.site.pages)]
        self._sdist("crawl", "easy", *index, "-O", "last.jl", "--name", "last", "--json")
        self._sdist("crawls", "clean", "--older-than", "0", "--yes")
        self._sdist("crawls", "clean", "shop", "--yes")
        self._sdist("code", "prune", "--keep", "1", "--yes")
        for node in trial.nodes:
            node.wait_idle()
            self._left_on(node)
        self._left_in_store()

    def _left_on(self, node: ScrapydNode) -> None:
        left = self.result.left
        left[f"{node.name}: jobs that wait or run"] = len(node.jobs("pending")) + len(
            node.jobs("running")
        )
        left[f"{node.name}: processes"] = len(set(with_home(node.home)) - {node.pid})
        folders = [path.name for path in node.logs_dir.glob("_sdist/*")]
        # That of a frontier, which may be filled again, stays for DISTRIBUTED_KEEP_DAYS.
        for name in {folder.partition(".")[0] for folder in folders} - {"last", "shop"}:
            left[f"{node.name}: files of {name}"] = len(
                list(node.logs_dir.glob(f"_sdist/{name}.*/*"))
            )
        versions = node.versions(self.trial.project.name)
        left[f"{node.name}: old versions"] = max(0, len(versions) - 1)

    def _left_in_store(self) -> None:
        left, trial = self.result.left, self.trial
        home = trial.project.path / ".sdist" / "crawls"
        left["folders of crawls in .sdist"] = len(list(home.iterdir())) if home.exists() else 0
        with closing(trial.store()) as store:
            left["crawls in the store"] = len(store.crawls())
        if trial.redis is None:
            with closing(sqlite3.connect(trial.project.path / ".sdist" / "store.db")) as database:
                names = [
                    row[0]
                    for row in database.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table'"
                    )
                ]
                for name in names:
                    (count,) = database.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608 - its own names
                    if count and name not in LASTING:
                        left[f"rows of {name}"] = count


def soak(
    folder: Path, python: Path, *, minutes: float, seed: int, redis: bool, report: Path | None
) -> int:
    """Run it, print the table; 0 when nothing is lost or left over and all memory is flat."""
    with closing(Soak(folder, python, seed, redis=redis)) as run:
        result = run.run(minutes * 60)
    print(result.table())
    if result.growing:
        print(f"GROWING: {', '.join(result.growing)}")
    if report is not None:
        report.write_text(json.dumps(result.document(), indent=1), encoding="utf-8")
    sys.stdout.flush()
    return 0 if result.good else 1
