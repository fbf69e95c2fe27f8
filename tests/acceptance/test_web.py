"""`sdist web` on a real node, in a real browser: work is started over HTTP, and followed to its end on a page."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.request import Request, urlopen

import pytest
from rig.browser import Browser, browser
from rig.commands import SDIST, Command
from rig.crawls import QUICK
from rig.fixtures import StartFleet, StartSite
from rig.projects import Project
from rig.shops import Shop
from rig.waiting import wait_for

TOKEN = "0123456789abcdef"
#: the words of the page as they are now, which it changes by itself
TEXT = "document.querySelector('#live').innerText"
STATE = "document.querySelector('#live .state').innerText"


class Pages:
    """`sdist web` that runs in a project."""

    def __init__(self, project: Project) -> None:
        self.command = Command(
            [*SDIST, "web", "--port", "0", "--actions"],
            cwd=project.path, folder=project.output, home=project.home, env={"SDIST_WEB_TOKEN": TOKEN},
        )  # fmt: skip
        self.command.wait_text("Ctrl-C ends them")
        (self.address,) = re.findall(r"http://127\.0\.0\.1:\d+", self.command.err)

    def start(self, path: str, **asked: Any) -> dict[str, Any]:
        """What is answered to a request to start work."""
        headers = {"Content-Type": "application/json", "X-Sdist-Token": TOKEN}
        request = Request(f"{self.address}{path}", json.dumps(asked).encode(), headers)
        with urlopen(request, timeout=120) as answer:
            assert answer.status == 201
            document: dict[str, Any] = json.load(answer)
            return document

    def document(self, path: str) -> dict[str, Any]:
        with urlopen(f"{self.address}{path}", timeout=60) as answer:
            document: dict[str, Any] = json.load(answer)
            return document


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, module_fleet: StartFleet) -> Iterator[Shop]:
    nodes = module_fleet(1, max_proc=2, jobs_to_keep="100")
    with closing(Shop(tmp_path_factory.mktemp("shop"), nodes)) as made:
        yield made


def test_a_job_is_started_over_http_and_followed_to_its_end(shop: Shop, opened: Browser) -> None:
    with closing((pages := Pages(shop.project)).command) as command:
        (row,) = pages.start("/jobs", spider="broken", labels=["by=web"])["jobs"]
        assert (row["spider"], row["state"]) == ("broken", "scheduled")
        opened.open(f"{pages.address}/jobs/{row['job']}?node={row['node']}", width=1000)
        wait_for(lambda: opened.run(STATE) == "failed", 60, "the end of the job on its page")
        text = opened.run(TEXT)
        assert "by=web" in text
        group = r"3 . ZeroDivisionError: a needle in the log, for example data:,\d"
        assert re.search(group, text), "errors are grouped"
        assert "Spider closed (finished)" in text, "its log stands there"
        assert opened.complaints() == []
        told = pages.document(f"/jobs/{row['job']}.json?node={row['node']}")["jobs"][0]
        assert told["labels"] == ["by=web"]
        assert told == shop.job(row["job"])
        command.signal(signal.SIGINT)
        assert TOKEN not in command.wait(30, 130).err


@pytest.mark.full
@pytest.mark.black_box
def test_a_crawl_is_started_over_http_and_its_page_is_alive(
    tmp_path_factory: pytest.TempPathFactory,
    module_fleet: StartFleet,
    module_site: StartSite,
    opened: Browser,
) -> None:
    project = Project.demo(tmp_path_factory.mktemp("web") / "project0")
    project.settings(**QUICK)
    project.targets(module_fleet(2))
    site = module_site(300, "--latency=0.05")
    with closing((pages := Pages(project)).command):
        begun = pages.start(
            "/crawls", spider="easy", name="first", args={"start": site.start_url},
            settings={"DISTRIBUTED_BATCH_SIZE": "30"}, overwrite_output=["items.jl"],
        )  # fmt: skip
        assert begun["crawl"] == "first"
        opened.open(f"{pages.address}/crawls/first", width=1000)
        wait_for(lambda: opened.run(STATE) == "finished", 120, "the end of the crawl on its page")
        assert "300" in opened.run(TEXT)
        assert (project.path / "items.jl").read_text("utf-8").count("\n") == 300
        for tab in ("batches", "jobs", "log"):
            opened.open(f"{pages.address}/crawls/first/{tab}", width=1000)
            wait_for(lambda: "first" in opened.run(TEXT), 30, "the tab")
        opened.open(f"{pages.address}/", width=1000)
        wait_for(lambda: "Last crawls" in opened.run(TEXT), 30, "the first page")
        assert opened.run("document.querySelectorAll('[role=status]').length") == 0, "all is well"
