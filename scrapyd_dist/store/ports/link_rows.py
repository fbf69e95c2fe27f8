"""Converts links and events of strategies to what an engine keeps, and back. No IO.

They are JSON, signed, judged, and encrypted where needed. Requests come from workers and processes
on other machines, and lead to requests: they are signed, with what they belong to. One with private
fields is encrypted with the project's key, as it is in a batch.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from scrapyd_dist.errors import ContentRefused, ForeignRow
from scrapyd_dist.frontier.backlog import SLOT_NAME
from scrapyd_dist.payload import RequestValue, private_part_of
from scrapyd_dist.store.ports import judging
from scrapyd_dist.store.ports.judging import (
    cut,
    foreign,
    from_json,
    judged,
    like,
    made,
    moment,
    number,
    one_of,
    whole,
    words,
)
from scrapyd_dist.store.ports.rows import FIELD, Door, storable_text
from scrapyd_dist.strategy.links import (
    PARTITIONS,
    EventKind,
    FoundLink,
    Link,
    LinkChange,
    LinkEvent,
    States,
)

#: what stands for a signature where there is no key
_UNSIGNED = "-"
#: what an encrypted text begins with
_SEALED = "e:"
#: links that are read together
TOGETHER = 20_000
#: links of one partition that join the queue at once, as they become due
PROMOTED = 2_000
#: the reason of a link that is set aside
UNBELIEVED = "its request in the store is not believed"
#: characters of a reason
_REASON_MAX = 500

_NO_HEX = "is no fingerprint"

_compact = json.JSONEncoder(separators=(",", ":")).encode


def _state(value: Any) -> States:
    return States(whole(0, max(States))(value))


def _print(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(_NO_HEX)  # noqa: TRY004 - as in judging
    return bytes.fromhex(value)


def _request(value: Any) -> RequestValue:
    if not isinstance(value, dict) or not isinstance(value.get("url"), str):
        raise ValueError("is no request")  # noqa: TRY004 - as in judging
    return value


def _found(value: Any) -> FoundLink:
    fingerprint, request, slot = value
    return FoundLink(
        fingerprint=_print(fingerprint), request=_request(request), slot=like(SLOT_NAME)(slot)
    )


_partition = whole(0, PARTITIONS - 1)
#: the fields of a link, each with its check; `waits` says that it has a place in the queue
LINK = {
    "url": judging.page,
    "state": _state,
    "score": number(),
    "slot": like(SLOT_NAME),
    "partition": _partition,
    "depth": whole(),
    "due": cut(judging.LATEST),
    "expires": cut(judging.LATEST),
    "reason": words,
    "waits": judging.flag,
}
#: the fields of a link as a list has them, in this order
LINK_FIELDS = tuple(LINK)
#: the fields of an event, likewise
EVENT = {
    "kind": one_of(EventKind),
    "fingerprint": _print,
    "request": _request,
    "partition": _partition,
    "url": judging.page,
    "status": whole(0, 1 << 31),
    "body": judging.maybe(judging.text_of(judging.SEALED_MAX)),
    "error": judging.prose,
    "digest": judging.line(),
    "links": judging.tuple_of(_found),
}
#: the fields of a change in the log, likewise
CHANGE = {
    "number": whole(1),
    "at": moment,
    "url": judging.page,
    "before": _state,
    "after": _state,
    "score": number(),
    "reason": words,
}


class LinkRows:
    """The place where rows of strategies come in and go out.

    Args:
        door: that of the store.
        key: the project's Fernet key.
        is_private: only its owner reads the store; a request with private fields is then kept
            without a key as well.
    """

    def __init__(self, door: Door, key: bytes | None, *, is_private: bool) -> None:
        self._signer = door.signer
        self._key = key
        self._is_private = is_private

    # texts

    def _kept(self, plain: Any, hidden: str | None, *about: object) -> str:
        """Return a value as it is kept: its signature, a space, and JSON.

        `hidden` says what is private in the value, which is encrypted then; `about` is what the
        signature covers besides.
        """
        body = _compact(plain)
        if hidden and self._key is not None:
            from cryptography.fernet import Fernet  # noqa: PLC0415 - only needed for private requests

            body = _SEALED + Fernet(self._key).encrypt(zlib.compress(body.encode())).decode()
        elif hidden and not self._is_private:
            raise ContentRefused(
                f"a request has {hidden}, and there is no key to keep it encrypted with"
            )
        signature = self._signer.signed({"text": body}, *about).get(FIELD, _UNSIGNED)
        return f"{signature} {body}"

    def _value_in(self, what: str, kept: str | bytes, *about: object) -> Any:
        """Return the value that `_kept` made a text of.

        Raises `ForeignRow` when this project did not write it.
        """
        kept_text = kept.decode("utf-8", "replace") if isinstance(kept, bytes) else str(kept)
        signature, _, body = kept_text.partition(" ")
        signed = {"text": body}
        if signature != _UNSIGNED:
            signed[FIELD] = signature
        _, why = self._signer.opened(signed, *about)
        if why:
            raise ForeignRow(f"The store has {what} that is not believed: {why}. It is left out.")
        if body.startswith(_SEALED):
            return from_json(what, self._decrypted(what, body))
        return from_json(what, body)

    def _decrypted(self, what: str, body: str) -> bytes:
        from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 - only needed for private requests

        try:
            return zlib.decompress(Fernet(self._key or b"").decrypt(body.removeprefix(_SEALED)))
        except (ValueError, InvalidToken, zlib.error):
            raise foreign(what, "it is encrypted, and not with the key that is here") from None

    # links

    def request_text(self, crawl: str, fingerprint: bytes, value: RequestValue) -> str:
        """Return the request of a link as it is kept."""
        return self._kept(value, private_part_of(value), "link", crawl, fingerprint.hex())

    def request(self, crawl: str, fingerprint: bytes, kept: str | bytes) -> RequestValue:
        """Return the request of a link; `ForeignRow` when it is not believed, or is none."""
        what = f"the request of the link {fingerprint.hex()} of {crawl}"
        value = self._value_in(what, kept, "link", crawl, fingerprint.hex())
        request: RequestValue = judged(what, {"request": value}, {"request": _request})["request"]
        return request

    def fields(self, link: Link) -> list[Any]:
        """Return a link as it is kept, without fingerprint and request, as `LINK_FIELDS` has it.

        Raises `ContentRefused` when it could not be read again.
        """
        _check_link(link)
        waits = link.state is States.QUEUED and link.request is not None
        return [
            storable_text(link.url),
            int(link.state),
            float(link.score),
            link.slot,
            link.partition,
            link.depth,
            float(link.due),
            float(link.expires),
            storable_text(link.reason)[:_REASON_MAX],
            int(waits),
        ]

    def value(self, link: Link) -> str:
        """Return a link as one text: what a script of the store reads, and JSON behind it."""
        url, state, score, slot, partition, depth, due, expires, reason, waits = self.fields(link)
        rest = _compact([url, depth, expires, reason])
        return f"{state} {waits} {score!r} {due!r} {partition} /{slot} {rest}"

    def link_of(self, fingerprint: bytes, value: bytes) -> Link:
        """Return the link in such a text; `ForeignRow` when it is none."""
        what = f"a link {fingerprint.hex()}"
        try:
            parts = value.decode("utf-8", "replace").split(" ", 6)
            state, waits, score, due, partition, slot, rest = parts
            url, depth, expires, reason = from_json(what, rest)
            row = {
                "state": int(state),
                "waits": int(waits),
                "score": float(score),
                "due": float(due),
                "partition": int(partition),
                "slot": slot[1:],
                "url": url,
                "depth": depth,
                "expires": expires,
                "reason": reason,
            }
        except (ValueError, TypeError):
            raise foreign(what, "it is no such text") from None
        return self.link(fingerprint, row)

    def words_of(self, reason: str) -> str:
        """Return the last part of a change in the log: its reason."""
        return _compact([storable_text(reason)[:_REASON_MAX]])

    def change_of(self, number_: int, entry: bytes) -> LinkChange:
        """Return the change in an entry of the log, without the link's address.

        An entry is the length of the fingerprint in one byte, the fingerprint, and a text.
        """
        end = 1
        if entry:
            end += entry[0]
        fingerprint = entry[1:end]
        what = f"a change ({number_})"
        try:
            before, at, after, score, words_ = entry[end:].decode("utf-8", "replace").split(" ", 4)
            (reason,) = from_json(what, words_)
            row = {
                "number": number_,
                "at": float(at),
                "before": int(before),
                "after": int(after),
                "score": float(score),
                "reason": reason,
                "url": "",
            }
        except (ValueError, TypeError):
            raise foreign(what, "it is no such text") from None
        return self.change(fingerprint, row)

    def link(
        self, fingerprint: bytes, row: Mapping[str, Any], request: RequestValue | None = None
    ) -> Link:
        """Return the link in a row; `ForeignRow` when it is none."""
        fields = {**row, "fingerprint": fingerprint}
        checks = {**LINK, "fingerprint": bytes}
        link = made(Link, f"a link {fingerprint.hex()}", fields, checks)
        if request is None:
            return link
        return replace(link, request=request)

    def change(self, fingerprint: bytes, row: Mapping[str, Any]) -> LinkChange:
        """Return the change in a row of the log; `ForeignRow` when it is none."""
        what = f"a change of the link {fingerprint.hex()}"
        fields = {**row, "fingerprint": fingerprint}
        return made(LinkChange, what, fields, {**CHANGE, "fingerprint": bytes})

    # events

    def event_text(self, crawl: str, event: LinkEvent) -> str:
        """Return an event as it is kept, without its number."""
        if not 0 <= event.partition < PARTITIONS:
            raise ContentRefused(f"there is no partition {event.partition}")
        links = []
        hidden = private_part_of(event.request)
        for found in event.links:
            hidden = hidden or private_part_of(found.request)
            links.append([found.fingerprint.hex(), found.request, found.slot])
        plain = {
            "kind": event.kind.value,
            "fingerprint": event.fingerprint.hex(),
            "request": event.request,
            "partition": event.partition,
            "url": storable_text(event.url),
            "status": event.status,
            "error": storable_text(event.error),
            "digest": storable_text(event.digest),
            "links": links,
            "body": None if event.body is None else storable_text(event.body),
        }
        return self._kept(plain, hidden, "event", crawl)

    def event_texts(self, crawl: str, events: Iterable[LinkEvent]) -> list[str]:
        """Return events as they are kept, in order."""
        return [self.event_text(crawl, event) for event in events]

    def event(
        self, crawl: str, number_: int, kept: str | bytes, fault: str | None = ""
    ) -> LinkEvent:
        """Return an event; `ForeignRow` when it is not believed, or is none.

        `fault` is why it is a dead letter, if it is one.
        """
        what = f"an event ({number_} of {crawl})"
        value = self._value_in(what, kept, "event", crawl)
        fields = value if isinstance(value, dict) else {}
        row = {**fields, "number": number_, "fault": fault or ""}
        return made(LinkEvent, what, row, {**EVENT, "number": whole(1), "fault": judging.prose})

    # metadata

    def domain(self, name: str, kept: str | bytes) -> dict[str, Any]:
        """Return the metadata of a domain; `ForeignRow` when it is no JSON object."""
        what = f"the metadata of the domain {name[:100]!r}"
        row = {"it": from_json(what, kept)}
        metadata: dict[str, Any] = judged(what, row, {"it": judging.document})["it"]
        return metadata


def _check_link(link: Link) -> None:
    if not (0 <= link.partition < PARTITIONS and SLOT_NAME.fullmatch(link.slot)):
        raise ContentRefused(
            f"no link is kept in the slot {link.slot!r} of partition {link.partition}"
        )
    if link.state is States.NOT_CRAWLED:
        raise ContentRefused(f"no link is kept as not crawled, such as {link.url}")
    if not 0 <= link.depth <= judging.LARGEST:
        raise ContentRefused(f"the depth of {link.url} is {link.depth}, and has to be from 0 on")
    if not (isfinite(link.score) and isfinite(link.due) and isfinite(link.expires)):
        raise ContentRefused(
            f"the score and the times of a link are numbers, and those of {link.url} are not"
        )


def checked_metadata(name: str, metadata: Mapping[str, Any]) -> str:
    """Return the metadata of a domain as it is kept.

    Raises `ContentRefused` when it could not be read again.
    """
    try:
        kept = json.dumps(dict(metadata))
        judging.document(json.loads(kept))
    except (TypeError, ValueError, RecursionError) as error:
        raise ContentRefused(
            f"the metadata of {name} is no JSON object that can be kept: {error}"
        ) from None
    return kept


def by_fingerprint(links: Iterable[Link]) -> dict[bytes, Link]:
    """Return links by their fingerprints; of several with the same one, the last."""
    return {link.fingerprint: link for link in links}


def split_evenly(values: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Return pieces of a list that have so many values at most."""
    return [values[start : start + most] for start in range(0, len(values), most)]
