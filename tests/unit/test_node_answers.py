"""What the answers of many nodes come to: an exit code, and which of them count."""

from collections.abc import Collection, Sequence

import pytest

from scrapyd_dist.errors import (
    ApiRefused,
    AuthRefused,
    ConnectionRefused,
    DistError,
    NoReply,
    NothingMatched,
    StoreError,
)
from scrapyd_dist.messenger import NoMessenger
from scrapyd_dist.node_answers import answers_exit_code, without_drained
from scrapyd_dist.nodes import Node

WEB1, WEB2, WEB3 = (Node.parse(f"{name}:6800", name=name) for name in ("web1", "web2", "web3"))
ERROR = ConnectionRefused("connection refused")


@pytest.mark.parametrize(
    ("total", "errors", "code"),
    [
        (2, [], 0),
        (2, [ConnectionRefused()], 3),
        (2, [ConnectionRefused(), NoReply()], 5),
        (2, [ConnectionRefused(), AuthRefused()], 6),
        (2, [AuthRefused(), ApiRefused()], 1),
        (1, [NothingMatched()], 4),
    ],
)
def test_the_exit_code_of_a_question_to_all(total: int, errors: list[DistError], code: int) -> None:
    assert answers_exit_code(total, errors) == code


class Listener(NoMessenger):
    """Keeps what was said once."""

    def __init__(self) -> None:
        self.texts: set[str] = set()

    def say_once(self, text: str) -> None:
        self.texts.add(text)


def drained(_nodes: Sequence[Node]) -> Collection[Node]:
    return [WEB1]


def test_nodes_that_are_drained_and_silent_are_named_and_the_others_count() -> None:
    listener = Listener()
    counting = without_drained({WEB1: ERROR, WEB2: None, WEB3: ERROR}, drained, listener)
    assert counting == {WEB2: None, WEB3: ERROR}
    (line,) = listener.texts
    assert "web1" in line


def test_a_drained_node_counts_where_it_answers_or_is_the_only_one() -> None:
    listener = Listener()
    for answers in ({WEB2: None}, {WEB1: ERROR}):
        assert without_drained(answers, drained, listener) == answers
    assert listener.texts == set()


def test_where_the_store_does_not_say_who_is_drained_all_count() -> None:
    def fail(_nodes: Sequence[Node]) -> Collection[Node]:
        raise StoreError("the store does not answer")

    assert without_drained({WEB1: ERROR, WEB2: None}, fail, Listener()) == {WEB1: ERROR, WEB2: None}
