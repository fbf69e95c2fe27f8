"""What the tutorial and the how-to guides tell to type, typed in its order, on nodes of our own."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite
from rig.nodes import ScrapydNode, free_port
from rig.pages import blocks, follow, page
from rig.processes import private_environment
from rig.projects import Project
from rig.sites import SiteProcess
from rig.waiting import wait_for

from scrapyd_dist.errors import NodeError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports.requests import RequestsTransport

SECRET = "hush-77"
PASSWORDS = {"SDIST_WEB1_PASSWORD": SECRET, "SDIST_WEB2_PASSWORD": SECRET}
#: what the printed scrapyd.conf has, and tests' nodes do not
AS_PRINTED = {"jobs_to_keep": "1000000", "jobstorage": "scrapyd.jobstorage.SqliteJobStorage"}


def addresses(nodes: list[ScrapydNode]) -> dict[str, str]:
    """The addresses of the pages -> those of our nodes."""
    return {f"web{n}.example.com:6800": f"127.0.0.1:{node.port}" for n, node in enumerate(nodes, 1)}


def lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def at_work(project: MakeProject, site: SiteProcess, nodes: list[ScrapydNode]) -> Project:
    return project(
        nodes=nodes, settings={"START_URL": site.start_url, "DISTRIBUTED_POLL_INTERVAL": 0.5}
    )


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_tutorial(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    follow(page("tutorial"), folder, replaced={"9312": str(free_port())})
    assert lines(folder / "shop" / "homes.jl") == 1200
    assert "<svg" in (folder / "shop" / "third.html").read_text("utf-8")


@pytest.mark.black_box
@pytest.mark.full
def test_operating(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    nodes = fleet(2, username="crawler", password=SECRET, **AS_PRINTED)
    made, shop = project(), site(90)
    ours = {
        "http://127.0.0.1:9312": shop.url.rstrip("/"),
        "--pages 1667": "--pages 3",
        "--shards 20": "--shards 3",
    }
    said = follow(
        page("howto/operating"), made.path, replaced=ours | addresses(nodes), env=PASSWORDS
    )
    assert SECRET not in said
    assert shop.differences(made.items("items.jl")) == {}
    assert "# TYPE" in (made.path / "sdist.prom").read_text("utf-8")
    assert "<svg" in (made.path / "first.html").read_text("utf-8")


@pytest.mark.black_box
@pytest.mark.full
def test_nodes_with_passwords(project: MakeProject, fleet: StartFleet) -> None:
    nodes = fleet(2, username="crawler", password=SECRET, **AS_PRINTED)
    made = project()
    said = follow(page("howto/nodes"), made.path, replaced=addresses(nodes), env=PASSWORDS)
    assert len(re.findall(r"^web\d +up ", said, re.MULTILINE)) == 2
    assert SECRET not in said + (made.path / "scrapy.cfg").read_text("utf-8")


@pytest.mark.black_box
@pytest.mark.full
def test_a_login(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60)
    login = shop.site.index_path(1)
    shop.behave({"/properties/property_*": "cookie:session=1", login: "setcookie:session=1"})
    made = at_work(project, shop, fleet(2, env={"SHOP_PASSWORD": SECRET}))
    ours = {"http://127.0.0.1:9312": shop.url.rstrip("/"), "/login": f"{login}?login"}
    said = follow(page("howto/login"), made.path, replaced=ours, env={"SHOP_PASSWORD": SECRET})
    assert sorted(item["url"] for item in made.items("members.jl")) == sorted(
        map(shop.detail, range(60))
    )
    assert SECRET not in said


@pytest.mark.black_box
@pytest.mark.full
def test_many_sites(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60)
    made = at_work(project, shop, fleet(2))
    made.write("urls.txt", "\n".join(shop.detail(number) for number in range(20)) + "\n")
    follow(page("howto/many-sites"), made.path, replaced={})
    assert (lines(made.path / "items.jl"), lines(made.path / "more.jl")) == (60, 20)


@pytest.mark.black_box
@pytest.mark.full
def test_a_speed_limit(project: MakeProject) -> None:
    made = project()
    said = follow(page("howto/speed-limit"), made.path, replaced={})
    assert "example.com" in said


@pytest.mark.black_box
@pytest.mark.full
def test_the_throttle(project: MakeProject, run_cli: RunCommand) -> None:
    made = project()
    follow(page("explanation/throttle"), made.path, replaced={})
    rules = json.loads(run_cli(made, "throttle", "show", "--json", code=0).out)["domains"]
    limits = {
        rule["domain"]: (rule["limit"] or {}).get("hits")
        for rule in rules
        if rule["limit"] or rule["blocked"]
    }
    assert limits == {"*": 30, "example.com": 60, "example.net": None, "example.org": 10}


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.timeout(600)
def test_resume_and_retry(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(120, "--latency=0.2")
    shop.behave({shop.site.detail_path(3): "fail:1"})
    # A command that stops or pauses a crawl starts while that crawl runs, also on a busy machine.
    made = project(nodes=fleet(2), settings={"START_URL": shop.start_url, "DOWNLOAD_DELAY": 1})
    said = follow(page("howto/resume-and-retry"), made.path, replaced={})
    assert "exit code 3" in said
    for name in ("shaky.jl", "items.jl", "slowly.jl"):
        assert shop.differences(made.items(name)) == {}


@pytest.mark.black_box
@pytest.mark.full
def test_time_limits(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60)
    made = at_work(project, shop, fleet(2))
    follow(page("howto/time-limits"), made.path, replaced={})
    assert shop.differences(made.items("easy-1.jl")) == {}


@pytest.mark.black_box
@pytest.mark.full
def test_plain_jobs(
    project: MakeProject, fleet: StartFleet, site: StartSite, run_cli: RunCommand
) -> None:
    made = at_work(project, site(60), fleet(2))
    made.spider("report", "import scrapy\n\n\nclass Report(scrapy.Spider):\n    name = 'report'\n")
    follow(page("howto/plain-jobs"), made.path, replaced={})
    jobs = run_cli(made, "jobs", "--json", code=0).json()["jobs"]
    assert {row["state"] for row in jobs if row["labels"] == ["night=1"]} == {"finished"}
    assert [row["state"] for row in jobs if row["spider"] == "report"] == ["finished"]


@pytest.mark.black_box
@pytest.mark.full
def test_a_delivery(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60)
    made = at_work(project, shop, fleet(2))
    delivered = made.home / "delivered"
    follow(page("howto/delivery"), made.path, replaced={"/data/items": str(delivered)})
    (reader,) = re.findall(
        "^```python\n(.*?)^```$",
        page("howto/delivery").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    done = subprocess.run(
        [sys.executable, "-c", reader.replace("/data/items", str(delivered))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 60


FRONTIER = {
    "links": """
        import scrapy


        class Links(scrapy.Spider):
            name = "links"

            async def start(self):
                yield scrapy.Request(self.settings["START_URL"])

            def parse(self, response):
                yield from response.follow_all(css="a[href*=property]", callback=self.parse_article)

            def parse_article(self, response):
                pass
    """,
    "article": """
        import scrapy


        class Article(scrapy.Spider):
            name = "article"

            def parse_article(self, response):
                yield {"url": response.url}
    """,
    "search": """
        import scrapy


        class Search(scrapy.Spider):
            name = "search"

            async def start(self):
                yield scrapy.Request(self.settings["START_URL"] + "?" + self.word)

            def parse(self, response):
                yield {"word": self.word}
    """,
}


@pytest.mark.black_box
@pytest.mark.full
def test_a_frontier(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60, per_page=30)
    made = project(
        spiders=FRONTIER,
        nodes=fleet(2),
        settings={"START_URL": shop.start_url, "ADDONS": {"scrapyd_dist.Addon": 500}},
    )
    made.write("urls.txt", "\n".join(map(shop.detail, range(25, 40))) + "\n")
    follow(page("howto/frontier"), made.path, replaced={})
    assert sorted(item["url"] for item in made.items("items.jl")) == sorted(
        map(shop.detail, range(40))
    )


@pytest.mark.black_box
@pytest.mark.full
def test_only_new_pages(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60, per_page=30)
    made = project(
        nodes=fleet(2),
        settings={"START_URL": shop.start_url, "ADDONS": {"scrapyd_dist.Addon": 500}},
    )
    for _night in range(2):
        follow(page("howto/only-new-pages"), made.path, replaced={"books": "easy"})
        assert shop.differences(made.items("easy.jl")) == {}
    assert set(shop.item_hits().values()) == {1}
    shop.behave({shop.site.index_path(0): "gone"})
    with pytest.raises(AssertionError, match="The index had no links"):
        follow(page("howto/only-new-pages"), made.path, replaced={"books": "easy"})


@pytest.mark.black_box
@pytest.mark.full
def test_rows_of_arguments(project: MakeProject, fleet: StartFleet, site: StartSite) -> None:
    shop = site(60)
    made = project(spiders=FRONTIER, nodes=fleet(2), settings={"START_URL": shop.start_url})
    made.write("words.csv", "word\nred\nblue\n")
    follow(page("howto/spider-arguments"), made.path, replaced={})
    assert sorted(item["word"] for item in made.items("found.jl")) == ["blue", "red"]


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.timeout(900)
def test_strategies(tmp_path: Path) -> None:
    folder = tmp_path / "strategies"
    follow(page("howto/strategies"), folder, replaced={"9312": str(free_port())})
    assert lines(folder / "shop" / "items.jl") == 670


@pytest.mark.black_box
@pytest.mark.full
def test_lines_for_cron_print_only_what_went_badly(
    project: MakeProject, fleet: StartFleet, site: StartSite
) -> None:
    shop = site(60)
    made = at_work(project, shop, fleet(2))
    text = page("howto/scheduling").read_text("utf-8")
    crawl, job = re.findall(r"^0 \d \* \* \* (.*)$", text, re.MULTILINE)
    (made.path / ".sdist").mkdir(mode=0o700)

    def printed(line: str, items: int) -> str:
        ours = {
            ".venv/bin": str(Path(sys.executable).parent),
            "/srv/shop": str(made.path),
            "45000": str(items),
        }
        for theirs, instead in ours.items():
            line = line.replace(theirs, instead)
        here = private_environment(made.home, {})
        return subprocess.check_output(["/bin/sh", "-c", line], env=here, text=True)

    assert printed(crawl, 60) == ""
    assert shop.differences(made.items("items.jl")) == {}
    assert "61" in printed(crawl, 61)
    assert "no spider 'prices'" in printed(job, 60)


@pytest.mark.black_box
@pytest.mark.full
def test_monitoring(project: MakeProject, fleet: StartFleet) -> None:
    made = project(nodes=fleet(1))
    follow(page("howto/monitoring"), made.path, replaced={})
    assert "sdist_node_up" in (made.path / "sdist.prom").read_text("utf-8")


@pytest.mark.black_box
@pytest.mark.full
def test_the_printed_configuration_makes_a_node_as_containers_and_services_start_it(
    run_cli: RunCommand, project: MakeProject, node_python: Path, tmp_path: Path
) -> None:
    """The image's command, with the environment that the compose file and the unit give it."""
    written = blocks(page("howto/services"))
    (command,) = re.findall(r"^CMD (.*)$", written["Dockerfile"], re.MULTILINE)
    service = yaml.safe_load(written["compose.yaml"])["services"]["node2"]
    assert service["ports"] == ["127.0.0.1:6802:6800"]
    (unit,) = re.findall(
        "^ExecStart=\\S+/bin/(.*)$", written["/etc/systemd/system/scrapyd.service"], re.MULTILINE
    )
    assert json.loads(command) == unit.split()
    variables = dict(line.split("=", 1) for line in written["/etc/scrapyd.env"].split())
    assert service["environment"].keys() == variables.keys()
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "scrapyd.conf").write_text(run_cli(project(), "init", "--node-conf", code=0).out)
    port = str(free_port())
    env = {
        **variables,
        "SCRAPYD_PASSWORD": SECRET,
        "SCRAPYD_BIND_ADDRESS": "127.0.0.1",
        "SCRAPYD_HTTP_PORT": port,
    }
    program = node_python.parent / unit.split()[0]
    with (folder / "log").open("w") as log, subprocess.Popen(
        [program, *unit.split()[1:]], cwd=folder, env=private_environment(folder, env), stdout=log, stderr=log
    ) as node:  # fmt: skip
        try:
            with_password = Node.parse(
                f"127.0.0.1:{port}", name="x", username="crawler", password=SECRET
            )
            wait_for(lambda: answers(with_password), 60, "an answer of the node")
            assert not answers(Node.parse(f"127.0.0.1:{port}", name="x"))
        finally:
            node.terminate()


