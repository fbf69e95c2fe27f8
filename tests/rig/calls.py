"""Calls to peers of this machine, and what their failures must look like."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from scrapyd_dist.errors import NodeError
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.transports import Sender

from .badpeer import Connection, Play

PASSWORD = "hush-hush/42:@"
#: seconds that a test waits for a time-out to pass
SHORT = 1.5
#: the call that matters: it must not be sent twice
JOB = api.schedule("p", "s", jobid="c.b1.a1", settings={"A": "1"})


def node_at(port: int, scheme: str = "http", **options: Any) -> Node:
    """The node at that port of this machine; options are those of `Node.parse`."""
    url = f"{scheme}://127.0.0.1:{port}/base/"
    return Node.parse(url, name="one", username="me", password=PASSWORD, **options)


def failure(sender: Sender, node: Node, call: Call[Any], timeout: float = 20) -> NodeError:
    """The error of a call; whatever it is, it begins with the node and does not show the password."""
    with pytest.raises(NodeError) as caught:
        sender.send(node, call, timeout=timeout)
    error = caught.value
    assert str(error).startswith(f"{node}: ")
    assert PASSWORD not in str(error)
    assert "hush" not in str(error)
    return error


def says(status_code: int = 200, **values: Any) -> Play:
    """A play: the values as a JSON reply."""
    return lambda connection, _: connection.answer(status_code, json.dumps(values).encode())


def steps(*doings: Callable[[Connection], None]) -> Play:
    """A play: one thing after the other."""

    def play(connection: Connection, _: bytes) -> None:
        for do in doings:
            do(connection)

    return play
