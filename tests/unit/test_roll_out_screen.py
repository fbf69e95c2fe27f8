"""How far a roll-out is, what came of it in words, and its exit code; no node is asked."""

import json
from typing import Any

import pytest
from scrapyd_dist.cli.nodes import roll_out_screen
from scrapyd_dist.cli.output import Output
from scrapyd_dist.deploy.rollout import BrokenEggError, NodeResult, RollOut, RollOutRequest, Step

from scrapyd_dist.errors import (
    AuthRefused,
    ConnectionRefused,
    DistError,
)
from scrapyd_dist.nodes import Node

A, B, C = (
    Node.parse(f"{host}:6800", name=name)
    for host, name in (("a", "web-a"), ("b", "web-b"), ("c", "eu 1"))
)
Captured = pytest.CaptureFixture[str]
GOOD: dict[str, Any] = {"version": "v2", "default": "v2", "spiders": ("one",)}


def failed(node: Node, error: DistError) -> NodeResult:
    return NodeResult(node=node, error=error)


def test_without_a_terminal_the_bar_is_a_line_for_each_node_that_is_done(capsys: Captured) -> None:
    for shown in (False, True):
        with roll_out_screen.bar(2, shown=shown) as note:
            for step in (Step.ASKING, Step.UPLOADING, Step.RETRYING, Step.CHECKING, Step.UPLOADED):
                note(A, step)
            note(B, Step.FAILED)
            note(A, Step.UNDONE)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "1 of 2: web-a uploaded",
        "2 of 2: web-b failed",
        "web-a undone",
    ]
    assert said.out == ""


def test_on_a_terminal_it_is_drawn(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_out_screen, "on_terminal", lambda: True)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with roll_out_screen.bar(2, shown=True) as note:
        note(A, Step.UPLOADED)
        note(B, Step.UPLOADING)
    said = capsys.readouterr()
    assert "1/2" in said.err
    assert "web-b uploading" in said.err
    assert said.out == ""


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([NodeResult(node=A, uploaded=True, **GOOD), NodeResult(node=B, **GOOD)], 0),
        ([NodeResult(node=A, **GOOD), failed(B, ConnectionRefused.at("b"))], 3),
        ([failed(A, ConnectionRefused.at("a")), failed(B, ConnectionRefused.at("b"))], 5),
        ([failed(A, AuthRefused.at("a"))], 6),
        ([failed(A, BrokenEggError(A, "broken"))], 1),
        ([NodeResult(node=A, undone=True), failed(B, BrokenEggError(B, "broken"))], 1),
        ([NodeResult(node=A, **GOOD), NodeResult(node=B, version="v2", planned=True)], 10),
        ([NodeResult(node=A, **GOOD), NodeResult(node=B, **{**GOOD, "spiders": ("two",)})], 3),
    ],
)
def test_exit_codes(entries: list[NodeResult], code: int) -> None:
    assert roll_out_screen.roll_out_exit_code(RollOut(entries)) == code


def test_json(capsys: Captured) -> None:
    entries = (NodeResult(node=A, uploaded=True, **GOOD), failed(B, ConnectionRefused.at("b")))
    roll_out_screen.print_result(
        RollOut(entries), "shop", RollOutRequest(), Output(as_json=True), quiet=False
    )
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["project"], document["version"]) == (1, "shop", "v2")
    assert [(row["state"], row["spiders"]) for row in document["nodes"]] == [
        ("uploaded", 1),
        ("failed", None),
    ]


@pytest.mark.parametrize(
    ("entries", "quiet", "said"),
    [
        ([failed(one, BrokenEggError(one, "it is broken")) for one in (A, B)], False,
         "web-a, web-b: it is broken"),
        ([NodeResult(node=A, **{**GOOD, "default": "r9"})], False, "on web-a Scrapyd sorts r9 behind this version"),
        ([NodeResult(node=A, **{**GOOD, "default": "r9"})], True, "Scrapyd sorts r9 behind this version"),
        ([NodeResult(node=A, **{**GOOD, "default": "r9"})], True, "a name that sorts last, or without --version"),
        ([NodeResult(node=A, **GOOD), NodeResult(node=B, **{**GOOD, "spiders": ()})], True, "web-a: one; web-b: none"),
        ([NodeResult(node=A, uploaded=True, stays="job x uses it", **GOOD), failed(B, AuthRefused.at("b"))], True,
         "web-a was not undone: job x uses it."),
    ],
)  # fmt: skip
def test_what_has_to_be_known_is_said_once(
    capsys: Captured, entries: list[NodeResult], quiet: bool, said: str
) -> None:
    roll_out_screen.print_result(
        RollOut(entries), "shop", RollOutRequest(atomic=True), Output(), quiet=quiet
    )
    assert capsys.readouterr().err.count(said) == 1
