"""`sdist nodes api`: one call to one node, with its user name and password, as it is."""

import json
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from scrapyd_dist.errors import (
    ConfigError,
    ConnectionLost,
    ConnectionRefused,
    ConnectTimeout,
    HostNotFound,
    NoNodeReachable,
    NoReply,
)
from scrapyd_dist.nodes import Node, names_of
from scrapyd_dist.scrapyd.api import Call
from scrapyd_dist.scrapyd.reply import Reply, document

from ..context import Context
from ..options import PATIENCE, argument, nodes, one_of, option
from ..output import put_values

#: Scrapyd's endpoints that change nothing
ASKED = ("daemonstatus", "listprojects", "listversions", "listspiders", "listjobs", "status")
#: those that change something and want POST
POSTED = ("schedule", "cancel", "addversion", "delversion", "delproject")
#: an endpoint by its URL, as curl wants it
_ENDPOINT = re.compile(r"(?P<node>https?://.+)/(?P<name>\w+)\.json(?:\?(?P<query>.*))?\Z")
_UNREACHED = (ConnectionRefused, HostNotFound, ConnectTimeout, NoReply, ConnectionLost)


def api(
    context: Context,
    node: Annotated[
        str, argument("NODE", "A node's name, its address, or the endpoint's whole URL.", nodes)
    ],
    endpoint: Annotated[
        str | None,
        argument("ENDPOINT", "Such as listjobs.json, or just listjobs.", one_of(*ASKED, *POSTED)),
    ] = None,
    parameter: Annotated[
        list[str] | None, argument("NAME=VALUE", "Parameters; NAME=@FILE uploads a file.")
    ] = None,
    data: Annotated[
        list[str] | None, option("A parameter, as curl has it.", "-d", metavar="NAME=VALUE")
    ] = None,
    post: Annotated[bool, option("Send POST; that of Scrapyd's endpoints is known.")] = False,
    timeout: Annotated[float, option("Seconds for all of it.", min=0.1, max=PATIENCE)] = 60.0,
) -> None:
    """Call an endpoint of one node, and print the JSON that it answers.

    The node's user name, password and certificate are taken from scrapy.cfg. A
    refusal (`status: error`) is exit code 1, no answer 5. What Scrapyd loses without a
    word, such as an argument of more than 128 KiB, is not checked here.

    Example: sdist nodes api node1 listversions project=properties
    Example: sdist nodes api http://web1:6800/listjobs.json project=properties
    """
    words = list(parameter or [])
    if endpoint is not None:
        words.insert(0, endpoint)
    if found := _ENDPOINT.match(node):
        node = found["node"]
        query = filter(None, (found["query"] or "").split("&"))
        words = [found["name"], *query, *words]
    if not words:
        raise ConfigError(f"Which endpoint of {node}? As in: sdist nodes api {node} listjobs")
    call = _call(words[0], [*words[1:], *(data or [])], post=post)
    try:
        answer = context.sender.send(_node(context, node), call, timeout=timeout)
    except _UNREACHED as error:
        raise NoNodeReachable(str(error)) from error
    put_values(json.dumps(answer, indent=2, ensure_ascii=False))


def _node(context: Context, text: str) -> Node:
    found = context.nodes([text])
    if len(found) > 1:
        raise ConfigError(
            f"{text!r} is {len(found)} nodes, and a call goes to one: {names_of(found)}."
        )
    return found[0]


def _call(endpoint: str, parameters: list[str], *, post: bool) -> Call[dict[str, Any]]:
    name = endpoint.strip("/").removesuffix(".json")
    if not name:
        raise ConfigError(
            "The endpoint is empty. Scrapyd has daemonstatus, listjobs, listversions, status and "
            "others."
        )
    pairs: list[tuple[str, str]] = []
    upload: tuple[str, str, bytes] | None = None
    for text in parameters:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"{text!r} is not of the form NAME=VALUE, as in project=properties.")
        if not value.startswith("@"):
            pairs.append((key, value))
        elif upload is None:
            upload = _upload(key, Path(value[1:]))
        else:
            raise ConfigError("One call uploads one file.")
    path = f"{quote(name)}.json"
    if post or upload is not None or name in POSTED:
        return Call(path=path, method="POST", data=tuple(pairs), upload=upload, read=_values)
    return Call(path=path, method="GET", params=tuple(pairs), read=_values)


def _upload(key: str, path: Path) -> tuple[str, str, bytes]:
    """Return a file as a call has it: the parameter, the file's name, what is in it."""
    try:
        return key, path.name, path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error


def _values(reply: Reply) -> dict[str, Any]:
    return dict(document(reply).values)
