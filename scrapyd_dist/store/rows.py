"""Values as an engine keeps them, and back: JSON, and text that any database can hold; signed, and judged. No IO.

The rule it keeps: this is the one door through which rows of crawls, batches, attempts, shards, misses, nodes and jobs
come in. What leads to an effect is signed: a signature covers what a row says and which row it is, so that rows cannot
be swapped. All else is judged; what does not pass is told, and stops nothing else. Imports the standard library only.
"""

import base64
import hmac
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from scrapyd_dist.batches import Attempt, Batch, Crawl, Miss, Shard, WorkerEntry, job_id
from scrapyd_dist.errors import (
    ConfigError,
    ContentRefused,
    ForeignRow,
    NoCrawl,
    NothingMatched,
    StoreError,
)
from scrapyd_dist.frontier.backlog import Leased
from scrapyd_dist.job_record import JobRecord, JobVerdict
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.store import judging
from scrapyd_dist.store.judging import (
    document,
    foreign,
    from_json,
    judged,
    line,
    made,
    moment,
    object_in,
    whole,
)

#: the name under which a document carries its signature
FIELD = "signature"
#: what tells the key that is made here from any other one made of the same secret
_PURPOSE = b"scrapyd-dist: rows of a store"
#: bytes of a signature
_BYTES = 16
_DIGITS = 8


class Signer:
    """Signs documents, and says why one is not believed.

    Args:
        key: the project's; None where there is none: nothing is signed then, and nothing can be checked.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = None if key is None else hmac.digest(key, _PURPOSE, "sha256")
        #: tells keys apart, and tells nothing of them
        self.name = (
            ""
            if self._key is None
            else hmac.digest(self._key, b"its name", "sha256").hex()[:_DIGITS]
        )

    def signed(self, document: Mapping[str, Any], *about: object) -> dict[str, Any]:
        """The document with its signature; `about` says which row it is."""
        plain = {name: value for name, value in document.items() if name != FIELD}
        return (
            plain
            if self._key is None
            else {**plain, FIELD: f"{self.name}.{_made(self._key, plain, about)}"}
        )

    def opened(self, document: Mapping[str, Any], *about: object) -> tuple[dict[str, Any], str]:
        """The document without its signature; and why it is not believed, empty when it is."""
        plain = {name: value for name, value in document.items() if name != FIELD}
        if self._key is None:
            return plain, ""
        if not document.get(FIELD):
            return plain, "it has no signature"
        name, _, made = str(document[FIELD]).partition(".")
        if hmac.compare_digest(
            _made(self._key, plain, about).encode(), made.encode("utf-8", "replace")
        ):
            return plain, ""
        if name != self.name:
            return plain, f"it is signed with another key than the one here ({self.name})"
        return plain, "its signature does not fit it: it was changed"


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def _made(key: bytes, plain: Mapping[str, Any], about: tuple[object, ...]) -> str:
    text = _canonical([about, plain])
    return (
        base64.urlsafe_b64encode(hmac.digest(key, text.encode(), "sha256")[:_BYTES])
        .decode()
        .rstrip("=")
    )


logger = logging.getLogger(__name__)
R = TypeVar("R")
V = TypeVar("V")
J = TypeVar("J", Attempt, WorkerEntry)
#: what is kept of a crawl
CRAWL_COLUMNS = tuple(field.name for field in fields(Crawl) if field.name != "foreign")
CRAWL_FIELDS = frozenset(CRAWL_COLUMNS) - {"id"}
NODE_FIELDS = frozenset(field.name for field in fields(NodeRecord)) - {"name"}
#: fields of a crawl that its signature covers: what is done for it, in which code
SIGNED = ("id", "project", "spider", "created", "kind", "standing", "version")
#: rows that cannot be used and are told of
TOLD = 10


def text(value: str) -> str:
    """Plain text that a database can hold: error messages of spiders may have halves of surrogate pairs."""
    return value.encode("utf-8", "replace").decode()


def storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is kept: texts that a database can hold, states by their names, documents and lists as JSON."""
    return {name: _storable(value) for name, value in row.items()}


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return json.dumps(list(value)) if isinstance(value, (list, tuple)) else value


