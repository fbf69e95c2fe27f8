"""A job is sent with what was known of the throttle's rules, also after the store has lost them."""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from rig.nodemodel import ModelNode, model
from rig.scheduling import SPEC, Bench, leasing, reach, sending, until
from rig.throttled import empty_throttle_tables

from scrapyd_dist.nodes import Node
from scrapyd_dist.scheduling import rules_watch
from scrapyd_dist.store import open_store
from scrapyd_dist.store.reach import Way
from scrapyd_dist.throttle.known_rules import KnownRules
from scrapyd_dist.throttle.permits import DomainLook, Rule, Rules

Work = Callable[..., AbstractAsyncContextManager[Bench]]
PUSH: Work = partial(sending, spec=replace(SPEC, ways=reach))
BOTH = pytest.mark.parametrize("work", [PUSH, leasing], ids=["push", "pull"])
RULE = Rule(hits=10, window=2.0)


def _rules_told(one: ModelNode) -> list[object]:
    """What each job was told of the rules, in the order of the posts."""
    return [one.jobs[job].told.get("rules") for job in one.posts]


async def _post_one_more(b: Bench, one: ModelNode) -> None:
    posts = len(one.posts)
    if b.scheduler.state.leases:
        b.add(2)
    else:
        await b.seal()
    await until(lambda: len(one.posts) > posts, "one job more")


@BOTH
async def test_a_job_knows_the_rules_that_the_store_has_lost(
    tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rules_watch, "LOOK", 0.0)
    one = model("one", quick=False, slots=4)
    async with work(tmp_path, one) as b:
        await _post_one_more(b, one)
        b.store.change_rules({"a.example": RULE, "b.example": RULE})
        watch = b.scheduler.state.rules
        await until(lambda: watch.known.version == 1, "the rules are read")
        await _post_one_more(b, one)
        with caplog.at_level(logging.ERROR):
            empty_throttle_tables(tmp_path / "store.db")
            await until(lambda: watch._is_lost, "the loss is seen")
        await _post_one_more(b, one)
        known = {"version": 1, "domains": ["a.example", "b.example"]}
        assert _rules_told(one) == [None, known, known]
        assert "lost the throttle's rules for a.example, b.example" in caplog.text
        b.store.change_rules({"a.example": RULE, "b.example": RULE})
        await until(lambda: not watch._is_lost, "they are set again")


@BOTH
async def test_a_process_that_goes_on_knows_the_rules_that_were_lost_before_it_began(
    tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rules_watch, "LOOK", 0.0)
    file = tmp_path / "rules.json"
    one = model("one", quick=False, slots=4)
    async with work(tmp_path, one, rules_file=file) as b:
        b.store.change_rules({"a.example": RULE, "b.example": RULE})
        await until(lambda: b.scheduler.state.rules.known.version == 1, "the rules are read")
    empty_throttle_tables(tmp_path / "store.db")
    with closing(open_store(tmp_path / "store.db")) as store:
        store.change_rules({"c.example": RULE})  # it has as high a version again
    async with work(tmp_path, one, rules_file=file) as b:
        await until(lambda: b.scheduler.state.rules._is_lost, "the loss is seen")
        await _post_one_more(b, one)
        assert _rules_told(one)[-1] == {"version": 1, "domains": ["a.example", "b.example"]}
        assert "lost the throttle's rules for a.example, b.example" in caplog.text


@pytest.mark.parametrize("content", [None, b"", b"[1]", b'{"version": 1}', b'{"domains": 2}'])
def test_a_file_that_says_nothing_is_as_good_as_none(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "rules.json"
    if content is not None:
        file.write_bytes(content)
    assert rules_watch.RulesWatch(store=Mock(), file=file).known == KnownRules()


async def test_a_rule_that_goes_between_two_questions_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rules_watch, "LOOK", 0.0)
    both = {"a.example": RULE, "b.example": RULE}
    answers: list[object] = [
        DomainLook(version=1, changed=frozenset()),
        Rules(version=1, rules=both),
        DomainLook(version=2, changed=frozenset({"c.example"})),
        Rules(version=3, rules={"b.example": RULE}),
    ]

    async def answer(*_: object) -> object:
        return answers.pop(0)

    watch = rules_watch.RulesWatch(store=Mock(side_effect=answer))
    await watch.follow()
    await watch.follow()
    assert caplog.text == ""
    assert watch.known.version == 1, "it asks for all that has changed since, the next time"


async def test_a_rule_that_was_removed_is_known_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules_watch, "LOOK", 0.0)
    one = model("one", quick=False)
    async with PUSH(tmp_path, one) as b:
        watch = b.scheduler.state.rules
        b.store.change_rules({"a.example": RULE})
        await until(lambda: watch.known.version == 1, "the rule is read")
        b.store.change_rules({"a.example": None})
        await until(lambda: watch.known.version == 2, "its end is read")
        await _post_one_more(b, one)
        assert _rules_told(one) == [None]


async def test_a_job_that_does_not_reach_the_store_is_told_of_no_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_way(_: Node) -> Way:
        return Way(reason="it is elsewhere")

    monkeypatch.setattr(rules_watch, "LOOK", 0.0)
    one = model("one", quick=False)
    async with sending(tmp_path, one, spec=replace(SPEC, ways=no_way)) as b:
        b.store.change_rules({"a.example": RULE})
        await until(lambda: b.scheduler.state.rules.known.version == 1, "the rule is read")
        await _post_one_more(b, one)
        assert _rules_told(one) == [None]
