"""`sdist init`: writes a project's nodes into its scrapy.cfg; lines that are there already stay."""

import configparser
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from scrapyd_dist.config import ProjectConfig, find_root, load, write_file
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.nodes import Node

from .context import Context, project_name
from .node_status import TIMEOUT, look
from .options import Timeout, option
from .output import Output, can_ask, complain, put, say

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9-]*\Z")
_NO_NAMES = {"localhost", "www"}


def variable(node: Node) -> str:
    """The environment variable that a node's password is looked up in."""
    return f"SDIST_{re.sub('[^A-Z0-9]+', '_', node.name.upper())}_PASSWORD"


def section(node: Node) -> list[str]:
    """The lines that make a node a target."""
    # Both Scrapy and scrapyd-client read the file with interpolation, and expand variables.
    lines = [f"[deploy:{node.name}]", f"url = {node.url.replace('$', '%24').replace('%', '%%')}/"]
    if node.project:
        lines.append(f"project = {node.project}")
    if node.username:
        lines += [f"username = {node.username.replace('%', '%%')}", f"password = ${variable(node)}"]
    return lines


def named(texts: Sequence[str], names: Sequence[str], taken: Iterable[str]) -> list[Node]:
    """The nodes that addresses stand for; those without a name are called after their host, or by a number."""
    if len(names) > len(texts):
        raise ConfigError(f"There are {len(names)} names (--name) for {len(texts)} nodes (--node).")
    used, found = set(taken), []
    for place, text in enumerate(texts):
        node = Node.parse(text)
        if node.password:
            raise ConfigError(
                f"Leave the password out of the address of {node.name}: every user of this machine could read it, and "
                "scrapy.cfg is no place for it. With the user name alone (user@host:port), sdist writes a line that "
                "takes the password from the environment; without any, ~/.netrc is asked."
            )
        name = names[place] if place < len(names) else free_name(node, used)
        used.add(name)
        found.append(replace(node, name=check_name(name)))
    doubled = {one.name for one in found if sum(other.name == one.name for other in found) > 1}
    if doubled:
        raise ConfigError(f"Two nodes cannot have the same name: {', '.join(sorted(doubled))}.")
    return found


def check_name(name: str) -> str:
    """The name, unless it cannot name a target: that is a ConfigError."""
    if not _NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot name a target: letters, digits, dot, - and _ can, and a letter or digit first."
        )
    return name


def free_name(node: Node, used: Iterable[str]) -> str:
    """What to call a node: the first label of its host, where that says something; else node1, node2 and so on."""
    taken = set(used)
    host = node.host.split(".")[0]
    if _LABEL.match(host) and host not in _NO_NAMES and host not in taken:
        return host
    return next(
        name for number in range(1, len(taken) + 2) if (name := f"node{number}") not in taken
    )


def sort_out(
    wanted: Iterable[Node], targets: Sequence[Node], names: Sequence[str] = ()
) -> tuple[list[Node], list[Node]]:
    """Those that are new, and those that scrapy.cfg has already.

    Refused are a name of another node, and one of `names`, which were asked for, for a node that has a name.
    """
    new: list[Node] = []
    there: list[Node] = []
    for one in wanted:
        known = next((node for node in targets if node == one), None)
        if known is not None and known.name != one.name and one.name in names:
            raise ConfigError(
                f"scrapy.cfg has {one.url} already, as [deploy:{known.name}]. Nothing was written. To call it"
                f" {one.name}, change the name there by hand; or leave --name out."
            )
        same = next((node for node in targets if node.name == one.name), None)
        if same is not None and same != one:
            raise ConfigError(
                f"scrapy.cfg has a target [deploy:{one.name}] with another url, {same}. Nothing was written. Give the "
                "new one another name with --name, or change the url there by hand."
            )
        (there if one in [*targets, *new] else new).append(one)
    return new, there


def appended(text: str, wanted: Sequence[Node]) -> str:
    """The text of scrapy.cfg with the sections behind it; ConfigError if that would be no configuration file."""
    end = "\r\n" if "\r\n" in text else "\n"
    before = text if not text or text.endswith(("\n", "\r")) else text + end
    blocks = [end.join(section(one)) + end for one in wanted]
    whole = before + "".join(
        (end if before or place else "") + block for place, block in enumerate(blocks)
    )
    try:
        configparser.ConfigParser(interpolation=None).read_string(whole)
    except configparser.Error as error:
        # Not chained: its text may quote a line with a password.
        raise ConfigError(
            f"scrapy.cfg would not be readable any more ({type(error).__name__}). Nothing was written."
        ) from None
    return whole


