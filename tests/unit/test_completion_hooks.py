"""What is asked of the end of a crawl: enough items, and a command or an address that is told."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rig.badpeer import BadPeer, Connection
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer import completion_hooks as hooks

from scrapyd_dist.errors import ConfigError

DOCUMENT = {
    "schema": 1,
    "crawl": "easy-1",
    "spider": "easy",
    "state": "finished",
    "exit_code": 3,
    "items": 12,
}


@pytest.mark.parametrize(
    ("items", "earlier", "is_unusual"),
    [
        (100, [], False),
        (1, [1000, 1000], False),  # two are no habit
        (799, [1000, 1000, 1000], True),
        (800, [1000, 1000, 1000], False),  # a fifth less, and no more
        (999, [1000] * 20, False),
        (500, [1000, 100, 2000, 700, 1300], False),  # it always was so
        (10, [1000, 990, 1010, 1005, 995], True),
        (0, [0, 0, 0], False),
        (5000, [1000, 1000, 1000], False),
    ],
)
def test_unusually_few_items_and_fewer_than_were_asked_for(
    items: int, earlier: list[int], is_unusual: bool
) -> None:
    assert (f"{items:,} items are unusually few" in hooks.unusual(items, earlier)) is is_unusual
    assert hooks.too_few(10, 10) == hooks.too_few(0, 0) == ""
    assert hooks.too_few(1234, 5000).startswith(
        "The crawl has 1,234 items, and at least 5,000 were asked for"
    )


@pytest.mark.parametrize(
    "value", ["ftp://host/x", "file:///etc/passwd", "http://", "https://h:port/", "http:///x"]
)
def test_what_is_no_command_and_no_http_address_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="DISTRIBUTED_ON_FINISH"):
        hooks.read_on_finish(Settings({"DISTRIBUTED_ON_FINISH": value}))


@pytest.mark.parametrize(
    "text", ["", "mail -s done me", "curl ftp://host/x", "https://u:p@h:8/p?t=1", "HTTP://h/"]
)
def test_the_command_or_address_is_read(text: str) -> None:
    assert hooks.read_on_finish(Settings({"DISTRIBUTED_ON_FINISH": text})) == text
    assert hooks.read_on_finish(Settings({})) == ""


def test_a_command_gets_the_summary_and_the_variables(tmp_path: Path) -> None:
    out = tmp_path / "told.txt"
    command = f'cat > {out}; echo "$SDIST_CRAWL $SDIST_SPIDER $SDIST_STATE $SDIST_EXIT_CODE $SDIST_ITEMS" >> {out}'
    assert hooks.notify_on_finish(command, DOCUMENT) == ""
    document, _, variables = out.read_text().partition("}")
    assert json.loads(document + "}") == DOCUMENT
    assert variables.strip() == "easy-1 easy finished 3 12"


def test_a_command_that_fails_is_told_of_with_its_last_words_and_one_that_reads_nothing_does_not_fail() -> (
    None
):
    assert hooks.notify_on_finish("exec true", {**DOCUMENT, "warnings": ["x" * 100] * 5000}) == ""
    said = hooks.notify_on_finish("echo one; echo 'no such channel.' >&2; exit 7", DOCUMENT)
    assert (
        said
        == "The command of --on-finish (DISTRIBUTED_ON_FINISH) ended with code 7: no such channel."
    )
    assert "SECRET" not in hooks.notify_on_finish("false SECRET", DOCUMENT)


def test_a_command_that_never_ends_is_killed_with_all_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "late"
    said = hooks.hook_of(f"(sleep 30; touch {mark}) & sleep 30").notify(DOCUMENT, patience=0.3)
    assert "killed after 0.3 seconds" in said


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        hooks.hook_of(f"echo $$ > {tmp_path}/pid; exec sleep 30").notify(DOCUMENT)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def _drip(connection: Connection, _: bytes) -> None:
    """A head without an end."""
    connection.say(b"HTTP/1.1 200 OK\r\nX: ")
    while not connection.over:
        connection.say(b"a")
        connection.pause(0.1)


def test_an_address_gets_the_summary(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    asked: list[bytes] = []

    def play(connection: Connection, request: bytes) -> None:
        asked.append(request)
        connection.answer(204, b"")

    with closing(BadPeer(play)) as peer:
        assert (
            hooks.notify_on_finish(
                f"http://me:hush@127.0.0.1:{peer.port}/hook?token=SECRET", DOCUMENT
            )
            == ""
        )
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?token=SECRET ")
    assert b"content-type: application/json" in head.lower()
    assert b"authorization: basic" in head.lower()
    assert json.loads(body) == DOCUMENT
    assert "SECRET" not in caplog.text  # urllib3 would log it


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (lambda c, _: c.answer(500, b"no"), "it answered 500"),
        (lambda c, _: c.answer(302, b"", "Location: http://elsewhere/"), "it answered 302"),
        (lambda c, _: c.hang(), "it did not answer in time"),
        (_drip, "it did not answer in time"),
        (lambda c, _: None, "ConnectionError"),
    ],
)
def test_an_address_that_does_not_listen_is_told_of_without_its_secrets(
    play: Any, words: str
) -> None:
    with closing(BadPeer(play)) as peer:
        address = f"http://me:hush@127.0.0.1:{peer.port}/SECRET?token=SECRET"
        said = hooks.hook_of(address).notify(DOCUMENT, patience=0.3)
    assert words in said
    assert f"http://127.0.0.1:{peer.port}/… could" in said
    assert "SECRET" not in said
    assert "hush" not in said


def test_a_refusal_is_told_as_well() -> None:
    document = hooks.refusal(None, "", ConfigError("No node."))
    assert (document["state"], document["exit_code"], document["message"]) == (
        "refused",
        2,
        "No node.",
    )
    assert hooks.environment(document)["SDIST_STATE"] == "refused"