def signed_row(signer: Signer, values: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """The options of a crawl as they are kept, with the signature of all that it covers; `values` has the rest."""
    plain = json.loads(json.dumps(dict(options)))  # as it will be when it is read
    return json.dumps(signer.signed(plain, "crawl", *_about(values)))


def _about(values: Mapping[str, Any]) -> list[Any]:
    # As every engine gives them back: one keeps numbers as such, another one as text.
    as_kept = {**values, "created": float(values["created"]), "standing": bool(values["standing"])}
    return list(storable({name: as_kept[name] for name in SIGNED}).values())


def check_fields(what: str, changes: Collection[str], known: Collection[str]) -> None:
    """Raise `StoreError` for fields that such a record does not have."""
    unknown = set(changes) - set(known)
    if unknown:
        raise StoreError(f"a {what} has no {', '.join(sorted(unknown))}")


#: fields of a crawl that are names
_NAMES = ("id", "project", "spider", "version", "host")


def check_names(crawl: Mapping[str, Any]) -> None:
    """Raise `ContentRefused` for a name that could not be read again: the crawl would be there, and nobody's."""
    names = {name: crawl[name] for name in _NAMES if crawl.get(name) is not None}
    try:
        judged("", names, judging.CRAWL)
    except ForeignRow:
        told = ", ".join(f"{name} {value!r}" for name, value in names.items())
        raise ContentRefused(
            f"This crawl cannot be kept in the store: a name has a line feed or another control character in it, or is"
            f" too long ({told[:500]})."
        ) from None


class Door:
    """Where the rows of one store come in; `place` is its address, as it may be shown."""

    def __init__(self, signer: Signer, place: str) -> None:
        self.signer, self._place = signer, place
        self._told: set[str] = set()

    def each(self, make: Callable[[R], V], rows: Iterable[R]) -> list[V]:
        """All rows that can be used; the others are told of once."""
        found = []
        for row in rows:
            try:
                found.append(make(row))
            except ForeignRow as error:
                self.tell(str(error))
        return found

    def tell(self, why: str) -> None:
        """Say it once."""
        if why not in self._told and len(self._told) < TOLD:
            self._told.add(why)
            logger.warning(
                "%s%s", why, " More of that kind is not told." if len(self._told) == TOLD else ""
            )

    def no_crawl(self, crawl: str) -> NoCrawl:
        return NoCrawl(
            f"There is no crawl {crawl!r} in {self._place}; `sdist crawls` lists those there are."
        )

    def no_batch(self, crawl: str, number: int) -> NothingMatched:
        return NothingMatched(f"crawl {crawl} has no batch {number}.")

    def crawl(self, row: Mapping[str, Any], name: str | None = None) -> Crawl:
        """A crawl; if it is not signed by this project, it has no options, and `foreign` says why.

        Raises `ForeignRow` when it cannot be a crawl, or not the one of this name.
        """
        said = str(row.get("id"))
        what = f"a row of the crawl {(name or said)[:100]!r}"
        options = from_json(what, row.get("options") or "{}")
        values = judged(what, {**row, "options": options}, judging.CRAWL)
        if set(values) < {"id", "project", "spider", "created", "state"} or name not in (
            None,
            said,
        ):
            raise foreign(what, "it is not whole, or another one's")
        try:
            summary = judged(
                what, {"summary": from_json(what, row.get("summary") or "{}")}, judging.SUMMARY
            )
        except ForeignRow as error:
            self.tell(str(error))
            summary = {}
        crawl = Crawl(**{**values, **summary})
        told, why = self.signer.opened(options, "crawl", *_about(vars(crawl)))
        if not why:
            return replace(crawl, options=told)
        disbelief = (
            f"What the store {self._place} says of the {crawl.kind} {crawl.id} is not believed: {why}. A copy of the"
            " project with another key wrote it, or something else that can write to this store; so none of its"
            " settings is used. If another copy of the project made it, work there, or copy the file .sdist/key from"
            f" there to here. `sdist crawls clean {crawl.id}` removes it."
        )
        return replace(crawl, options={}, foreign=disbelief)

    def own(self, crawl: Crawl) -> Crawl:
        """The crawl itself, if what it says is believed; `ForeignRow` when it is not."""
        if crawl.foreign:
            raise ForeignRow(crawl.foreign)
        return crawl

    def batch(self, row: Mapping[str, Any]) -> Batch:
        what = f"a row of batch {str(row.get('number'))[:20]}"
        return made(Batch, what, row, judging.BATCH)

    def payload_text(self, crawl: str, batch: Batch, payload: Mapping[str, str]) -> str:
        """What a batch carries, as it is kept."""
        return json.dumps(self.signer.signed(payload, "batch", crawl, batch.slot, batch.size))

    def payload(self, crawl: str, batch: Batch, text: str | bytes | None) -> dict[str, str]:
        """What a batch carries; `ForeignRow` when this project did not write it."""
        what = f"a batch ({batch.number} of {crawl})"
        if text is None:
            raise self.no_batch(crawl, batch.number)
        said = from_json(what, text)
        if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
            raise foreign(what, "what it carries is no batch")
        payload, why = self.signer.opened(said, "batch", crawl, batch.slot, batch.size)
        if why:
            raise ForeignRow(
                f"Batch {batch.number} of {crawl} in the store {self._place} is not believed: {why}. A copy of the"
                " project with another key wrote it, or something else that can write to this store; so none of its"
                " requests is made. If a copy of the project filled it, copy the file .sdist/key from there."
            )
        return payload

    def leased(self, crawl: str, batch: Batch, attempt: int, text: str | bytes | None) -> Leased:
        """A batch in the attempt that was opened for it just now; one that cannot be believed tells why."""
        try:
            payload, fault = self.payload(crawl, batch, text or ""), ""
        except ForeignRow as error:
            payload, fault = {}, str(error)
        return Leased(batch=batch, attempt=attempt, payload=payload, fault=fault)

    def attempt(self, crawl: str, row: Mapping[str, Any]) -> Attempt:
        what = f"a row of an attempt of batch {str(row.get('batch'))[:20]} of {crawl}"
        # One that was leased from a server has no job written down.
        job = job_id(crawl, row.get("batch", 0), row.get("number", 0))
        row = {"job": job, **row, "report": from_json(what, row.get("report") or "{}")}
        return _of_crawl(crawl, what, made(Attempt, what, row, judging.ATTEMPT))

    def shard(self, crawl: str, row: Mapping[str, Any] | bytes) -> Shard:
        what = f"a shard of {crawl}"
        return made(Shard, what, self._signed(what, row, "shard", crawl), judging.SHARD)

    def worker(self, crawl: str, row: Mapping[str, Any] | bytes) -> WorkerEntry:
        what = f"a worker of {crawl}"
        plain = self._signed(what, row, "worker", crawl)
        return _of_crawl(crawl, what, made(WorkerEntry, what, plain, judging.WORKER))

    def job_text(self, record: JobRecord) -> str:
        """What is remembered of a plain job, as it is kept; ConfigError if it could not be read again."""
        plain = json.loads(json.dumps(asdict(record)))  # as it will be when it is read
        try:
            judged("", plain, judging.JOB)
        except ForeignRow:
            raise ConfigError(
                f"The job {record.id} cannot be kept in the store: a name or a label in it has a control character, or"
                " a text in it is too long (names 500 characters, arguments 100,000)."
            ) from None
        return json.dumps(self.signer.signed(plain, "job", record.id))

    def job(self, name: str, row: str | bytes) -> JobRecord:
        what = f"a job {name[:100]!r}"
        found = made(JobRecord, what, self._signed(what, row, "job", name), judging.JOB)
        if found.id != name:
            raise foreign(what, "it is another one's")
        return found

    def verdict_text(self, verdict: JobVerdict) -> str:
        """How a job ended, as it is kept."""
        return json.dumps(
            self.signer.signed(json.loads(json.dumps(asdict(verdict))), "verdict", verdict.key)
        )

    def verdict(self, key: str, row: str | bytes) -> JobVerdict:
        what = f"a verdict on the job {key[:200]!r}"
        found = made(JobVerdict, what, self._signed(what, row, "verdict", key), judging.VERDICT)
        if found.key != key:
            raise foreign(what, "it is another one's")
        return found

    def _signed(
        self, what: str, row: Mapping[str, Any] | str | bytes, kind: str, crawl: str
    ) -> dict[str, Any]:
        """The row without its signature, if that is believed."""
        plain, why = self.signer.opened(object_in(what, row), kind, crawl)
        if why:
            raise foreign(what, why)
        return plain

    def miss(self, crawl: str, row: Mapping[str, Any] | bytes) -> Miss:
        what = f"a miss of {crawl}"
        return made(Miss, what, object_in(what, row), judging.MISS)

    def sample(self, crawl: str, at: Any, text: Any) -> tuple[float, dict[str, Any]]:
        what = f"a sample of {crawl}"
        said = from_json(what, text) if isinstance(text, str) else text
        values = judged(
            what, {"time": at, "document": said}, {"time": moment, "document": document}
        )
        return values["time"], values["document"]

    def counts(self, rows: Iterable[Sequence[Any]]) -> dict[str, int]:
        """Those of the counts that are numbers."""

        def one(row: Sequence[Any]) -> tuple[str, int]:
            name, value = row
            try:
                return line()(name), whole(-judging.LARGEST)(int(value))
            except (ValueError, TypeError):
                raise foreign("a count", "it is no number") from None

        return dict(self.each(one, rows))

    def node(self, row: Mapping[str, Any], signature: str) -> NodeRecord:
        """What is remembered of a node. An address that is not believed is nowhere to send code or passwords to.

        Args:
            row: its fields.
            signature: of the address, and of when it was set; empty where there is none.
        """
        name = str(row.get("name"))[:100]
        what = f"a record of the node {name!r}"
        values = judged(
            what,
            {**row, "idle_looks": from_json(what, row.get("idle_looks") or "[]")},
            judging.NODE,
        )
        why = self._address_fault(values, signature)
        if why:
            values["changed"] = 0.0
        if values.get("url"):
            try:
                Node.parse(values["url"])
            except ConfigError as error:
                raise foreign(what, str(error)) from None
            if why:
                self.tell(
                    f"The store {self._place} says that there is a node {name!r} at {values['url']}, and that is not"
                    f" believed: {why}. Nothing is sent there. If it is yours, add it again: sdist nodes add"
                    f" {values['url']} --name {name}"
                )
                values["url"] = ""
        return NodeRecord(**{**values, "idle_looks": tuple(values.get("idle_looks", ()))})

    def _address_fault(self, values: Mapping[str, Any], signature: str) -> str:
        """Why a node's address is not believed, and when it was set; empty when it is."""
        signed = {**_word_of(values), **({FIELD: signature} if signature else {})}
        return self.signer.opened(signed, "node", values["name"])[1]

    def node_signature(self, name: str, changes: Mapping[str, Any]) -> str:
        """What proves that this project put the node there, or took it away, and when."""
        return str(self.signer.signed(_word_of(changes), "node", name).get(FIELD, ""))


def _word_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is signed of a node."""
    return {"url": values.get("url", ""), "changed": float(values.get("changed", 0.0))}


def dated(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a node, with the moment if its address is one of them."""
    return {"changed": time.time(), **changes} if "url" in changes else dict(changes)


def _of_crawl(crawl: str, what: str, found: J) -> J:
    """The value, if its job is one of the crawl."""
    if not found.job.startswith(f"{crawl}."):
        raise foreign(what, "its job is not one of the crawl")
    return found
