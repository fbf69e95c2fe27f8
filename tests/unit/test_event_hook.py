"""A command that is told of an event: what it is given, and what others can see of it."""

import os
from pathlib import Path

import pytest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.transports.event_hook import EventHook


def told(command: str, folder: Path) -> str:
    """What went wrong with this command, which runs in `folder`."""
    hook = EventHook(target=f"cd '{folder}'; {command}", option="--on-finish", event="the end")
    return hook.notify({"items": 3}, {"SDIST_ITEMS": "3"})


def test_the_text_of_a_command_is_in_no_argument_and_its_programs_do_not_get_it(
    tmp_path: Path,
) -> None:
    seen = "cat /proc/$$/cmdline > arguments; env > environment; cat > given; echo $SDIST_ITEMS > items"
    assert told(f"SECRET=hush; {seen}", tmp_path) == ""
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert (b"hush" in files["arguments"], b"hush" in files["environment"]) == (False, False)
    assert b"SDIST_HOOK" not in files["environment"]
    assert (files["given"], files["items"]) == (b'{"items": 3}', b"3\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a program as another user")
def test_another_user_sees_nothing_of_a_command_s_text(tmp_path: Path) -> None:
    other = "setpriv --reuid 54321 --regid 54321 --clear-groups cat"
    seen = (
        f"{other} /proc/$$/cmdline >arguments; {other} /proc/$$/environ >environment 2>refusal;"
        " setpriv --reuid 54321 --regid 54321 --clear-groups ps -ef >processes"
    )
    assert told(f"SECRET=hush; {seen}", tmp_path) == ""
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert "sdist_hook_text" in files["arguments"]
    assert "sdist_hook_text" in files["processes"]
    assert "Permission denied" in files["refusal"]
    for text in files.values():
        assert "SECRET=hush" not in text


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("exit 4", "ended with code 4"), ("true\nfalse", "ended with code 1"), ("echo 'a  b' c >&2; exit 3", "a  b c"),
        ("(", "ended with code 2"), ("set -e; false; true", "ended with code 1"), ("exec false", "ended with code 1"),
        ('set -- x; test "$1" = x', ""), ('test "$#" = 0', ""), ("cat <<END >/dev/null\n$HOME\nEND", ""),
    ],
)  # fmt: skip
def test_a_command_runs_as_a_shell_has_it(tmp_path: Path, command: str, wrong: str) -> None:
    said = told(command, tmp_path)
    assert wrong in said
    assert bool(said) == bool(wrong)


@pytest.mark.parametrize("address", ["http://:80/x", "https:///x", "http://shop:99999/"])
def test_an_address_without_a_host_is_refused(address: str) -> None:
    hook = EventHook(target=address, option="--on-finish", event="the end")
    with pytest.raises(ConfigError, match="no host, or a port that is none"):
        hook.check()
