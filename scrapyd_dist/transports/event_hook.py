"""Tells a command or an http(s) address of an event, by a JSON document: on its standard input, or by POST.

The rule it keeps: what may be secret in an address or a command is never told, nor in a list of processes.
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
from typing import Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.version import __version__

#: seconds that the command, or the whole exchange with the address, may take
PATIENCE = 60.0
#: seconds for the connection to the address
CONNECT = 10.0
#: characters of a command's last words that are told
WORDS = 300
#: what the shell is told: the command's text is in a variable, since everybody on the machine can read arguments
_TEXT = "SDIST_HOOK_TEXT"
_RUN = f'sdist_hook_text=${_TEXT}; unset {_TEXT}; eval "$sdist_hook_text"'


@dataclass(frozen=True, kw_only=True)
class EventHook:
    """A command or an address that is told of events."""

    target: str  #: empty: nothing is told
    option: str  #: what names it, in messages
    event: str  #: what it is told of, in messages

    @property
    def is_address(self) -> bool:
        """Whether it is a URL to notify, not a command to run."""
        return self.target.strip().lower().startswith(("http://", "https://"))

    def check(self) -> None:
        """Raise `ConfigError` if it can be neither a command nor an address."""
        if self.target and not self.target.strip():
            raise ConfigError(
                f"{self.option} has only spaces in it: give it a command or an address, or leave it out."
            )
        scheme, sign, _ = self.target.strip().partition("://")
        if sign and scheme.isalnum() and not self.is_address:
            raise ConfigError(
                f"{self.option} takes a command, or an address that begins with http:// or https://, and this one"
                f" begins with {scheme}://."
            )
        if self.is_address and not self._shown:
            raise ConfigError(f"The address of {self.option} has no host, or a port that is none.")

    @property
    def _shown(self) -> str:
        """The address without path, query and credentials, which are often secret; empty if host or port are wrong."""
        try:
            parts = urlsplit(self.target.strip())
            host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        except ValueError:
            host = None
        return f"{parts.scheme}://{host}/…" if host else ""

    def notify(
        self,
        document: Mapping[str, Any],
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        patience: float = PATIENCE,
    ) -> str:
        """Run the command, with more variables in its environment, or post to the address; gives what went wrong.

        Blocking; never raises, and gives up after `patience` seconds.
        """
        if not self.target:
            return ""
        data = json.dumps(document).encode()
        try:
            return (
                self._post(data, patience)
                if self.is_address
                else self._run(data, variables, patience)
            )
        except Exception as error:
            return f"Nothing was told of {self.event} ({self.option}): {type(error).__name__}."

    def _run(self, data: bytes, variables: Mapping[str, str], patience: float) -> str:
        what = f"The command of {self.option}"
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as given:
            given.write(data)
            given.seek(0)
            process = subprocess.Popen(
                ["/bin/sh", "-c", _RUN],
                stdin=given,
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
                    return f"{what} was killed after {patience:g} seconds."
                raise
            if not code:
                return ""
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * WORDS))
            lines = [
                line.strip()
                for line in output.read().decode("utf-8", "replace").splitlines()
                if line.strip()
            ]
            last_words = f": {lines[-1][:WORDS].rstrip('.')}" if lines else ""
            return f"{what} ended with code {code}{last_words}."

    def _post(self, data: bytes, patience: float) -> str:
        import requests

        from scrapyd_dist.transports.requests import TimedAdapter

        headers = {"Content-Type": "application/json", "User-Agent": f"scrapyd-dist/{__version__}"}
        where = f"{self._shown} could not be told of {self.event} ({self.option})"
        try:
            with _unlogged(), requests.Session() as session:
                for scheme in (
                    "http://",
                    "https://",
                ):  # a timeout alone holds for each read of the answer's head
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
                    # What it says is not read: its code tells all, and a body might never end.
                    good = answer.ok and not answer.is_redirect
                    return "" if good else f"{where}: it answered {answer.status_code}."
        except requests.Timeout:
            return f"{where}: it did not answer in time."
        except requests.RequestException as error:  # whose text has the address in it
            return f"{where}: {type(error).__name__}."


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep what urllib3 logs of this exchange out of the crawl's log: it names the whole path."""
    thread, logger = threading.get_ident(), logging.getLogger("urllib3.connectionpool")

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)
