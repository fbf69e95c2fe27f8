"""Some thousand wrong inputs end with the right code and one paragraph, before anything starts."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from rig.commands import Result, run_here
from rig.processes import private_environment
from rig.projects import Project
from rig.wrong_inputs import WrongInput, wrong_inputs
from scrapyd_dist.middlewares.producer import process

#: wrong inputs of one row
THOUSAND = 1000
#: those that each change is tried with
FEW = 150
#: more than there are
ALL = 100_000
#: seconds for one of them
PATIENCE = 20.0
#: a node on which nothing listens, so that what is taken all the same comes to nothing
GONE = "[deploy:gone]\nurl = http://127.0.0.1:1/\nproject = properties\n"
#: what tells a fault of ours
FAULTS = ("Traceback", "no words for", "itself failed", "cannot be loaded", "Value error")


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Project]:
    """The demo project, which this process imports."""
    made = Project.demo(tmp_path / "properties")
    made.targets([], GONE)
    yield made
    logging.disable(logging.NOTSET)


def ended(made: Project, wrong: WrongInput) -> Result:
    """How `sdist` ends with these arguments, or the process of a plan with these settings."""
    usual = (made.path / "scrapy.cfg").read_bytes()
    for name, content in wrong.files.items():
        (made.path / name).parent.mkdir(exist_ok=True)
        (made.path / name).write_bytes(content)
    for name in wrong.pipes:
        (made.path / name).parent.mkdir(exist_ok=True)
        (made.path / name).unlink(missing_ok=True)
        os.mkfifo(made.path / name)
    modes = {name: (made.path / name).stat().st_mode for name in wrong.modes}
    for name, mode in wrong.modes.items():
        (made.path / name).chmod(mode)
    try:
        if wrong.arguments:
            return run_here(
                wrong.arguments, cwd=made.path, home=made.home, env=dict(wrong.environment)
            )
        with patch.dict(os.environ, private_environment(made.home), clear=True):
            os.chdir(made.path)
            answer = process._plan({"spider": "easy", "settings": dict(wrong.settings)})
        return Result(
            answer.get("exit_code", 0), "", f"sdist: {answer['error']}" if "error" in answer else ""
        )
    finally:
        for name, mode in modes.items():
            (made.path / name).chmod(mode)
        for name in (*wrong.files, *wrong.pipes):
            (made.path / name).unlink()
        (made.path / "scrapy.cfg").write_bytes(usual)


def complaints_of(wrong: WrongInput, result: Result, seconds: float) -> list[str]:
    """What is not right with this end."""
    paragraphs = sum(line.startswith("sdist: ") for line in result.err.splitlines())
    return [
        *([f"exit code {result.code}"] if result.code not in wrong.codes else []),
        *([f"{paragraphs} paragraphs"] if paragraphs != 1 else []),
        *([f"{wrong.names} is not named"] if wrong.names not in result.err else []),
        *([f"{seconds:.0f} seconds"] if seconds > PATIENCE else []),
        *(fault for fault in FAULTS if fault in result.err),
    ]


@pytest.mark.parametrize(
    ("first", "end"),
    [
        (0, FEW),
        pytest.param(FEW, THOUSAND, marks=pytest.mark.black_box),
        pytest.param(THOUSAND, 2 * THOUSAND, marks=pytest.mark.full),
        pytest.param(2 * THOUSAND, 3 * THOUSAND, marks=pytest.mark.full),
        pytest.param(3 * THOUSAND, ALL, marks=pytest.mark.full),
    ],
)
def test_what_is_wrong_is_told_in_one_paragraph_before_anything_starts(
    made: Project, monkeypatch: pytest.MonkeyPatch, first: int, end: int
) -> None:
    monkeypatch.chdir(made.path)
    failures, handlers = [], [signal.getsignal(one) for one in signal.valid_signals()]
    for wrong in wrong_inputs(ALL)[first:end]:
        begun = time.monotonic()
        result = ended(made, wrong)
        if complaints := complaints_of(wrong, result, time.monotonic() - begun):
            failures.append(f"{wrong}: {', '.join(complaints)}: {result.err[:300]}")
    assert failures == [], "\n".join(failures)
    assert not list(made.path.glob(".sdist/crawls/*")), "of no crawl is anything left"
    assert [signal.getsignal(one) for one in signal.valid_signals()] == handlers, (
        "nothing is there to be stopped"
    )


def test_every_setting_and_every_option_that_is_a_number_is_among_the_thousand() -> None:
    every = wrong_inputs(ALL)
    assert 3 * THOUSAND < len(every) < 4 * THOUSAND, "the rows are of about one size"
    assert {wrong.subject for wrong in every} == {wrong.subject for wrong in every[:THOUSAND]}


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("crawl books --callback", "crawl"),
        ("nodes --node", "nodes list"),
        ("nodes drain --timeout", "nodes drain"),
        ("init --foo", "init"),
    ],
)
def test_a_wrong_option_names_the_help_of_its_own_command(
    sdist: Callable[..., Result], line: str, command: str
) -> None:
    sdist(*line.split()).expect(2, f"Try: sdist {command} --help")
