"""The five fields of cron: what is refused is what cron refuses, and systemd gets the same times."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from scrapyd_dist.cli.setup.cronfields import read

from scrapyd_dist.errors import ConfigError

GOOD = [
    ("0 6 * * *", ["*-*-* 06:00:00"]),
    ("@hourly", ["*-*-* *:00:00"]),
    ("*/15 * * * *", ["*-*-* *:00,15,30,45:00"]),
    ("0 0 1 1 *", ["*-01-01 00:00:00"]),
    ("5 4 * * sun", ["Sun *-*-* 04:05:00"]),
    ("5 4 * * 7", ["Sun *-*-* 04:05:00"]),
    ("0 8-18/2 * JAN,mar 1-5", ["Mon..Fri *-01,03-* 08,10,12,14,16,18:00:00"]),
    ("0 0 * * 5,6,0", ["Fri..Sun *-*-* 00:00:00"]),
    ("0 0 * * 0-7", ["*-*-* 00:00:00"]),
    # Of a day of the month and a day of the week, one will do ...
    ("0 12 1-7 * mon", ["*-*-01..07 12:00:00", "Mon *-*-* 12:00:00"]),
    # ... unless one of them begins with a star.
    ("0 12 */10 * mon", ["Mon *-*-01,11,21,31 12:00:00"]),
    ("59 23 29 2 *", ["*-02-29 23:59:00"]),
]


@pytest.mark.parametrize(("text", "expected"), GOOD, ids=[text for text, _ in GOOD])
def test_times_are_translated_for_systemd(text: str, expected: list[str]) -> None:
    assert read(text).on_calendar() == expected


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_takes_the_expressions() -> None:
    every = [expression for _, expressions in GOOD for expression in expressions]
    done = subprocess.run(["systemd-analyze", "calendar", *every], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 6 * *", "4 fields"),
        ("", "0 fields"),
        ("@reboot", "1 fields"),
        ("60 6 * * *", "minute '60'"),
        ("0 24 * * *", "hour '24'"),
        ("0 0 0 * *", "day of the month '0'"),
        ("0 0 * 13 *", "month '13'"),
        ("0 0 * foo *", "month 'foo'.*jan to dec"),
        ("0 0 * * 8", "day of the week '8'"),
        ("5/15 * * * *", "minute '5/15'.*range"),
        ("*/0 * * * *", "no step"),
        ("30-10 * * * *", "backwards"),
        ("1,,2 * * * *", "minute '1,,2'"),
        ("-5 * * * *", "minute '-5'"),
        ("0 0 31 feb,4 *", "never comes"),
        ("0 0 30 2 *", "never comes"),
    ],
)
def test_what_is_no_time_is_refused_with_its_field(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(text)
