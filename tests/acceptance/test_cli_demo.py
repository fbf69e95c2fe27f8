"""`sdist demo`, small: every item once, and nothing left running, also after Ctrl-C in the middle."""

import sys
from pathlib import Path

from rig.fixtures import MakeProject, StartCommand
from rig.processes import with_home
from rig.waiting import wait_for


def test_the_demo_works_and_leaves_nothing_running(start_command: StartCommand, project: MakeProject) -> None:
    made = project()
    # A checkout has a folder of this name, which `python -m` takes for the package where it is the working folder.
    for name in ("__init__.py", "examples/__init__.py", "examples/site.py"):
        made.write(f"scrapyd_dist/{name}", "raise SystemExit('not the package that is installed')")
    script = (str(Path(sys.executable).with_name("sdist")),)
    done = start_command(made, script, "demo", "--items", "90", "--nodes", "1", "--dir", "shown").wait(120)
    assert done.code == 0, done.err
    assert "The demo worked: 90 items" in done.out
    for command in ("sdist nodes up 1", "sdist deploy-all", "sdist crawl easy"):
        assert f"shown$ {command}" in done.err
    assert sum(1 for _ in made.items("shown/items.jl")) == 90
    assert with_home(made.home) == {}


def test_ctrl_c_in_the_middle_stops_everything(start_cli: StartCommand, project: MakeProject) -> None:
    made = project()
    command = start_cli(made, "demo", "--items", "3000", "--nodes", "1", "--dir", "shown")
    command.wait_text(": finding", 60)
    command.interrupt()
    done = command.wait(60)
    assert done.code == 130
    assert "Everything that the demo started is stopped." in done.err
    assert "The demo worked" not in done.out
    wait_for(lambda: not with_home(made.home), 5, "the end of all that the demo started")
