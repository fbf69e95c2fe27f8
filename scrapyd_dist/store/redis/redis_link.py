"""One connection to a Redis server or cluster: time-outs, reconnecting, steps never made twice."""

import json
import re
import secrets
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from threading import Event
from typing import Any, NamedTuple, TypeVar

from scrapyd_dist.errors import ConfigError, StoreBarred, StoreError
from scrapyd_dist.settings import SETTINGS
from scrapyd_dist.store.ports.address_text import shown
from scrapyd_dist.store.ports.engine import Connection
from scrapyd_dist.store.ports.judging import foreign
from scrapyd_dist.store.ports.link_rows import LinkRows
from scrapyd_dist.store.ports.rows import Door, Signer, storable
from scrapyd_dist.store.redis.redis_address import tagged, without_prefix
from scrapyd_dist.store.redis.redis_outages import answer_passes
from scrapyd_dist.store.redis.redis_script import script_text
from scrapyd_dist.strategy.links import PARTITIONS

Command = Sequence[object]
#: a hash as the server gives it
Row = Mapping[bytes, bytes]

T = TypeVar("T")
#: the environment variable with the store's address
_VARIABLE = SETTINGS["DISTRIBUTED_STORE"].variable
#: what the keys of a store begin with, unless its address says otherwise (`?prefix=`)
PREFIX = "sdist:"
#: the layout of the keys; a store of any other one is refused
LAYOUT = 1
#: the oldest server that keeps what a script wrote, not the script itself
OLDEST = (6, 0)
#: seconds for a connection
CONNECT_TIMEOUT = 5.0
#: seconds for an answer
TIMEOUT = 15.0
#: seconds in which a call is tried again when the server does not answer
PATIENCE = 30.0
#: the same while the store is opened, when nothing depends on it yet
OPENING = 3.0
#: seconds for which a step is recognised; longer than any process tries
KEPT = 180
#: seconds before the first new try; each further pause is twice as long, up to the longest
_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
#: what a server answers to a client without a password, by the protocol that the client speaks
_NO_PASSWORD = (
    "HELLO must be called with the client already authenticated",
    "Authentication required",
)
#: commands that are sent together
CHUNK = 500
#: what these commands find where nothing is
_NOTHING: dict[object, Any] = {"HGETALL": {}, "GET": None, "LRANGE": [], "HKEYS": []}
#: a field that is there, whatever it says
THERE = ("*",)
#: the most batches, and buckets of fingerprints, of a crawl
MOST = 100_000_000
#: `<batch>.<attempt>`
_ATTEMPT_NAME = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
#: the most links, events and changes of a strategy
MOST_LINKS = 100_000_000_000
#: changes in one piece of a strategy's log
LOG = 10_000
#: the keys of a strategy, without those of which there may be many
OF_A_STRATEGY = (
    "meta",
    "links",
    "requests",
    "lines",
    "turns",
    "full",
    "events",
    "dead",
    "faults",
    "domains",
    "processes",
    "finished",
    "partitions",
    *(f"{kind}:{partition}" for kind in ("e", "later", "t") for partition in range(PARTITIONS)),
)
#: attempts in one of these are not over; they are listed by it
OPEN = ("sending", "sent", "running", "acked")


class Condition(NamedTuple):
    """What has to hold before a step."""

    key: str
    field: str
    #: one of which the field has; none: the field must not be there
    values: Collection[object]
    #: what is raised when it does not hold; None: the step's `check`, or answer, tells
    error: Exception | None = None


