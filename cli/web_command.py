"""`sdist web`: serves the pages of the fleet, its crawls and its jobs."""

import os
import socket
from contextlib import closing
from importlib.util import find_spec
from typing import Annotated

from scrapyd_dist.errors import INTERRUPTED, ConfigError
from scrapyd_dist.fleet.workspace import Workspace

from .context import Context
from .options import option
from .output import say

#: where it is served without being asked otherwise
HOST = "127.0.0.1"
PORT = 6810
#: the variables of the environment with the password of the pages, and the token of actions
PASSWORD = "SDIST_WEB_PASSWORD"  # noqa: S105 - a name
TOKEN = "SDIST_WEB_TOKEN"  # noqa: S105 - a name
#: what the extra brings
_PACKAGES = ("starlette", "uvicorn")


def web(
    *,
    context: Context,
    host: Annotated[
        str, option(f"Address to serve on; another one than this needs {PASSWORD}.", metavar="HOST")
    ] = HOST,
    port: Annotated[int, option("Its port; 0 is any that is free.", min=0, max=65535)] = PORT,
    actions: Annotated[
        bool,
        option(f"Let POST /crawls and POST /jobs start work, for requests with {TOKEN}."),
    ] = False,
) -> int:
    """Show the fleet, crawls and jobs in a browser.

    Nodes are asked while a page is viewed, and once for all viewers. Each page has its
    JSON beside it, at the same address with `.json`. Ctrl-C ends it.

    Example: sdist web --port 6811
    """
    _check_packages()
    from scrapyd_dist.web.application import Actions, make_application
    from scrapyd_dist.web.fleet_board import FleetBoard
    from scrapyd_dist.web.project_pages import ProjectPages
    from scrapyd_dist.web.server import bind, serve

    from .web_actions import WebActions

    root = context.root
    # What is started from here inherits the environment, and has no use for these.
    password = os.environ.pop(PASSWORD, "")
    token = os.environ.pop(TOKEN, "")
    _check_address(host, password)
    allowed = None
    if actions:
        _check_token(token)
        starter = WebActions(root=root)
        allowed = Actions(
            token=token, start_crawl=starter.start_crawl, start_jobs=starter.start_jobs
        )

    def open_workspace() -> Workspace:
        return Workspace(root)

    pages = ProjectPages(open_workspace=open_workspace, board=FleetBoard(open_workspace))
    application = make_application(pages, password=password, actions=allowed)
    listener = bind(host, port)
    address = f"http://{_name_for_others(host)}:{listener.getsockname()[1]}/"
    say(f"The pages of {root.name}: {address} (Ctrl-C ends them)")
    with closing(listener), closing(pages):
        serve(application, listener)
    return INTERRUPTED


def _name_for_others(host: str) -> str:
    """Return what stands in an address that leads to the pages: the name of this machine for all.

    host: where they are served; 0.0.0.0, :: and the empty name are every address of this machine.
    """
    if host in {"", "0.0.0.0", "::"}:  # noqa: S104 - it is read, and nothing is bound
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _check_packages() -> None:
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise ConfigError(
                f"The pages need the package {package}: pip install 'scrapyd-dist[web]'."
            )


def _check_address(host: str, password: str) -> None:
    """Refuse an address that others reach where no password keeps them out."""
    if host in {HOST, "localhost", "::1"}:
        return
    if not password:
        raise ConfigError(
            f"On {host} others reach the pages: set a password in {PASSWORD} first, or serve them"
            f" on {HOST} and go there through SSH."
        )
    say(
        "The password and the pages travel as they are: put a server with TLS in front of it"
        " where others may listen."
    )


def _check_token(token: str) -> None:
    """Refuse to start work for every request."""
    if not token:
        raise ConfigError(
            f"--actions needs a token that requests have to have: put one into {TOKEN}, such as"
            " by: openssl rand -hex 16"
        )
