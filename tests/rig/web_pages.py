"""The pages of a project whose nodes are made up: a store with known contents, and a client of the pages."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from scrapyd_dist.batches import Crawl
from scrapyd_dist.fleet.workspace import Workspace
from scrapyd_dist.job_record import JobRecord, Outcome
from scrapyd_dist.transports import Sender
from scrapyd_dist.web.application import Actions, make_application
from scrapyd_dist.web.fleet_board import FleetBoard
from scrapyd_dist.web.project_pages import ProjectPages
from scrapyd_dist.web.server import bind
from scrapyd_dist.web.shared_answers import SharedAnswers

from .made_crawls import made_up

ADDRESS = "http://127.0.0.1:6810"
RECORD = JobRecord(
    id="easy-1", spider="easy", project="shop", version="7", created=1.0, posted=1.0, node="web1", url="http://web1:6800",
    labels=("night=1",), state=Outcome.FAILED, started=2.0, ended=9.0, reason="2 errors logged", pages=5, items=3, errors=2,
)  # fmt: skip


def write_targets(root: Path, names: list[str]) -> None:
    """A scrapy.cfg with these nodes."""
    lines = ["[settings]", "default = shop.settings", "[deploy]", "project = shop"]
    for name in names:
        lines += [f"[deploy:{name}]", f"url = http://{name}:6800/", "project = shop"]
    (root / "scrapy.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")


def project_at(root: Path, sender: Sender) -> Workspace:
    """The project of a folder, whose calls go to this sender."""
    workspace = Workspace(root)
    vars(workspace)["sender"] = (
        sender  # in the place of the one that it would make at its first use
    )
    return workspace


def fill_store(root: Path) -> Crawl:
    """A crawl that is over, with its samples, batches and misses, earlier ones of its spider, and a plain job."""
    facts = made_up(nodes=2, batches=3)
    with closing(Workspace(root)) as workspace:
        store = workspace.new_store
        for run in facts.runs:
            store.add_crawl(run)
        for at, sample in facts.samples:
            store.add_sample(facts.crawl.id, at, sample)
        store.keep_jobs(
            [RECORD, replace(RECORD, id="easy-2", state=Outcome.FINISHED, ended=time.time())]
        )
    return facts.crawl


@contextmanager
def served(
    root: Path, sender: Sender, *, patience: float = 20.0, actions: Actions | None = None, password: str = "",
    clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
) -> Iterator[TestClient]:  # fmt: skip
    """A client of the pages of a project; patience: seconds that a page waits for an answer."""

    def open_workspace() -> Workspace:
        return project_at(root, sender)

    pages = ProjectPages(
        open_workspace=open_workspace,
        answers=SharedAnswers(patience=patience, clock=clock, wall=wall),
        board=FleetBoard(open_workspace),
    )
    with closing(pages):
        application: Any = make_application(pages, password=password, actions=actions)
        yield TestClient(application, base_url=ADDRESS)


@contextmanager
def served_on_port(root: Path, sender: Sender) -> Iterator[str]:
    """The address at which a server of this process has the pages, for a browser."""

    def open_workspace() -> Workspace:
        return project_at(root, sender)

    pages = ProjectPages(open_workspace=open_workspace, board=FleetBoard(open_workspace))
    with closing(pages), bind("127.0.0.1", 0) as listener:
        config = uvicorn.Config(
            make_application(pages), log_level="error", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
