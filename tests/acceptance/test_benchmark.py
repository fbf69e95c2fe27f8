"""The benchmark runs, in its short form: every way brings exactly the site's items home, or it says what is wrong."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from measure import RunError, run_all
from ways import Bench, Options

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"
DEPLOYS = SCRIPT.with_name("deploys.py")


@pytest.mark.parametrize(
    "ways",
    [
        "plain,bound",
        "sdist2",
        pytest.param("sdist2,sdist2-fast", marks=pytest.mark.black_box),
        pytest.param("sdist2-redis,scrapy-redis2", marks=pytest.mark.black_box),
    ],
)
def test_the_short_benchmark_measures_and_checks_every_way(ways: str, tmp_path: Path) -> None:
    if "scrapy-redis" in ways:
        pytest.importorskip("scrapy_redis", reason="of the dependency group `bench`")
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--short", "--ways", ways, "--timeout", "120", "--json", figures],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert [run["way"] for run in found["runs"]] == ways.split(",")
    for run in found["runs"]:
        assert (run["refetched"], run["index_fetched"]) == (0, 10), run
        assert run["wall_s"] > 0
        # 300 pages cost more than this even on a fast machine: less would mean that a process was not counted.
        assert run["cpu_s"] > 0.5
        assert run["site_cpu_s"] < run["cpu_s"] / 5, "the site is to be far faster than the crawlers"


def test_a_run_that_lost_an_item_is_no_measurement(tmp_path: Path) -> None:
    options = Options(
        items=20, per_page=10, url_style="numbered", shards=2, batch_size=10, max_proc=1, poll_interval=0.5,
        index_weight=0, timeout=60,
    )  # fmt: skip
    with closing(Bench(tmp_path, options)) as bench:
        bench.prepare("plain")
        bench.site.behave({bench.site.site.detail_path(7): "gone"})
        with pytest.raises(RunError, match=r"19 items home.*'missing': \['7'\]"):
            bench.run("plain", 0)


def test_a_failed_or_endless_command_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="ended with 3 after"):
        run_all([["sh", "-c", "exit 3"]], cwd=tmp_path, output=tmp_path, timeout=20)
    with pytest.raises(RunError, match="ended with -9 after"):
        run_all([["sleep", "100"]], cwd=tmp_path, output=tmp_path, timeout=0.2)


def test_cpu_seconds_of_what_a_command_leaves_behind_are_counted(tmp_path: Path) -> None:
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.5: pass'"
    # A process of its own, because it becomes the parent of orphans.
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(SCRIPT.parent)!r}, {str(SCRIPT.parent.parent / "tests")!r}]
from measure import adopt_orphans, run_all
adopt_orphans()
command = ["setsid", "sh", "-c", {burn + " & exit 0"!r}]
print(run_all([command], cwd=Path("."), output=Path("."), timeout=20).cpu)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert 0.45 < float(done.stdout) < 5


def test_the_short_benchmark_of_roll_outs(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, DEPLOYS, "--short", "--timeout", "120", "--json", figures],
        check=False, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert [(run["way"], run["pair"]) for run in found["runs"]] == [("bound", 0), ("sdist", 0)]
    # Two nodes import the project: less would mean that their processes were not counted.
    assert all(run["cpu_s"] > 0.5 for run in found["runs"]), found["runs"]
    assert found["ways"]["sdist"]["wall_ratio"]["median"] > 0.5
    assert "| `sdist deploy-all` |" in done.stdout
