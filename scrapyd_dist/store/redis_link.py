"""One connection to a Redis server or cluster: time-outs, reconnecting, and steps that are never made twice."""

import json
import re
import secrets
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.resources import files
from threading import Event
from typing import Any, NamedTuple, TypeVar

from scrapyd_dist.errors import ConfigError, StoreBarred, StoreError
from scrapyd_dist.store.address import VARIABLE, shown, tagged, without_prefix
from scrapyd_dist.store.judging import foreign
from scrapyd_dist.store.link_rows import LinkRows
from scrapyd_dist.store.outages import passes
from scrapyd_dist.store.rows import Door, Signer, storable
from scrapyd_dist.strategy.links import PARTITIONS

Command = Sequence[object]

T = TypeVar("T")
#: what the keys of a store begin with, where its address says nothing else (`?prefix=`)
PREFIX = "sdist:"
#: the layout of the keys; a store of any other one is refused
LAYOUT = 1
#: the oldest server that keeps what a script wrote, not the script itself
OLDEST = (6, 0)
#: seconds for a connection, and for an answer
CONNECT_TIMEOUT, TIMEOUT = 5.0, 15.0
#: seconds in which a call is tried again when the server does not answer; fewer while nothing depends on it yet
PATIENCE, OPENING = 30.0, 3.0
#: seconds for which a step is recognised; longer than anybody tries
KEPT = 180
_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
#: what a server answers to a client without a password, by the protocol that the client speaks
_NO_PASSWORD = (
    "HELLO must be called with the client already authenticated",
    "Authentication required",
)
#: commands that are sent together
CHUNK = 500
#: what these commands find where nothing is
_NOTHING: dict[object, Any] = {"HGETALL": {}, "GET": None, "LRANGE": [], "HKEYS": []}


class Condition(NamedTuple):
    """What has to hold before a step."""

    key: str
    field: str
    values: Collection[object]  #: one of which the field has; none: the field must not be there
    error: Exception | None = (
        None  #: what is raised when it does not hold; None: the step's `check`, or answer, tells
    )


