"""`sdist init`: writes a project's nodes into its scrapy.cfg; lines that are there already stay."""

import configparser
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from scrapyd_dist.config import ProjectConfig, find_root, load, write_file
from scrapyd_dist.errors import ConfigError, DistError
from scrapyd_dist.fleet.node_poll import TIMEOUT, poll_nodes
from scrapyd_dist.nodes import Node
from scrapyd_dist.project_names import project_name

from .context import Context
from .options import DIFFERENT, Timeout, option
from .output import Output, can_ask, complain, put, say
from .poll_progress import shown_answers

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9-]*\Z")
_NO_NAMES = {"localhost", "www"}


def variable(node: Node) -> str:
    """Return the environment variable that a node's password is looked up in."""
    name = re.sub("[^A-Z0-9]+", "_", node.name.upper())
    if name == "WEB":  # SDIST_WEB_PASSWORD is what `sdist web` asks its visitors for
        name = "NODE_WEB"
    return f"SDIST_{name}_PASSWORD"


def section(node: Node) -> list[str]:
    """Return the lines of scrapy.cfg that make a node a target."""
    # Both Scrapy and scrapyd-client read the file with interpolation, and expand variables.
    lines = [f"[deploy:{node.name}]", f"url = {node.url.replace('$', '%24').replace('%', '%%')}/"]
    if node.project:
        lines.append(f"project = {node.project}")
    if node.username:
        lines += [f"username = {node.username.replace('%', '%%')}", f"password = ${variable(node)}"]
    return lines


def named_nodes(texts: Sequence[str], names: Sequence[str], taken: Iterable[str]) -> list[Node]:
    """Return the nodes that addresses stand for.

    Those without a name are called after their host, or by a number. taken: names that are in use.

    Raises:
        ConfigError: an address has a password, or a name cannot be had.
    """
    if len(names) > len(texts):
        raise ConfigError(f"There are {len(names)} names (--name) for {len(texts)} nodes (--node).")
    used = set(taken)
    found: list[Node] = []
    for place, text in enumerate(texts):
        node = Node.parse(text)
        if node.password:
            raise ConfigError(
                f"Leave the password out of the address of {node.name}: every user of this machine"
                " could read it, and scrapy.cfg is no place for it. With the user name alone"
                " (user@host:port), sdist writes a line that takes the password from the"
                " environment; without any, ~/.netrc is asked."
            )
        name = names[place] if place < len(names) else free_name(node, used)
        used.add(name)
        found.append(replace(node, name=check_name(name)))
    counts = Counter(_names(found))
    doubled = sorted(name for name, count in counts.items() if count > 1)
    if doubled:
        raise ConfigError(f"Two nodes cannot have the same name: {', '.join(doubled)}.")
    return found


def _names(nodes: Iterable[Node]) -> list[str]:
    return [node.name for node in nodes]


def check_name(name: str) -> str:
    """Return the name; ConfigError if it cannot name a target."""
    if not _NAME.match(name):
        raise ConfigError(
            f"{name!r} cannot name a target: letters, digits, dot, - and _ can, and a letter or"
            " digit first."
        )
    return name


def free_name(node: Node, used: Iterable[str]) -> str:
    """Return what to call a node: the first label of its host, or node1, node2 and so on.

    A label that says nothing, or is in use, is not taken.
    """
    taken = set(used)
    host = node.host.split(".")[0]
    if _LABEL.match(host) and host not in _NO_NAMES and host not in taken:
        return host
    number = 1
    while f"node{number}" in taken:
        number += 1
    return f"node{number}"


def sort_out(
    wanted: Iterable[Node], targets: Sequence[Node], names: Sequence[str] = ()
) -> tuple[list[Node], list[Node]]:
    """Return the nodes that are new, and those that scrapy.cfg has already.

    names: those that were asked for.

    Raises:
        ConfigError: a name is that of another node, or was asked for and is of a node that has one.
    """
    new: list[Node] = []
    known: list[Node] = []
    for node in wanted:
        _check_name_of(node, targets, names)
        if node in targets or node in new:
            known.append(node)
        else:
            new.append(node)
    return new, known


def _check_name_of(node: Node, targets: Sequence[Node], names: Sequence[str]) -> None:
    same_url = [target for target in targets if target == node]
    if same_url and same_url[0].name != node.name and node.name in names:
        raise ConfigError(
            f"scrapy.cfg has {node.url} already, as [deploy:{same_url[0].name}]. Nothing was"
            f" written. To call it {node.name}, change the name there by hand; or leave --name out."
        )
    same_name = [target for target in targets if target.name == node.name]
    if same_name and same_name[0] != node:
        raise ConfigError(
            f"scrapy.cfg has a target [deploy:{node.name}] with another url, {same_name[0]}."
            " Nothing was written. Give the new one another name with --name, or change the url"
            " there by hand."
        )