def init(
    *,
    node: Annotated[
        list[str] | None,
        option(
            "A node: web1:6800, or a URL, with user@ but no password; repeatable.",
            metavar="ADDRESS",
        ),
    ] = None,
    name: Annotated[
        list[str] | None, option("The node's name, in the order of --node; else after its host.")
    ] = None,
    project: Annotated[
        str | None,
        option(
            "Scrapyd's name of the project; else that of [deploy], or BOT_NAME.", "--project", "-p"
        ),
    ] = None,
    node_conf: Annotated[
        bool, option("Print a scrapyd.conf for a node, and do nothing else.")
    ] = False,
    dry_run: Annotated[bool, option("Print the lines that would be added.")] = False,
    output: Output,
    timeout: Timeout = TIMEOUT,
) -> int:
    """Write the nodes of this project into its scrapy.cfg.

    What the file has stays as it is; sections are added behind it, and each node
    is asked once whether it answers. Without --node it asks, on a terminal. A
    password is never written: a node with a user name gets a line that takes it
    from an environment variable, others can have an entry in ~/.netrc. A node that
    does not answer yet is written all the same.

    Example: sdist init --node web1.example.com:6800 --node https://crawler@web2.example.com/scrapyd/
    """
    if node_conf:  # with a comment for each thing that is chosen there
        put(
            files("scrapyd_dist.deploy")
            .joinpath("node.conf")
            .read_text(encoding="utf-8")
            .rstrip("\n")
        )
        return 0
    if find_root() is None:
        raise ConfigError(
            f"There is no scrapy.cfg in {Path.cwd()} or in a folder above it. Go to the folder of your Scrapy project, "
            "or make one: scrapy startproject myproject, then cd myproject. (`sdist demo` needs none; a configuration "
            "for a node is printed anywhere by `sdist init --node-conf`.)"
        )
    found = load()
    new, there = _wanted(found, node or [], name or [], project)
    file = found.root / "scrapy.cfg"
    if dry_run:
        for one in new:
            put("\n".join([*section(one), ""]))
        if not new:
            say(f"{file} has all of these already.")
        return 10 if new else 0
    if new:
        place = file.resolve()
        try:
            text = appended(place.read_bytes().decode("utf-8"), new)  # line ends as they are
            write_file(place, text.encode("utf-8"), mode=place.stat().st_mode & 0o777)
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be written: {error.strerror}. Nothing was changed."
            ) from error
    _tell(file, new, there, timeout, output)
    return 0


def _wanted(
    found: ProjectConfig, addresses: Sequence[str], names: Sequence[str], project: str | None
) -> tuple[list[Node], list[Node]]:
    taken = [node.name for node in found.targets]
    if not addresses:
        if not can_ask():
            raise ConfigError(
                "Name the nodes: sdist init --node web1:6800 --node web2:6800. (On a terminal it asks for them. No "
                "node yet? `sdist nodes up 3` starts some on this machine, `sdist init --node-conf` prints a "
                "configuration.)"
            )
        addresses, names = _asked(taken)
    new, there = sort_out(named(addresses, names, taken), found.targets, names)
    chosen = (
        project if project != found.project else None
    )  # where [deploy] says it, a new section need not
    if new and project is None and not found.project:
        try:
            chosen = project_name(found, found.targets, None)
        except ConfigError as error:
            complain(f"{error} The sections are written without a line `project = NAME`.")
    return [replace(one, project=chosen) for one in new], there


def _asked(taken: Sequence[str]) -> tuple[list[str], list[str]]:
    addresses: list[str] = []
    names: list[str] = []
    say(
        "Addresses of your Scrapyd nodes: host:port, or a URL, with user@ where there is a password. "
        "An empty line ends."
    )
    while text := _answer(f"Node {len(addresses) + 1}: "):
        try:
            (one,) = named([text], [], [*taken, *names])
            names.append(check_name(_answer(f"  its name [{one.name}]: ") or one.name))
        except DistError as error:
            say(f"  {error}")
        else:
            addresses.append(text)
    if not addresses:
        raise ConfigError("No node was named, and nothing was written.")
    return addresses, names


def _answer(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _tell(
    file: Path, new: Sequence[Node], there: Sequence[Node], timeout: float, output: Output
) -> None:
    """Ask each node once, and say what was written and what comes next."""
    context = Context(file.parent)
    added = [one.name for one in new]
    nodes = [node for node in context.project.targets if node.name in added or node in there]
    seen = look(context.sender, nodes, None, timeout)
    rows = [
        {
            "name": one.node.name,
            "url": one.node.url,
            "written": one.node.name in added,
            "state": one.short or "up",
        }
        for one in seen
    ]
    output.table(
        {"file": str(file), "added": added, "nodes": rows},
        ("node", "url", "scrapy.cfg", "state"),
        [
            (row["name"], row["url"], "written" if row["written"] else "as before", row["state"])
            for row in rows
        ],
    )
    for one in new:
        if one.username and not os.environ.get(variable(one)):
            say(
                f"{one.name}: its password is taken from the environment variable {variable(one)}, which is not set "
                "here. Or remove the lines username and password, and give the host an entry in ~/.netrc."
            )
    context.note_unused_nodes()
    say(
        "Next: sdist doctor looks at the nodes; sdist deploy --all uploads the project; "
        "sdist crawl SPIDER crawls with them."
    )
