"""What comes from nodes is printed so that it steers no terminal; JSON and --raw give it exactly."""

import json

import pytest
from scrapyd_dist.cli import output
from scrapyd_dist.cli.jobs.logs import put_line
from scrapyd_dist.cli.output import complain, harmless, one_line, put, put_json

from scrapyd_dist.joblogs.joblog import LogLines

EVIL = "a\x1b[2Jb\x07\x9bc\u202ed\r\x7f\u2066\udc80"
SHOWN = r"a\x1b[2Jb\x07\x9bc\u202ed\r\x7f\u2066\udc80"
LOG = b"2026-11-20 20:00:00 [x] INFO: \x1b[31mred\x1b[0m\t\x1b]0;title\x07 \xff\r\n"


def test_what_steers_a_terminal_is_shown_by_its_code() -> None:
    assert harmless(EVIL) == SHOWN
    assert harmless("plain ü 漢字 🙂\tand\nlines") == "plain ü 漢字 🙂\tand\nlines"
    assert one_line("a\nb\tc") == r"a\nb\tc"


def test_every_line_of_ours_goes_that_way(capsys: pytest.CaptureFixture[str]) -> None:
    put(EVIL)
    complain(EVIL)
    output.table(("name",), [[f"x\n{EVIL}"]])
    said = capsys.readouterr()
    assert said.out == f"{SHOWN}\nNAME\nx\\n{SHOWN}\n"
    assert said.err == f"sdist: {SHOWN}\n"


def test_json_is_exact_and_as_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    put_json({"name": EVIL, "tag": "\U000e0041", "plain": "ü"})
    said = capsys.readouterr().out
    assert json.loads(said) == {"schema": 1, "name": EVIL, "tag": "\U000e0041", "plain": "ü"}
    assert "ü" in said
    assert harmless(said) == said


def test_a_line_of_a_log_loses_its_colours_or_is_raw(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (line,) = LogLines().feed(LOG)
    put_line("n\x1b ", line, raw=False)
    put_line("n\x1b ", line, raw=True)
    said = capfdbinary.readouterr().out
    shown = "2026-11-20 20:00:00 [x] INFO: red\t\\x1b]0;title\\x07 \ufffd".encode()
    assert said == b"n\\x1b " + shown + b"\n" + b"n\\x1b " + LOG