class RedisConnection(Connection):
    """Steps and reads of one store on a Redis server. It belongs to one thread at a time."""

    def __init__(self, url: str, *, key: bytes | None = None) -> None:
        self.shown = shown(url)
        self.door = Door(Signer(key), self.shown)
        self.link_rows = LinkRows(self.door, key, is_private=False)
        try:
            plain, prefix = without_prefix(url)
        except ValueError:
            raise self._address_error() from None
        self.prefix = tagged(PREFIX if prefix is None else prefix)
        self._redis = _module()
        self._patience = OPENING
        self.client = self._connect(self._redis.Redis, plain)
        try:
            info = self.read(self.client.info)
            self._is_cluster = bool(info.get("cluster_enabled"))
            if self._is_cluster:
                self.client.close()
                self.client = self.read(lambda: self._connect_cluster(plain))
            self._script = self.client.register_script(script_text())
            self._check_server()
            self._check_layout()
        except (ValueError, TypeError):
            self.close()
            raise self._address_error() from None
        except BaseException:
            self.close()
            raise
        self._patience = PATIENCE

    def _connect(self, kind: Any, url: str) -> Any:
        retry = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0)
        try:
            return kind.from_url(
                url,
                socket_connect_timeout=CONNECT_TIMEOUT,
                socket_timeout=TIMEOUT,
                retry=retry,
                decode_responses=False,
            )
        except (ValueError, TypeError):
            raise self._address_error() from None

    def _connect_cluster(self, url: str) -> Any:
        try:
            return self._connect(self._redis.RedisCluster, url)
        except IndexError:  # redis 5.0 trips over a node that has no slots
            raise self._redis.exceptions.ClusterDownError("its cluster has no slots") from None

    def _address_error(self) -> ConfigError:
        # Never chained: the client's text may quote the address, password and all.
        return ConfigError(
            f"the address of the store, {self.shown}, cannot be understood. Write"
            " redis://user:password@host:6379/0, rediss:// for TLS, or"
            " unix:///path/of/the/socket?db=0."
        )

    def warnings(self) -> list[str]:
        """Return a warning if the server does not write each step to disk."""
        if self._info().get("aof_enabled"):
            return []
        risk = (
            f"the server of the store {self.shown} does not write each step to disk (appendonly is"
            " off): when it dies, the crawl loses what came after its last snapshot, and batches"
            " may be crawled twice."
        )
        return [risk]

    def _info(self) -> dict[str, Any]:
        """Return what the server says of itself; of a cluster, the node that has the store."""
        options = {}
        if self._is_cluster:
            options["target_nodes"] = self.client.get_node_from_key(self.prefix)
        info: dict[str, Any] = self.read(lambda: self.client.info(**options))
        return info

    def _check_server(self) -> None:
        info = self._info()
        version = str(info.get("redis_version", "0"))
        if tuple(map(int, version.split(".")[:2])) < OLDEST:
            raise StoreError(
                f"the store {self.shown} is Redis {info.get('redis_version')}; 6.0 is the oldest"
                " that is used."
            )
        policy = str(info.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys") and info.get("maxmemory"):
            raise StoreError(
                f"the server of the store {self.shown} throws keys away when its memory is full"
                f" (maxmemory-policy {policy}): batches would be lost. Set it to noeviction, or use"
                " another server."
            )

    def _check_layout(self) -> None:
        keys = [f"{self.prefix}layout"]
        layout = self.step("layout", self.prefix, keys=keys, own=LAYOUT)["layout"]
        if layout != str(LAYOUT):
            raise StoreError(
                f"the store {self.shown} was written by a newer scrapyd-dist (layout {layout}, this"
                f" one knows {LAYOUT}). Upgrade scrapyd-dist here, or name another store."
            )

    # steps and reads

    def step(
        self,
        verb: str,
        base: str,
        *,
        needed: Sequence[Condition] = (),
        check: Callable[[], None] | None = None,
        writes: Sequence[Command] = (),
        keys: Collection[str] = (),
        blobs: Sequence[bytes | str] = (),
        **argument: object,
    ) -> dict[str, Any]:
        """Make one step of the script, all of it or nothing, and return its answer.

        Nothing is done unless all conditions in `needed` hold. An answer with `refused` says that
        the step was not made: it is the number of the condition that did not hold, from 1 on, or 0
        for another reason. A step that was made already, by a call whose answer was lost, only
        gives that answer.

        Args:
            verb: the name of the script's function.
            base: what the names of the step's keys begin with.
            needed: conditions; one that does not hold raises its own error, if it has one.
            check: looks at the rows, and raises why a condition does not hold.
            writes: commands, their key second.
            keys: others that the step is known to need.
            blobs: what JSON cannot carry.
            argument: what else the function takes.
        """
        token = f"{self.prefix}op:{secrets.token_hex(12)}"
        conditions = []
        named = {token: None}
        for condition in needed:
            values = list(map(str, condition.values))
            conditions.append((condition.key, condition.field, values))
            named[condition.key] = None
        commands = []
        for command in writes:
            words = list(map(str, command))
            commands.append(words)
            named[words[1]] = None
        named.update(dict.fromkeys(keys))
        text = json.dumps(
            {"base": base, "needed": conditions, "writes": commands, **argument}, ensure_ascii=False
        )
        arguments = [verb, KEPT, text, *blobs]
        reply = self.read(lambda: self._script(keys=list(named), args=arguments))
        answer: dict[str, Any] = json.loads(reply)
        if answer.get("refused"):
            error = needed[answer["refused"] - 1].error
            if error is not None:
                raise error
            if check is not None:
                check()
        return answer

    def read(self, call: Callable[[], T]) -> T:
        """Return the answer to something that may be asked again.

        Raises:
            StoreBarred: the server does not let us in, or shows a certificate that is not trusted
                here.
            StoreError: no answer came within `PATIENCE`, or another refusal.
        """
        errors = self._redis.exceptions
        pause = _PAUSE
        end = time.monotonic() + self._patience
        while True:
            try:
                return call()
            except (
                errors.AuthenticationError,
                errors.AuthorizationError,
                errors.NoPermissionError,
            ) as error:
                raise self._failed(error, StoreBarred) from None
            except (
                errors.ConnectionError,
                errors.TimeoutError,
                errors.ReadOnlyError,
                errors.ClusterDownError,
                errors.RedisClusterException,
            ) as error:
                if isinstance(error.__context__, ssl.SSLCertVerificationError):
                    raise self._failed(error, StoreBarred) from None
                if time.monotonic() + pause > end:
                    raise self._failed(error) from None
            except errors.RedisError as error:
                if not answer_passes(error) or time.monotonic() + pause > end:
                    raise self._failed(error) from None
            Event().wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _failed(self, error: Exception, kind: type[StoreError] = StoreError) -> StoreError:
        # A server that knows no HELLO or AUTH (Redis 5, a proxy) repeats their arguments: the
        # password among them.
        reason = str(error).partition(", with args beginning with:")[0]
        if reason.startswith(_NO_PASSWORD):
            reason = (
                "it wants a password, and its address has none. Say it there, in the environment"
                f" ({_VARIABLE})"
            )
        elif isinstance(error, self._redis.exceptions.ConnectionError) and kind is StoreError:
            reason = (
                f"{reason.rstrip('.')}. Does a Redis server run there? {_VARIABLE} or"
                " DISTRIBUTED_STORE has its address"
            )
        return kind(f"the store {self.shown} failed: {reason.rstrip('.')}.")

    def query_all(self, commands: Iterable[Sequence[object]]) -> list[Any]:
        """Return the answers to commands that only read, in order; sent in bounded pieces."""
        ordered = list(commands)
        answers: list[Any] = []
        for start in range(0, len(ordered), CHUNK):
            chunk = ordered[start : start + CHUNK]
            answers += self.read(partial(self._query_chunk, chunk))
        return answers

    def _query_chunk(self, commands: Sequence[Sequence[object]]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        return list(map(self._readable_answer, commands, answers))

    def _readable_answer(self, command: Sequence[object], answer: Any) -> Any:
        """Return the answer, or raise it.

        A key that is of another kind than any version writes is as good as not there; the others
        are not to suffer.
        """
        if not isinstance(answer, Exception):
            return answer
        if not str(answer).startswith("WRONGTYPE") or command[0] not in _NOTHING:
            raise answer
        self.door.log_fault(
            f"The store {self.shown} has {command[1]!s:.200} as something that no version of sdist"
            " wrote."
        )
        return _NOTHING[command[0]]

    def close(self) -> None:
        """Close the connection."""
        self.client.close()


def _module() -> Any:
    try:
        import redis  # noqa: PLC0415 - an extra, loaded when it is asked for
        import redis.backoff  # noqa: PLC0415 - an extra, loaded when it is asked for
        import redis.retry  # noqa: PLC0415 - an extra, loaded when it is asked for
    except ImportError:
        raise ConfigError(
            "a store on a Redis server needs the package redis: pip install 'scrapyd-dist[redis]'."
            " Without it, give the path of an SQLite file, or nothing at all."
        ) from None
    return redis


def packed(row: Mapping[str, Any]) -> list[str]:
    """Return names and values, one after the other, as a hash keeps them."""
    words: list[str] = []
    for name, value in storable(row).items():
        words += (name, json.dumps(value))
    return words


def unpacked(words: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return the row of a hash; `ForeignRow` when a value is no JSON."""
    try:
        return {name.decode(): json.loads(value) for name, value in words.items()}
    except (ValueError, RecursionError):
        raise foreign(
            "a row", f"it is no JSON (it begins with {b' '.join(words.values())[:60]!r})"
        ) from None


def word(name: bytes) -> str:
    """Return a name as the server has it.

    What no version of ours wrote is replaced, and then matches no row.
    """
    return name.decode("utf-8", "replace")


def by_word(row: Mapping[bytes, T]) -> dict[str, T]:
    """Return a hash, or a part of one, with its names as words."""
    return {word(name): value for name, value in row.items()}


def rows_there(names: Iterable[str], rows: Iterable[Row]) -> list[tuple[str, Row]]:
    """Return the names that have a row, each with it; others may have been removed meanwhile."""
    pairs = []
    for name, row in zip(names, rows, strict=True):
        if row:
            pairs.append((name, row))
    return pairs


def whole(value: Any, what: str, most: int = MOST) -> int:
    """Return a number of the server, 0 where it has none; `ForeignRow` when it is no number."""
    try:
        number = int(value or 0)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise foreign(what, f"it is no whole number up to {most:,}")
    return number


class RedisPort:
    """The base of each port: the connection that all share, and the keys of a crawl."""

    def __init__(self, connection: RedisConnection) -> None:
        self._server = connection
        self._door = connection.door

    def _query(self, *command: object) -> Any:
        """Return the answer to a command that only reads."""
        return self._server.read(lambda: self._server.client.execute_command(*command))

    def _base(self, crawl: str) -> str:
        return f"{self._server.prefix}c:{crawl}:"

    def _crawl_is_there(self, crawl: str) -> Condition:
        return Condition(f"{self._base(crawl)}crawl", "id", THERE, self._door.no_crawl(crawl))

    def _crawl_step(self, verb: str, crawl: str, **argument: Any) -> dict[str, Any]:
        """Make a step of a crawl that has to be there, and return its answer."""
        return self._server.step(
            verb, self._base(crawl), needed=[self._crawl_is_there(crawl)], **argument
        )

    def _write(self, crawl: str, *commands: Command) -> None:
        """Make changes to a crawl that has to be there."""
        self._server.step(
            "steps", self._base(crawl), needed=[self._crawl_is_there(crawl)], writes=commands
        )

    def _batch_key(self, crawl: str, number: int) -> str:
        return f"{self._base(crawl)}b:{number}"

    def _attempt_key(self, crawl: str, batch: int, attempt: int) -> str:
        return f"{self._base(crawl)}a:{batch}.{attempt}"

    def _attempt_names(self, names: Iterable[bytes]) -> list[str]:
        return self._door.each(attempt_name, names)

    def _number_of(self, crawl: str, kind: str) -> int:
        """Return how many batches or buckets of fingerprints a crawl has.

        For workers, it is the highest number that any was given.
        """
        number = self._query("HGET", f"{self._base(crawl)}meta", kind)
        return whole(number, f"the number of {kind} of {crawl}")


def attempt_name(name: bytes) -> str:
    """Return an attempt's name, `<batch>.<attempt>`; `ForeignRow` when it is none."""
    if not _ATTEMPT_NAME.fullmatch(word(name)):
        raise foreign(f"an attempt {word(name)[:100]!r}", "no attempt is called so")
    return word(name)
