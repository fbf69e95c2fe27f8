"""Converts values to what an engine keeps, and back: JSON and text, signed and judged. No IO.

The rule it keeps: this is the one door through which rows of crawls, batches, attempts, shards,
misses, nodes and jobs come in. What leads to an effect is signed: a signature covers what a row
says and which row it is, so that rows cannot be swapped. All else is judged; what does not pass is
logged, and stops nothing else. Imports the standard library only.
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
    NoBatch,
    NoCrawl,
    StoreError,
)
from scrapyd_dist.frontier.backlog import Leased
from scrapyd_dist.job_record import JobRecord, JobVerdict
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.store.ports import judging
from scrapyd_dist.store.ports.judging import (
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

logger = logging.getLogger(__name__)

R = TypeVar("R")
V = TypeVar("V")
J = TypeVar("J", Attempt, WorkerEntry)

#: the name under which a document carries its signature
FIELD = "signature"
#: makes the key that is made here another one than any made of the same secret elsewhere
_PURPOSE = b"scrapyd-dist: rows of a store"
#: bytes of a signature
_BYTES = 16
#: digits of a key's name
_DIGITS = 8
#: what is kept of a crawl
CRAWL_COLUMNS = tuple(field.name for field in fields(Crawl) if field.name != "foreign")
#: fields of a crawl that can be changed
CRAWL_FIELDS = frozenset(CRAWL_COLUMNS) - {"id"}
#: fields of a node that can be changed
NODE_FIELDS = frozenset(field.name for field in fields(NodeRecord)) - {"name"}
#: fields of a crawl that its signature covers: what is done for it, in which code
SIGNED = ("id", "project", "spider", "created", "kind", "standing", "version")
#: fields of a crawl that are names
_NAMES = ("id", "project", "spider", "version", "host")
#: fields without which a row is no crawl's
_NEEDED = {"id", "project", "spider", "created"}
#: faults of rows that are logged
_MOST_LOGGED = 10

_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class Signer:
    """Signs documents, and says why one is not believed.

    Args:
        key: the project's; None where there is none: nothing is signed then, and nothing can be
            checked.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key: bytes | None = None
        #: tells keys apart, and reveals nothing of them; empty without a key
        self.name = ""
        if key is not None:
            self._key = hmac.digest(key, _PURPOSE, "sha256")
            self.name = hmac.digest(self._key, b"its name", "sha256").hex()[:_DIGITS]

    def signed(self, document: Mapping[str, Any], *about: object) -> dict[str, Any]:
        """Return the document with its signature; `about` says which row it is."""
        plain = _unsigned(document)
        if self._key is None:
            return plain
        return {**plain, FIELD: f"{self.name}.{_signature(self._key, plain, about)}"}

    def opened(self, document: Mapping[str, Any], *about: object) -> tuple[dict[str, Any], str]:
        """Return the document without its signature, and why it is not believed.

        The reason is empty when it is believed.
        """
        plain = _unsigned(document)
        if self._key is None:
            return plain, ""
        if not document.get(FIELD):
            return plain, "it has no signature"
        name, _, signature = str(document[FIELD]).partition(".")
        expected = _signature(self._key, plain, about).encode()
        if hmac.compare_digest(expected, signature.encode("utf-8", "replace")):
            return plain, ""
        if name != self.name:
            return plain, f"it is signed with another key than the one here ({self.name})"
        return plain, "its signature does not fit it: it was changed"


