"""Notifies a command or an http(s) address of an event with a JSON document.

A command gets it on its standard input, an address by POST. The rule it keeps: what may be secret
in an address or a command is in no message, nor in a list of processes.
"""

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.version import __version__

#: seconds that the command, or the whole exchange with the address, may take
PATIENCE = 60.0
#: seconds for the connection to the address
CONNECT = 10.0
#: characters of a command's last line that are shown
WORDS = 300
#: the variable with the command's text, since every user of the machine can read arguments
_TEXT = "SDIST_HOOK_TEXT"
#: what the shell runs
_RUN = f'sdist_hook_text=${_TEXT}; unset {_TEXT}; eval "$sdist_hook_text"'


@dataclass(frozen=True, kw_only=True)
class EventHook:
    """A command or an address that is told of events."""

    target: str  #: empty: nothing is told
    option: str  #: what names it, in messages
    event: str  #: what it is told of, in messages

    @property
    def is_address(self) -> bool:
        """Whether it is a URL to post to, not a command to run."""
        return self.target.strip().lower().startswith(("http://", "https://"))

    def check(self) -> None:
        """Raise `ConfigError` if it can be neither a command nor an address."""
        if self.target and not self.target.strip():
            raise ConfigError(
                f"{self.option} has only spaces in it: give it a command or an address, or leave it"
                " out."
            )
        scheme, sign, _ = self.target.strip().partition("://")
        if sign and scheme.isalnum() and not self.is_address:
            raise ConfigError(
                f"{self.option} takes a command, or an address that begins with http:// or"
                f" https://, and this one begins with {scheme}://."
            )
        if self.is_address and not self._shown:
            raise ConfigError(f"The address of {self.option} has no host, or a port that is none.")

    @property
    def _shown(self) -> str:
        """The address without path, query and credentials, which are often secret.

        It is empty if host or port are wrong.
        """
        try:
            parts = urlsplit(self.target.strip())
            port = parts.port
        except ValueError:
            return ""
        host = parts.hostname
        if not host:
            return ""
        if port:
            host = f"{host}:{port}"
        return f"{parts.scheme}://{host}/…"

    def notify(
        self,
        document: Mapping[str, Any],
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        patience: float = PATIENCE,
    ) -> str:
        """Run the command, with more variables in its environment, or post to the address.

        Returns what went wrong, in a sentence; empty if nothing did. Blocks; never raises, and
        gives up after `patience` seconds.
        """
        if not self.target:
            return ""
        data = json.dumps(document).encode()
        try:
            if self.is_address:
                return self._post(data, patience)
            return self._run(data, variables, patience)
        except Exception as error:  # noqa: BLE001 - what is told of has happened, and nothing may go wrong with it
            return f"Nothing was told of {self.event} ({self.option}): {type(error).__name__}."

    def _run(self, data: bytes, variables: Mapping[str, str], patience: float) -> str:
        command = f"The command of {self.option}"
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as document:
            document.write(data)
            document.seek(0)
            process = subprocess.Popen(
                ["/bin/sh", "-c", _RUN],
                stdin=document,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables, _TEXT: self.target},
                start_new_session=True,
            )
            try:
                code = process.wait(patience)
            except BaseException as error:  # also a Ctrl-C, of which its session hears nothing
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    return f"{command} was killed after {patience:g} seconds."
                raise
            if not code:
                return ""
            last_line = _read_last_line(output)
            if last_line is not None:
                return f"{command} ended with code {code}: {last_line}."
            return f"{command} ended with code {code}."

    def _post(self, data: bytes, patience: float) -> str:
        import requests  # noqa: PLC0415 - slow to import

        from scrapyd_dist.transports.requests import TimedAdapter  # noqa: PLC0415 - only where a hook is given

        headers = {"Content-Type": "application/json", "User-Agent": f"scrapyd-dist/{__version__}"}
        problem = f"{self._shown} could not be told of {self.event} ({self.option})"
        try:
            with _unlogged(), requests.Session() as session:
                # A timeout alone holds for each read of the answer's head.
                for scheme in ("http://", "https://"):
                    session.mount(scheme, TimedAdapter(patience))
                timeout = (min(CONNECT, patience), patience)
                with session.post(
                    self.target.strip(),
                    data=data,
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                    stream=True,
                ) as answer:
                    # The body is not read: the status says all, and a body might never end.
                    if answer.ok and not answer.is_redirect:
                        return ""
                    return f"{problem}: it answered {answer.status_code}."
        except requests.Timeout:
            return f"{problem}: it did not answer in time."
        except requests.RequestException as error:  # whose text has the address in it
            return f"{problem}: {type(error).__name__}."


def _read_last_line(output: IO[bytes]) -> str | None:
    """Return the last line that is not blank, shortened and without a full stop, or None."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - 4 * WORDS))
    for line in reversed(output.read().decode("utf-8", "replace").splitlines()):
        if line.strip():
            return line.strip()[:WORDS].rstrip(".")
    return None


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what urllib3 logs of this exchange out of the crawl's log: it names the whole path."""
    thread = threading.get_ident()
    logger = logging.getLogger("urllib3.connectionpool")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)
