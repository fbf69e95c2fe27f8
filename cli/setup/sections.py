"""Sections of scrapy.cfg that are to be written, as text; rule: what the file says already stays, byte by byte.

No password is ever part of such a text: it names a variable of the environment in its place.
"""

from __future__ import annotations

import configparser
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapyd_dist.nodes import Node

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9-]*\Z")
_NO_NAMES = {"localhost", "www"}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A node that is to be a target."""

    name: str
    node: Node
    username: str | None = None
    project: str | None = None

    @property
    def variable(self) -> str:
        """The environment variable that its password is looked up in."""
        return f"SDIST_{re.sub('[^A-Z0-9]+', '_', self.name.upper())}_PASSWORD"

    def lines(self) -> list[str]:
        """Its section."""
        # Both Scrapy and scrapyd-client read the file with interpolation, and expand variables.
        url = self.node.url.replace("$", "%24").replace("%", "%%")
        lines = [f"[deploy:{self.name}]", f"url = {url}/"]
        if self.project:
            lines.append(f"project = {self.project}")
        if self.username:
            lines += [f"username = {self.username.replace('%', '%%')}", f"password = ${self.variable}"]
        return lines


def named(texts: Sequence[str], names: Sequence[str], taken: Iterable[str]) -> list[Wanted]:
    """The targets that addresses stand for; those without a name are called after their host, or by a number.

    Raises:
        ConfigError: an address or a name is none, or has a password in it.
    """
    from scrapyd_dist.nodes import Node

    if len(names) > len(texts):
        raise ConfigError(f"There are {len(names)} names (--name) for {len(texts)} nodes (--node).")
    used, found = set(taken), []
    for place, text in enumerate(texts):
        node = Node.parse(text)
        if node.password:
            raise ConfigError(
                f"Leave the password out of the address of {node.name}: everybody on this machine could read it, and "
                "scrapy.cfg is no place for it. With the user name alone (user@host:port), sdist writes a line that "
                "takes the password from the environment; without any, ~/.netrc is asked."
            )
        name = names[place] if place < len(names) else free_name(node, used)
        used.add(name)
        found.append(Wanted(name=check_name(name), node=node, username=node.username))
    doubled = {one.name for one in found if sum(other.name == one.name for other in found) > 1}
    if doubled:
        raise ConfigError(f"Two nodes cannot have the same name: {', '.join(sorted(doubled))}.")
    return found


def check_name(name: str) -> str:
    """A target's name, if it is one.

    Raises:
        ConfigError: it is not.
    """
    if not _NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot name a target: letters, digits, dot, - and _ can, and a letter or digit first."
        )
    return name


def free_name(node: Node, used: Iterable[str]) -> str:
    """What to call a node: the first label of its host, where that says something; else node1, node2 and so on."""
    taken = set(used)
    host = (urlsplit(node.url).hostname or "").split(".")[0]
    if _LABEL.match(host) and host not in _NO_NAMES and host not in taken:
        return host
    return next(name for number in range(1, len(taken) + 2) if (name := f"node{number}") not in taken)


def sort_out(wanted: Iterable[Wanted], targets: Sequence[Node]) -> tuple[list[Wanted], list[Wanted]]:
    """Those that are new, and those that scrapy.cfg has already.

    Raises:
        ConfigError: a name is that of another node.
    """
    new: list[Wanted] = []
    there: list[Wanted] = []
    for one in wanted:
        same = next((node for node in targets if node.name == one.name), None)
        if same is not None and same != one.node:
            raise ConfigError(
                f"scrapy.cfg has a target [deploy:{one.name}] with another url, {same}. Nothing was written. Give the "
                "new one another name with --name, or change the url there by hand."
            )
        (there if one.node in [*targets, *(other.node for other in new)] else new).append(one)
    return new, there


def appended(text: str, wanted: Sequence[Wanted]) -> str:
    """The text of scrapy.cfg with the sections behind it.

    Raises:
        ConfigError: together they would not be a configuration file.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    before = text if not text or text.endswith(("\n", "\r")) else text + end
    blocks = [end.join(one.lines()) + end for one in wanted]
    whole = before + "".join((end if before or place else "") + block for place, block in enumerate(blocks))
    try:
        configparser.ConfigParser(interpolation=None).read_string(whole)
    except configparser.Error as error:
        # Not chained: its text may quote a line with a password.
        raise ConfigError(
            f"scrapy.cfg would not be readable any more ({type(error).__name__}). Nothing was written."
        ) from None
    return whole
