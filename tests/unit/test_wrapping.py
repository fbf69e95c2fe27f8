"""Paragraphs are wrapped between words, and commands stay whole."""

import sys
from unittest.mock import MagicMock

import pytest
from scrapyd_dist.cli import output
from scrapyd_dist.cli.wrapping import wrap

NOTE = "  Note: the nodes take what they get and go on with it until the end of the crawl comes."


def test_a_line_goes_on_under_its_beginning_and_none_is_too_long() -> None:
    lines = wrap(f"Heading\n{NOTE}", 40).split("\n")
    assert lines[:2] == ["Heading", "  Note: the nodes take what they get and"]
    assert all(line.startswith("    ") for line in lines[2:])
    assert max(map(len, lines)) <= 40
    assert " ".join(" ".join(lines).split()) == " ".join(f"Heading {NOTE}".split())


def test_a_command_and_a_url_are_not_divided() -> None:
    text = "It is kept; see `sdist status easy-1` and go on with: sdist resume easy-1 --new-code"
    lines = wrap(text, 36).split("\n")
    assert any("`sdist status easy-1`" in line for line in lines)
    assert lines[-1].endswith("with: sdist resume easy-1 --new-code")
    long = "sdist crawl easy --pull -a start=http://127.0.0.1:35023/index.html -o again.jl"
    for text in (f"Try:\n  {long}", f"The next one is: {long}", f"It is `{long}`, or another"):
        assert long in wrap(text, 40)
    url = "http://example.com/" + "a" * 90
    assert url in wrap(f"This page could not be fetched: {url} twice", 40).split("\n")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_gets_wrapped_lines(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    stream = MagicMock(isatty=lambda: is_terminal, fileno=lambda: 2)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("os.get_terminal_size", lambda _: MagicMock(columns=40))
    output.say(NOTE)
    written = "".join(call.args[0] for call in stream.write.call_args_list)
    assert (written.count("\n") > 1) == is_terminal
