"""Makes and reads job ids, and checks what a Scrapyd job may be given."""

import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.payload import ARGUMENT_MAX
from scrapyd_dist.scrapyd.versions import hash_in

#: maximum total bytes of all arguments: Linux allows 2 MiB, including the environment
ARGUMENTS_BYTES = 1_900_000
#: maximum bytes of a file's name
FILE_NAME_MAX = 255
#: spider arguments that Scrapyd uses itself or fails on
RESERVED_ARGS = frozenset(
    {
        "project",
        "spider",
        "jobid",
        "priority",
        "setting",
        "_version",
        "name",
        "spider_name",
        "self",
        "settings",
        "_job",
    }
)
#: what is written in place of one of them, where there is an option
_INSTEAD = {
    "_version": "`sdist jobs schedule` and `sdist crawl` run the version of --version NAME.",
    "priority": "`sdist jobs schedule --priority X` gives a job its priority.",
    "setting": "For a setting of Scrapy write -s NAME=VALUE.",
}
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_JOB_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")
_OURS = re.compile(
    r"(?P<home>(?P<crawl>[A-Za-z0-9_-]{1,80})(\.[0-9a-f]{8})?)\.[bw][0-9]{1,16}\.a[0-9]{1,16}"
)
_ID = re.compile(r".*-\d{8}T\d{6}Z-([0-9a-f]{12})-[0-9a-f]{8}")


def job_id(spider: str, version: str | None, now: datetime) -> str:
    """Return a new id: `<spider>-<UTC time>[-<content hash of the version>]-<8 hex digits>`.

    Characters not allowed in an id become dashes; the hash is left out if the version's name has
    none; `now` has a time zone.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", spider)[:80].lstrip("-") or "job"
    parts = [plain, now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")]
    content = hash_in(version or "")
    if content:
        parts.append(content)
    parts.append(secrets.token_hex(4))
    return "-".join(parts)


def content_of(job: str) -> str | None:
    """Return the content hash in a plain job's id, or None."""
    found = _ID.fullmatch(job)
    return found[1] if found else None


def crawl_in(job: str) -> str | None:
    """Return the crawl or frontier in the id of an attempt or a worker, else None."""
    found = _OURS.fullmatch(job)
    return found["crawl"] if found else None


def home_in(job: str) -> str | None:
    """Return the crawl's folder on the nodes in the id of an attempt or a worker, else None.

    It tells crawls of one name apart. In the id of a leased attempt it is only the crawl's name.
    """
    found = _OURS.fullmatch(job)
    return found["home"] if found else None


def is_others(job: str, homes: Mapping[str, str]) -> bool:
    """Return whether a job is of another crawl than the one of its name.

    `homes` are the crawls' folders on the nodes, by name.
    """
    crawl = crawl_in(job)
    home = home_in(job)
    return crawl is not None and home != crawl and homes.get(crawl, home) != home


def check_args(args: Mapping[str, str]) -> None:
    """Refuse spider arguments that a job cannot be given.

    Raises `ConfigError` when a name is Scrapyd's, or is none, or a value cannot travel.
    """
    for name, value in args.items():
        _check_name(name)
        encode_argument(name, value)
    reserved = sorted(RESERVED_ARGS & args.keys())
    if not reserved:
        return
    remedy = _INSTEAD.get(reserved[0], "Rename it in the spider and on the command line.")
    raise ConfigError(
        f"The spider argument {reserved[0]!r} cannot be given to jobs: "
        f"Scrapyd uses that name itself. {remedy}"
    )


def check_spider_name(name: str) -> None:
    """Refuse a spider whose jobs no node can start, with `ConfigError`.

    Scrapyd names a folder of logs after it and passes it to a command line; where it cannot, it
    says ok, and the job and a process slot are lost.
    """
    has_path = "/" in name or _CONTROL.search(name) or name in {"", ".", ".."}
    if has_path or name.startswith("-") or len(name.encode(errors="replace")) > FILE_NAME_MAX:
        raise ConfigError(
            f"Scrapyd cannot start the spider {name!r}: it names a folder after it and passes it "
            "to a command line. Give it another name, without / and control characters, and "
            f"without a - at its beginning, of at most {FILE_NAME_MAX} bytes."
        )


def check_job(
    spider: str, jobid: str, settings: Mapping[str, str], args: Mapping[str, str]
) -> None:
    """Raise `ConfigError` for a job that a node would lose, before it is posted.

    It would lose it by a name, its id, or its size.
    """
    check_spider_name(spider)
    if not _JOB_ID.match(jobid) or ".." in jobid:
        raise ConfigError(
            f"{jobid!r} cannot be a job id: Scrapyd makes a file name of it and loses the job, and "
            "a process slot with it, if it cannot. Use letters, digits, _, - and single dots, at "
            "most 200."
        )
    check_args(args)
    size = 0
    for name, value in (*settings.items(), *args.items()):
        size += _argument_bytes(name, value)
    if size > ARGUMENTS_BYTES:
        raise ConfigError(
            f"The settings and arguments of job {jobid} make {size} bytes; together they may have "
            f"{ARGUMENTS_BYTES}. Past what the kernel takes, Scrapyd loses a job without a word. "
            "Make the batch smaller."
        )


def _check_name(name: str) -> None:
    """Refuse the name of a setting or argument that Scrapy's command line would misread."""
    if not name or name.startswith("-") or "=" in name or "\0" in name:
        raise ConfigError(
            f"{name!r} cannot be passed to a job: a name is not empty, begins with no -, "
            "and has no = and no NUL."
        )


def encode_argument(name: str, value: str) -> bytes:
    """Return an argument as a process gets it; ConfigError if its value cannot be passed on."""
    if "\0" in value:
        raise ConfigError(f"The value of {name!r} cannot be passed to a job: there is a NUL in it.")
    try:
        return f"{name}={value}".encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"The value of {name!r} is no valid Unicode text, so no job can be given it."
        ) from error


def _argument_bytes(name: str, value: str) -> int:
    """Return the size of an argument of a process; ConfigError if it cannot be one."""
    _check_name(name)
    size = len(encode_argument(name, value))
    if size > ARGUMENT_MAX:
        raise ConfigError(
            f"{name}=… is {size} bytes long and a process argument may have {ARGUMENT_MAX}. "
            "Scrapyd would say ok, lose the job without a word, and a process slot with it. "
            "Make the batch smaller."
        )
    return size