def appended(text: str, wanted: Sequence[Node]) -> str:
    """Return the text of scrapy.cfg with the sections of these nodes behind it.

    Raises:
        ConfigError: that would be no configuration file.
    """
    end = "\r\n" if "\r\n" in text else "\n"
    whole = text
    if text and not text.endswith(("\n", "\r")):
        whole += end
    for node in wanted:
        if whole:
            whole += end
        whole += end.join(section(node)) + end
    try:
        configparser.ConfigParser(interpolation=None).read_string(whole)
    except configparser.Error as error:
        # Not chained: its text may quote a line with a password.
        raise ConfigError(
            f"scrapy.cfg would not be readable any more ({type(error).__name__}). Nothing was"
            " written."
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
        list[str] | None,
        option("The node's name, in the order of --node; else after its host.", metavar="NAME"),
    ] = None,
    project: Annotated[
        str | None,
        option(
            "Scrapyd's name of the project; else that of [deploy], or BOT_NAME.",
            "--project",
            "-p",
            metavar="NAME",
        ),
    ] = None,
    node_conf: Annotated[
        bool, option("Print a scrapyd.conf for a node, and do nothing else.")
    ] = False,
    dry_run: Annotated[
        bool, option("Print the lines that would be added; exit code 10 if there are any.")
    ] = False,
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
        conf = files("scrapyd_dist.deploy").joinpath("node.conf")
        put(conf.read_text(encoding="utf-8").rstrip("\n"))
        return 0
    if find_root() is None:
        raise ConfigError(
            f"There is no scrapy.cfg in {Path.cwd()} or in a folder above it. Go to the folder of"
            " your Scrapy project, or make one: scrapy startproject myproject, then cd myproject."
            " (`sdist demo` needs none; a configuration for a node is printed anywhere by `sdist"
            " init --node-conf`.)"
        )
    found = load()
    new, known = _wanted(found, node or [], name or [], project)
    file = found.root / "scrapy.cfg"
    if dry_run:
        return _show_lines(file, new)
    if new:
        _write(file, new)
    _show(file, new, known, timeout, output)
    return 0


def _show_lines(file: Path, new: Sequence[Node]) -> int:
    """Show what would be added to the file, and return the exit code of that."""
    if not new:
        say(f"{file} has all of these already.")
        return 0
    for node in new:
        put("\n".join([*section(node), ""]))
    return DIFFERENT


def _write(file: Path, new: Sequence[Node]) -> None:
    place = file.resolve()
    try:
        text = appended(place.read_bytes().decode("utf-8"), new)  # line ends as they are
        write_file(place, text.encode("utf-8"), mode=place.stat().st_mode & 0o777)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}. Nothing was changed."
        ) from error


def _wanted(
    found: ProjectConfig, addresses: Sequence[str], names: Sequence[str], project: str | None
) -> tuple[list[Node], list[Node]]:
    """Return the nodes that are new, with the project that their sections name; and the others."""
    taken = _names(found.targets)
    if not addresses:
        if not can_ask():
            raise ConfigError(
                "Name the nodes: sdist init --node web1:6800 --node web2:6800. (On a terminal it"
                " asks for them. No node yet? `sdist nodes up 3` starts some on this machine,"
                " `sdist init --node-conf` prints a configuration.)"
            )
        addresses, names = _ask_for_nodes(taken)
    new, known = sort_out(named_nodes(addresses, names, taken), found.targets, names)
    # Where [deploy] says it, a new section need not.
    chosen = project if project != found.project else None
    if new and project is None and not found.project:
        try:
            chosen = project_name(found, found.targets, None)
        except ConfigError as error:
            complain(f"{error} The sections are written without a line `project = NAME`.")
    return [replace(node, project=chosen) for node in new], known


def _ask_for_nodes(taken: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ask on the terminal for addresses and names of nodes."""
    addresses: list[str] = []
    names: list[str] = []
    say(
        "Addresses of your Scrapyd nodes: host:port, or a URL, with user@ where there is a"
        " password. An empty line ends."
    )
    while text := _answer(f"Node {len(addresses) + 1}: "):
        try:
            (node,) = named_nodes([text], [], [*taken, *names])
            names.append(check_name(_answer(f"  its name [{node.name}]: ") or node.name))
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


def _show(
    file: Path, new: Sequence[Node], known: Sequence[Node], timeout: float, output: Output
) -> None:
    """Ask each node once, and say what was written and what comes next."""
    context = Context(file.parent)
    added = _names(new)
    nodes = []
    for node in context.project.targets:
        is_named = node.name in added or node in known
        if is_named:
            nodes.append(node)
    rows = []
    cells = []
    with shown_answers(len(nodes)) as note:
        statuses = poll_nodes(context.sender, nodes, None, timeout, note=note)
    for status in statuses:
        name = status.node.name
        state = status.short or "up"
        written = name in added
        rows.append({"name": name, "url": status.node.url, "written": written, "state": state})
        cells.append((name, status.node.url, "written" if written else "as before", state))
    document = {"file": str(file), "added": added, "nodes": rows}
    output.table(document, ("node", "url", "scrapy.cfg", "state"), cells)
    for node in new:
        _remark_password(node)
    context.note_unused_nodes()
    say(
        "Next: sdist doctor looks at the nodes; sdist deploy --all uploads the project;"
        " sdist crawl SPIDER crawls with them."
    )


def _remark_password(node: Node) -> None:
    """Say what is to be done where a password is not in the environment yet."""
    if node.username and not os.environ.get(variable(node)):
        say(
            f"{node.name}: its password is taken from the environment variable {variable(node)},"
            " which is not set here. Or remove the lines username and password, and give the host"
            " an entry in ~/.netrc."
        )