class RedisConnection:
    """Steps and reads of one store on a Redis server. It belongs to one thread at a time."""

    def __init__(self, url: str, *, key: bytes | None = None) -> None:
        self.shown = shown(url)
        self.door = Door(Signer(key), self.shown)
        self.link_rows = LinkRows(self.door, key, is_private=False)
        try:
            plain, prefix = without_prefix(url)
        except ValueError:
            raise self._nonsense() from None
        self.prefix = tagged(PREFIX if prefix is None else prefix)
        self._redis = _module()
        self._patience = OPENING
        self.client = self._connect(self._redis.Redis, plain)
        try:
            told = self.read(self.client.info)
            self._is_cluster = bool(told.get("cluster_enabled"))
            if self._is_cluster:
                self.client.close()
                self.client = self.read(lambda: self._connect_cluster(plain))
            pieces = sorted(
                files(__package__).joinpath("script").iterdir(), key=lambda piece: piece.name
            )
            script = "\n".join(
                piece.read_text("utf-8") for piece in pieces if piece.name.endswith(".lua")
            )
            self._script = self.client.register_script(script)
            self._check_server()
            self._check_layout()
        except (ValueError, TypeError):
            self.close()
            raise self._nonsense() from None
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
            raise self._nonsense() from None

    def _connect_cluster(self, url: str) -> Any:
        try:
            return self._connect(self._redis.RedisCluster, url)
        except IndexError:  # redis 5.0 trips over a node that has no slots
            raise self._redis.exceptions.ClusterDownError("its cluster has no slots") from None

    def _nonsense(self) -> ConfigError:
        # Never chained: the client's text may quote the address, password and all.
        return ConfigError(
            f"the address of the store, {self.shown}, cannot be understood. Write"
            " redis://user:password@host:6379/0, rediss:// for TLS, or unix:///path/of/the/socket?db=0."
        )

    def warnings(self) -> list[str]:
        told = self._info()
        lost = (
            f"the server of the store {self.shown} does not write each step to disk (appendonly is off): when it dies,"
            " the crawl loses what came after its last snapshot, and batches may be crawled twice."
        )
        return [] if told.get("aof_enabled") else [lost]

    def _info(self) -> dict[str, Any]:
        """What the server says of itself; of a cluster, the node that has the store."""
        node = (
            {"target_nodes": self.client.get_node_from_key(self.prefix)} if self._is_cluster else {}
        )
        told: dict[str, Any] = self.read(lambda: self.client.info(**node))
        return told

    def _check_server(self) -> None:
        told = self._info()
        version = tuple(int(part) for part in str(told.get("redis_version", "0")).split(".")[:2])
        if version < OLDEST:
            raise StoreError(
                f"the store {self.shown} is Redis {told.get('redis_version')}; 6.0 is the oldest that is used."
            )
        policy = str(told.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys") and told.get("maxmemory"):
            raise StoreError(
                f"the server of the store {self.shown} throws keys away when its memory is full (maxmemory-policy"
                f" {policy}): batches would be lost. Set it to noeviction, or use another server."
            )

    def _check_layout(self) -> None:
        layout = self.step("layout", self.prefix, keys=[f"{self.prefix}layout"], own=LAYOUT)[
            "layout"
        ]
        if layout != str(LAYOUT):
            raise StoreError(
                f"the store {self.shown} was written by a newer scrapyd-dist (layout {layout}, this one knows"
                f" {LAYOUT}). Upgrade scrapyd-dist here, or name another store."
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
        """Make one step of the script: `verb` is its function, and the names of its keys begin with `base`.

        Nothing is done unless all conditions in `needed` hold; `check` looks at the rows and raises why one does not.
        `writes` are commands, their key second; `keys` are others that the step is known to need; `blobs` are what JSON
        cannot carry. Gives its answer. With `refused` it was not made, since a condition did not hold (its number, from
        1 on), or for another reason (0).
        """
        token = f"{self.prefix}op:{secrets.token_hex(12)}"
        commands = [[str(word) for word in command] for command in writes]
        values = [(one.key, one.field, [str(value) for value in one.values]) for one in needed]
        text = json.dumps(
            {"base": base, "needed": values, "writes": commands, **argument}, ensure_ascii=False
        )
        named = dict.fromkeys(
            [token, *(one.key for one in needed), *(one[1] for one in commands), *keys]
        )
        words = [verb, KEPT, text, *blobs]
        answer: dict[str, Any] = json.loads(
            self.read(lambda: self._script(keys=list(named), args=words))
        )
        if answer.get("refused"):
            error = needed[answer["refused"] - 1].error
            if error is not None:
                raise error
            if check is not None:
                check()
        return answer

    def read(self, ask: Callable[[], T]) -> T:
        """The answer to something that may be asked again.

        Raises `StoreBarred` when the server does not let us in, or shows a certificate that is not trusted here;
        `StoreError` when no answer comes within `PATIENCE`, or another refusal.
        """
        errors, pause, end = self._redis.exceptions, _PAUSE, time.monotonic() + self._patience
        while True:
            try:
                return ask()
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
                if not passes(error) or time.monotonic() + pause > end:
                    raise self._failed(error) from None
            Event().wait(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _failed(self, error: Exception, kind: type[StoreError] = StoreError) -> StoreError:
        # A server that knows no HELLO or AUTH (Redis 5, a proxy) repeats their arguments: the password among them.
        said = str(error).partition(", with args beginning with:")[0]
        if said.startswith(_NO_PASSWORD):
            said = f"it wants a password, and its address has none. Say it there, in the environment ({VARIABLE})"
        elif isinstance(error, self._redis.exceptions.ConnectionError) and kind is StoreError:
            said = f"{said.rstrip('.')}. Does a Redis server run there? {VARIABLE} or DISTRIBUTED_STORE has its address"
        return kind(f"the store {self.shown} failed: {said.rstrip('.')}.")

    def ask(self, commands: Iterable[Sequence[object]]) -> list[Any]:
        """The answers to commands that only read, in order; sent in bounded pieces."""
        commands, answers = list(commands), []
        for start in range(0, len(commands), CHUNK):
            answers += self.read(lambda some=commands[start : start + CHUNK]: self._ask(some))  # type: ignore[misc]  # a default binds it
        return answers

    def _ask(self, commands: Sequence[Sequence[object]]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            answers: list[Any] = pipeline.execute(raise_on_error=False)
        # A key that is of another kind than any version writes is as good as not there; the others are not to suffer.
        return [self._said(*pair) for pair in zip(commands, answers, strict=True)]

    def _said(self, command: Sequence[object], answer: Any) -> Any:
        if not isinstance(answer, Exception):
            return answer
        if not str(answer).startswith("WRONGTYPE") or command[0] not in _NOTHING:
            raise answer
        self.door.tell(
            f"The store {self.shown} has {command[1]!s:.200} as something that no version of sdist wrote."
        )
        return _NOTHING[command[0]]

    def close(self) -> None:
        self.client.close()


def _module() -> Any:
    try:
        import redis
        import redis.backoff
        import redis.retry
    except ImportError:
        raise ConfigError(
            "a store on a Redis server needs the package redis: pip install 'scrapyd-dist[redis]'. Without it, give the"
            " path of an SQLite file, or nothing at all."
        ) from None
    return redis


#: a field that is there, whatever it says
THERE = ("*",)
#: of batches, and of buckets of fingerprints, no crawl has more
MOST = 100_000_000
_ATTEMPT_NAME = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
#: links, events and changes of a strategy: there may be more of them
MOST_LINKS = 100_000_000_000
#: changes in one piece of a strategy's log
LOG = 10_000
#: the keys of a strategy of which there is one, or one for each partition
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


def packed(row: Mapping[str, Any]) -> list[str]:
    """Names and values, one after the other, as a hash keeps them."""
    return [word for name, value in storable(row).items() for word in (name, json.dumps(value))]


def unpacked(words: Mapping[bytes, bytes]) -> dict[str, Any]:
    try:
        return {name.decode(): json.loads(value) for name, value in words.items()}
    except (ValueError, RecursionError):
        raise foreign(
            "a row", f"it is no JSON (it begins with {b' '.join(words.values())[:60]!r})"
        ) from None


def word(name: bytes) -> str:
    """A name as the server has it; what no version of ours wrote is replaced, and then matches no row."""
    return name.decode("utf-8", "replace")


def whole(said: Any, what: str, most: int = MOST) -> int:
    """A number of the server; `ForeignRow` when it is none."""
    try:
        number = int(said or 0)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise foreign(what, f"it is no whole number up to {most:,}")
    return number


class RedisPort:
    """What each port of the store stands on: the connection that they share, and the keys of a crawl."""

    def __init__(self, connection: RedisConnection) -> None:
        self._server, self._door = connection, connection.door

    def _look(self, *command: object) -> Any:
        """The answer to a command that only reads."""
        return self._server.read(lambda: self._server.client.execute_command(*command))

    def _base(self, crawl: str) -> str:
        return f"{self._server.prefix}c:{crawl}:"

    def _there(self, crawl: str) -> Condition:
        return Condition(f"{self._base(crawl)}crawl", "id", THERE, self._door.no_crawl(crawl))

    def _write(self, crawl: str, *commands: Command) -> None:
        """Make changes to a crawl that has to be there."""
        self._server.step("steps", self._base(crawl), needed=[self._there(crawl)], writes=commands)

    def _batch_key(self, crawl: str, number: int) -> str:
        return f"{self._base(crawl)}b:{number}"

    def _attempt_key(self, crawl: str, batch: int, attempt: int) -> str:
        return f"{self._base(crawl)}a:{batch}.{attempt}"

    def _attempt_names(self, names: Iterable[bytes]) -> list[str]:
        return self._door.each(attempt_name, names)

    def _number_of(self, crawl: str, kind: str) -> int:
        """How many batches or buckets of fingerprints it has, or the highest number of its workers."""
        return whole(
            self._look("HGET", f"{self._base(crawl)}meta", kind), f"the number of {kind} of {crawl}"
        )


def attempt_name(name: bytes) -> str:
    """`<batch>.<attempt>`."""
    if not _ATTEMPT_NAME.fullmatch(word(name)):
        raise foreign(f"an attempt {word(name)[:100]!r}", "no attempt is called so")
    return word(name)
