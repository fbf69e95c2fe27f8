"""Serves the pages on an address of this machine, until it is interrupted."""

import socket

import uvicorn
from starlette.types import ASGIApp

from scrapyd_dist.errors import ConfigError

#: seconds in which an open stream may end when the server does
_GRACE = 1


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there, on a free port for 0; ConfigError if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"Nothing can be served on {host}, port {port}: {error.strerror or error}. Name another"
            " one by --port, or another address by --host."
        ) from error


def serve(application: ASGIApp, listener: socket.socket) -> None:
    """Answer requests until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        application,
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    uvicorn.Server(config).run(sockets=[listener])