def answers(node: Node) -> bool:
    try:
        RequestsTransport().send(node, api.daemonstatus(), timeout=10)
    except NodeError:
        return False
    return True


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
@pytest.mark.parametrize("name", ["howto/services", "howto/scheduling"])
def test_the_units_are_units(name: str, tmp_path: Path) -> None:
    text = page(name).read_text("utf-8")
    units = re.findall(r"^```ini\n(\[Unit\]\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert units
    for number, unit in enumerate(units):
        kind = "timer" if "[Timer]" in unit else "service"
        there = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit, flags=re.MULTILINE)
        (tmp_path / f"sdist{number - number % 2}.{kind}").write_text(there)
    paths = sorted(tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", *paths], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "sdist" in line] == []


@pytest.mark.black_box
@pytest.mark.full
def test_airflow_and_prefect(
    project: MakeProject, fleet: StartFleet, site: StartSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their examples, without them: the shell lines of the one, the function of the other."""
    shop = site(60)
    made = at_work(project, shop, fleet(2))
    text = (
        page("howto/pipelines")
        .read_text("utf-8")
        .replace("/srv/shop", str(made.path))
        .replace("1000", "60")
    )
    airflow, prefect = re.findall("^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    compile(airflow, "airflow", "exec")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (script,) = re.findall('CRAWL = """\n(.*?)"""', airflow, re.DOTALL)
    script = script.replace("{{ ts_nodash }}", "20260101T000000").replace("{{ ds }}", "20260101")
    subprocess.run(["/bin/sh", "-c", script], cwd=made.path, check=True)
    assert shop.differences(made.items("items-20260101.jl")) == {}

    as_it_is = types.ModuleType("prefect")
    as_it_is.flow, as_it_is.task = lambda function: function, lambda **_: lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "prefect", as_it_is)
    names: dict[str, Any] = {}
    exec(compile(prefect, "prefect", "exec"), names)  # noqa: S102 - it is the page's
    summary = names["crawl"]("easy", "easy-2")
    assert (summary["items"], summary["exit_code"]) == (60, 0)
    hits = sum(shop.item_hits().values())
    again = names["crawl"]("easy", "easy-2")  # a second attempt begins no second crawl
    assert (again["crawl"], again["items"]) == (summary["crawl"], 60)
    assert sum(shop.item_hits().values()) == hits