def _unsigned(document: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(document)
    plain.pop(FIELD, None)
    return plain


def _signature(key: bytes, plain: Mapping[str, Any], about: tuple[object, ...]) -> str:
    message = _canonical([about, plain]).encode()
    digest = hmac.digest(key, message, "sha256")[:_BYTES]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def storable_text(value: str) -> str:
    """Return text that a database can hold.

    Error messages of spiders may have halves of surrogate pairs, which are replaced.
    """
    return value.encode("utf-8", "replace").decode()


def storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as it is kept, with documents and lists as JSON."""
    return {name: _storable(value) for name, value in row.items()}


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    return value


def signed_row(signer: Signer, values: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the options of a crawl as they are kept, with its signature.

    `values` has the other fields that the signature covers (`SIGNED`).
    """
    plain = json.loads(json.dumps(dict(options)))  # as it will be when it is read
    return json.dumps(signer.signed(plain, "crawl", *_about(values)))


def _about(values: Mapping[str, Any]) -> list[Any]:
    """Return the fields that a crawl's signature covers besides its options."""
    covered = {name: values[name] for name in SIGNED}
    # As every engine gives them back: one keeps numbers as such, another one as text.
    covered["created"] = float(covered["created"])
    covered["standing"] = bool(covered["standing"])
    return list(storable(covered).values())


def check_fields(what: str, changes: Collection[str], known: Collection[str]) -> None:
    """Raise `StoreError` for fields that such a record does not have."""
    unknown = set(changes) - set(known)
    if unknown:
        raise StoreError(f"a {what} has no {', '.join(sorted(unknown))}")


def check_names(crawl: Mapping[str, Any]) -> None:
    """Raise `ContentRefused` for a name with which the crawl could not be read again."""
    names: dict[str, Any] = {}
    for name in _NAMES:
        value = crawl.get(name)
        if value is not None:
            names[name] = value
    try:
        judged("", names, judging.CRAWL)
    except ForeignRow:
        listed = ", ".join(f"{name} {value!r}" for name, value in names.items())
        raise ContentRefused(
            "This crawl cannot be kept in the store: a name has a line feed or another control"
            f" character in it, or is too long ({listed[:500]})."
        ) from None


class Door:
    """The place where the rows of one store come in.

    Args:
        signer: signs and checks with the project's key.
        place: the store's address, as it may be shown.
    """

    def __init__(self, signer: Signer, place: str) -> None:
        self.signer = signer
        self._place = place
        #: faults of rows that were logged, `_MOST_LOGGED` at most
        self._logged: set[str] = set()

    # rows that cannot be used

    def each(self, make: Callable[[R], V], rows: Iterable[R]) -> list[V]:
        """Return a value for each row that can be used; faults of the others are logged once."""
        found = []
        for row in rows:
            try:
                found.append(make(row))
            except ForeignRow as error:
                self.log_fault(str(error))
        return found

    def log_fault(self, why: str) -> None:
        """Log a fault once, and no more than `_MOST_LOGGED` faults in all."""
        if why in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(why)
        is_last = len(self._logged) == _MOST_LOGGED
        logger.warning("%s%s", why, " More of that kind is not told." if is_last else "")

    def no_crawl(self, crawl: str) -> NoCrawl:
        """Return what is raised for a crawl that is not there."""
        return NoCrawl(f"There is no crawl {crawl!r} in {self._place}.")

    def no_batch(self, crawl: str, number: int) -> NoBatch:
        """Return what is raised for a batch that is not there."""
        return NoBatch(f"crawl {crawl} has no batch {number}.")

    def _signed(
        self, what: str, row: Mapping[str, Any] | str | bytes, kind: str, crawl: str
    ) -> dict[str, Any]:
        """Return the row without its signature; `ForeignRow` when it is not believed."""
        plain, why = self.signer.opened(object_in(what, row), kind, crawl)
        if why:
            raise foreign(what, why)
        return plain

    # crawls

    def crawl(self, row: Mapping[str, Any], name: str | None = None) -> Crawl:
        """Return the crawl of a row; if this project has not signed it, `foreign` says why.

        It has no options then. Raises `ForeignRow` when the row cannot be a crawl's, or is not that
        of the crawl of this name.
        """
        found_name = str(row.get("id"))
        what = f"a row of the crawl {(name or found_name)[:100]!r}"
        options = from_json(what, row.get("options") or "{}")
        values = judged(what, {**row, "options": options}, judging.CRAWL)
        if not values.keys() >= _NEEDED or name not in (None, found_name):
            raise foreign(what, "it is not whole, or another one's")
        values |= self._summary(what, row.get("summary") or "{}")
        crawl = Crawl(**values)
        signed_options, why = self.signer.opened(options, "crawl", *_about(vars(crawl)))
        if not why:
            return replace(crawl, options=signed_options)
        disbelief = (
            f"What the store {self._place} says of the {crawl.kind} {crawl.id} is not believed:"
            f" {why}. A copy of the project with another key wrote it, or something else that can"
            " write to this store; so none of its settings is used. If another copy of the project"
            " made it, work there, or copy the file .sdist/key from there to here. `sdist crawls"
            f" clean {crawl.id}` removes it."
        )
        return replace(crawl, options={}, foreign=disbelief)

    def _summary(self, what: str, text: str | bytes) -> dict[str, Any]:
        """Return the field `summary` of a crawl; nothing when it cannot be used."""
        try:
            return judged(what, {"summary": from_json(what, text)}, judging.SUMMARY)
        except ForeignRow as error:
            self.log_fault(str(error))
            return {}

    def own(self, crawl: Crawl) -> Crawl:
        """Return the crawl itself, if what it says is believed; `ForeignRow` when it is not."""
        if crawl.foreign:
            raise ForeignRow(crawl.foreign)
        return crawl

    # batches and attempts

    def batch(self, row: Mapping[str, Any]) -> Batch:
        """Return the batch of a row."""
        what = f"a row of batch {str(row.get('number'))[:20]}"
        return made(Batch, what, row, judging.BATCH)

    def payload_text(self, crawl: str, batch: Batch, payload: Mapping[str, str]) -> str:
        """Return what a batch carries as it is kept, signed."""
        return json.dumps(self.signer.signed(payload, "batch", crawl, batch.slot, batch.size))

    def payload(self, crawl: str, batch: Batch, text: str | bytes | None) -> dict[str, str]:
        """Return what a batch carries; `ForeignRow` when this project did not write it."""
        what = f"a batch ({batch.number} of {crawl})"
        if text is None:
            raise self.no_batch(crawl, batch.number)
        settings = from_json(what, text)
        if not isinstance(settings, dict):
            raise foreign(what, "what it carries is no batch")
        if not all(isinstance(value, str) for value in settings.values()):
            raise foreign(what, "what it carries is no batch")
        payload, why = self.signer.opened(settings, "batch", crawl, batch.slot, batch.size)
        if why:
            raise ForeignRow(
                f"Batch {batch.number} of {crawl} in the store {self._place} is not believed:"
                f" {why}. A copy of the project with another key wrote it, or something else that"
                " can write to this store; so none of its requests is made. If a copy of the"
                " project filled it, copy the file .sdist/key from there."
            )
        return payload

    def leased(self, crawl: str, batch: Batch, attempt: int, text: str | bytes | None) -> Leased:
        """Return a batch in the attempt that was opened for it just now.

        One that cannot be believed has no payload, and its `fault` says why.
        """
        payload: dict[str, str] = {}
        fault = ""
        try:
            payload = self.payload(crawl, batch, text or "")
        except ForeignRow as error:
            fault = str(error)
        return Leased(batch=batch, attempt=attempt, payload=payload, fault=fault)

    def attempt(self, crawl: str, row: Mapping[str, Any]) -> Attempt:
        """Return the attempt of a row."""
        what = f"a row of an attempt of batch {str(row.get('batch'))[:20]} of {crawl}"
        # One that was leased from a server has no job written down.
        job = job_id(crawl, row.get("batch", 0), row.get("number", 0))
        row = {"job": job, **row, "report": from_json(what, row.get("report") or "{}")}
        return _checked_job(crawl, what, made(Attempt, what, row, judging.ATTEMPT))

    # what belongs to a run of a crawl

    def shard(self, crawl: str, row: Mapping[str, Any] | bytes) -> Shard:
        """Return the shard of a signed row."""
        what = f"a shard of {crawl}"
        return made(Shard, what, self._signed(what, row, "shard", crawl), judging.SHARD)

    def worker(self, crawl: str, row: Mapping[str, Any] | bytes) -> WorkerEntry:
        """Return the worker of a signed row."""
        what = f"a worker of {crawl}"
        plain = self._signed(what, row, "worker", crawl)
        return _checked_job(crawl, what, made(WorkerEntry, what, plain, judging.WORKER))

    def miss(self, crawl: str, row: Mapping[str, Any] | bytes) -> Miss:
        """Return the miss of a row."""
        what = f"a miss of {crawl}"
        return made(Miss, what, object_in(what, row), judging.MISS)

    def sample(self, crawl: str, at: Any, text: Any) -> tuple[float, dict[str, Any]]:
        """Return time and document of a sample; the document may be JSON text."""
        what = f"a sample of {crawl}"
        row = {"time": at, "document": from_json(what, text) if isinstance(text, str) else text}
        values = judged(what, row, {"time": moment, "document": document})
        return values["time"], values["document"]

    def counts(self, rows: Iterable[Sequence[Any]]) -> dict[str, int]:
        """Return the counts that are numbers, by name; `rows` are names and values."""

        def read_count(row: Sequence[Any]) -> tuple[str, int]:
            name, value = row
            try:
                return line()(name), whole(-judging.LARGEST)(int(value))
            except (ValueError, TypeError):
                raise foreign("a count", "it is no number") from None

        return dict(self.each(read_count, rows))

    # jobs

    def job_text(self, record: JobRecord) -> str:
        """Return what is remembered of a plain job as it is kept, signed.

        Raises `ConfigError` when it could not be read again.
        """
        plain = json.loads(json.dumps(asdict(record)))  # as it will be when it is read
        try:
            judged("", plain, judging.JOB)
        except ForeignRow:
            raise ConfigError(
                f"The job {record.id} cannot be kept in the store: a name or a label in it has a"
                " control character, or a text in it is too long (names 500 characters, arguments"
                " 100,000)."
            ) from None
        return json.dumps(self.signer.signed(plain, "job", record.id))

    def job(self, name: str, row: str | bytes) -> JobRecord:
        """Return what is remembered of the job of this name."""
        what = f"a job {name[:100]!r}"
        found = made(JobRecord, what, self._signed(what, row, "job", name), judging.JOB)
        if found.id != name:
            raise foreign(what, "it is another one's")
        return found

    def verdict_text(self, verdict: JobVerdict) -> str:
        """Return how a job ended as it is kept, signed."""
        plain = json.loads(json.dumps(asdict(verdict)))  # as it will be when it is read
        return json.dumps(self.signer.signed(plain, "verdict", verdict.key))

    def verdict(self, key: str, row: str | bytes) -> JobVerdict:
        """Return how the job of this key ended."""
        what = f"a verdict on the job {key[:200]!r}"
        found = made(JobVerdict, what, self._signed(what, row, "verdict", key), judging.VERDICT)
        if found.key != key:
            raise foreign(what, "it is another one's")
        return found

    # nodes

    def node(self, row: Mapping[str, Any], signature: str) -> NodeRecord:
        """Return what is remembered of a node.

        An address that is not believed is left out: neither code nor passwords are to go there.

        Args:
            row: the node's fields.
            signature: of the address, and of when it was set; empty where there is none.
        """
        name = str(row.get("name"))[:100]
        what = f"a record of the node {name!r}"
        idle_looks = from_json(what, row.get("idle_looks") or "[]")
        values = judged(what, {**row, "idle_looks": idle_looks}, judging.NODE)
        why = self._address_fault(values, signature)
        if why:
            values["changed"] = 0.0
        url = values.get("url")
        if url:
            try:
                Node.parse(url)
            except ConfigError as error:
                raise foreign(what, str(error)) from None
        if url and why:
            self.log_fault(
                f"The store {self._place} says that there is a node {name!r} at {url}, and that is"
                f" not believed: {why}. Nothing is sent there. If it is yours, add it again: sdist"
                f" nodes add {url} --name {name}"
            )
            values["url"] = ""
        values["idle_looks"] = tuple(values.get("idle_looks", ()))
        return NodeRecord(**values)

    def _address_fault(self, values: Mapping[str, Any], signature: str) -> str:
        """Return why a node's address, and when it was set, are not believed; empty if they are."""
        signed = _signed_part(values)
        if signature:
            signed[FIELD] = signature
        _, why = self.signer.opened(signed, "node", values["name"])
        return why

    def node_signature(self, name: str, changes: Mapping[str, Any]) -> str:
        """Return the proof that this project put the node there, or took it away, and when."""
        return str(self.signer.signed(_signed_part(changes), "node", name).get(FIELD, ""))


def _signed_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is signed of a node."""
    return {"url": values.get("url", ""), "changed": float(values.get("changed", 0.0))}


def dated(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a node, with the moment if its address is one of them."""
    if "url" not in changes:
        return dict(changes)
    return {"changed": time.time(), **changes}


def _checked_job(crawl: str, what: str, found: J) -> J:
    """Return the value; `ForeignRow` when its job is not one of the crawl."""
    if not found.job.startswith(f"{crawl}."):
        raise foreign(what, "its job is not one of the crawl")
    return found
