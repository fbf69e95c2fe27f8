"""The seeds of a crawling strategy as lines: of a file, standard input, a server or a bucket."""

import codecs
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from scrapyd_dist.errors import ConfigError, DistError, NothingMatched
from scrapyd_dist.items.sink import password_in, split

from ..options import STDIN, opened_file

#: seconds in which a web server has to be reached, and in which something more has to come
_TIMES = (10.0, 120.0)
#: kinds of addresses that are read by HTTP
_WEB = frozenset({"http", "https"})


class SeedsBroken(DistError):
    """The seeds could not be read to their end."""


def open_seeds(stack: ExitStack, source: str) -> Callable[[], Iterator[str]]:
    """Open a file, `-` for standard input, or an address; gives what reads its lines.

    It is open as long as `stack`.

    Raises:
        NothingMatched: there is no such file or object.
        ConfigError: it cannot be opened.
    """
    if "://" not in source:
        file = opened_file(stack, source)
        name = "standard input" if source == STDIN else source
        return lambda: _decoded(file, name)
    if password_in(source):
        raise ConfigError(
            "The address of --seeds has a password, and every user of this machine could read it "
            "in the process list. Put it into ~/.netrc, or where the driver of that kind of "
            "address looks for it, and leave it out here."
        )
    parts = split(source, "The address of --seeds")
    shown = parts._replace(query="", fragment="").geturl()  # what is left out may be a signature
    read = _web if parts.scheme in _WEB else _bucket
    lines = read(stack, source, shown)
    return lambda: _decoded(lines, shown)


def source_name(source: str) -> str:
    """Return what seeds are called by where they are read from; "" for none.

    That is the last part of the path.
    """
    return PurePosixPath(urlsplit(source).path).name or source


def _web(stack: ExitStack, source: str, shown: str) -> Iterable[bytes]:
    import requests

    try:
        answer = stack.enter_context(requests.get(source, stream=True, timeout=_TIMES))
    except requests.RequestException as error:
        raise ConfigError(
            f"The seeds at {shown} cannot be read: {type(error).__name__}."
        ) from error
    if answer.status_code == 404:
        raise NothingMatched(f"There are no seeds at {shown}: the server answers 404.")
    if not answer.ok:
        raise ConfigError(
            f"The seeds at {shown} cannot be read: the server answers {answer.status_code}."
        )
    return answer.iter_lines(chunk_size=1 << 16)


def _bucket(stack: ExitStack, source: str, shown: str) -> Iterable[bytes]:
    try:
        import fsspec  # an extra

        file: Any = stack.enter_context(fsspec.open(source, "rb"))
    except ImportError as error:  # of fsspec, or of its driver, which it names
        raise ConfigError(
            f"The seeds at {shown} are read by fsspec and its driver, and one of them is not "
            f"installed ({error}): pip"
            ' install "scrapyd-dist[deliver]" for both, or fsspec with the driver that is named.'
        ) from None
    except FileNotFoundError:
        raise NothingMatched(f"There are no seeds at {shown}.") from None
    except ValueError as error:  # a kind of address that it does not know
        raise ConfigError(
            f"--seeds takes a file, {STDIN} or an address such as https://…, s3://bucket/path or "
            f"gs://bucket/path; this one begins with {source.partition(':')[0]}:// ({error})."
        ) from None
    except Exception as error:  # a driver may raise anything
        raise ConfigError(
            f"The seeds at {shown} cannot be read: {type(error).__name__}."
        ) from error
    return file  # type: ignore[no-any-return]  # lines of bytes, as every binary file


def _decoded(lines: Iterable[bytes], where: str) -> Iterator[str]:
    """Yield the lines as text, without their ends."""
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            raw = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            yield raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise SeedsBroken(f"Line {number} of the seeds in {where} is not UTF-8.") from None
    except Exception as error:  # a driver may raise anything
        raise SeedsBroken(
            f"The seeds in {where} broke off behind line {number:,}: {type(error).__name__}. What "
            "was read goes on; the same command reads them again."
        ) from error
