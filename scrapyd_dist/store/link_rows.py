"""Links and events of strategies as an engine keeps them, and back: JSON, signed, judged, and encrypted where needed.

Requests come from workers and processes on other machines, and lead to requests: they are signed, with what they belong
to. One with private fields is encrypted with the project's key, as it is in a batch. No IO.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from scrapyd_dist.errors import ContentRefused, ForeignRow
from scrapyd_dist.frontier.backlog import SLOT_NAME
from scrapyd_dist.payload import RequestValue, hidden_by
from scrapyd_dist.store import judging
from scrapyd_dist.store.judging import (
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
from scrapyd_dist.store.rows import FIELD, Door, text
from scrapyd_dist.strategy.links import (
    PARTITIONS,
    EventKind,
    FoundLink,
    Link,
    LinkChange,
    LinkEvent,
    States,
)

#: what stands for a signature where there is no key, and before a text that is encrypted
_UNSIGNED, _SEALED = "-", "e:"
#: links that are looked up together, and those of one partition that join the queue in one look, as they become due
TOGETHER, PROMOTED = 20_000, 2_000
#: the reason of a link that is set aside
UNBELIEVED = "its request in the store is not believed"
#: characters of a reason
_REASON_MAX = 500

_compact = json.JSONEncoder(separators=(",", ":")).encode
_NO_HEX = "is no fingerprint"


def _state(value: Any) -> States:
    return States(whole(0, max(States))(value))


def _print(value: Any) -> bytes:
    if not isinstance(value, str):
        raise ValueError(_NO_HEX)
    return bytes.fromhex(value)


def _request(value: Any) -> RequestValue:
    if not isinstance(value, dict) or not isinstance(value.get("url"), str):
        raise ValueError("is no request")
    return value


def _found(value: Any) -> FoundLink:
    fingerprint, request, slot = value
    return FoundLink(
        fingerprint=_print(fingerprint), request=_request(request), slot=like(SLOT_NAME)(slot)
    )


_partition = whole(0, PARTITIONS - 1)
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
    """Where rows of strategies come in and go out.

    Args:
        door: of the store.
        key: the project's Fernet key.
        is_private: only its owner reads the store; a request with private fields is then kept without a key as well.
    """

    def __init__(self, door: Door, key: bytes | None, *, is_private: bool) -> None:
        self._door, self._signer, self._key, self._is_private = door, door.signer, key, is_private

    # texts

    def _kept(self, plain: Any, hidden: str | None, *about: object) -> str:
        """The value as it is kept: its signature, and JSON, encrypted when something is hidden in it."""
        said = _compact(plain)
        if hidden and self._key is not None:
            from cryptography.fernet import Fernet

            said = _SEALED + Fernet(self._key).encrypt(zlib.compress(said.encode())).decode()
        elif hidden and not self._is_private:
            raise ContentRefused(
                f"a request has {hidden}, and there is no key to keep it encrypted with"
            )
        return f"{self._signer.signed({'text': said}, *about).get(FIELD, _UNSIGNED)} {said}"

    def _said(self, what: str, kept: str | bytes, *about: object) -> Any:
        """The value back; `ForeignRow` when this project did not write it."""
        whole_text = kept.decode("utf-8", "replace") if isinstance(kept, bytes) else str(kept)
        signature, _, said = whole_text.partition(" ")
        signed = {"text": said} if signature == _UNSIGNED else {"text": said, FIELD: signature}
        why = self._signer.opened(signed, *about)[1]
        if why:
            raise ForeignRow(f"The store has {what} that is not believed: {why}. It is left out.")
        return from_json(what, self._opened(what, said) if said.startswith(_SEALED) else said)

    def _opened(self, what: str, said: str) -> bytes:
        from cryptography.fernet import Fernet, InvalidToken

        try:
            return zlib.decompress(Fernet(self._key or b"").decrypt(said.removeprefix(_SEALED)))
        except (ValueError, InvalidToken, zlib.error):
            raise foreign(what, "it is encrypted, and not with the key that is here") from None

    # links

    def request_text(self, crawl: str, fingerprint: bytes, value: RequestValue) -> str:
        return self._kept(value, hidden_by(value), "link", crawl, fingerprint.hex())

    def request(self, crawl: str, fingerprint: bytes, kept: str | bytes) -> RequestValue:
        what = f"the request of the link {fingerprint.hex()} of {crawl}"
        said = self._said(what, kept, "link", crawl, fingerprint.hex())
        request: RequestValue = judged(what, {"request": said}, {"request": _request})["request"]
        return request

    def fields(self, link: Link) -> list[Any]:
        """A link as it is kept, without its fingerprint and its request, in the order of `LINK_FIELDS`."""
        waits = link.state is States.QUEUED and link.request is not None
        if not (0 <= link.partition < PARTITIONS and SLOT_NAME.fullmatch(link.slot)):
            raise ContentRefused(
                f"no link is kept in the slot {link.slot!r} of partition {link.partition}"
            )
        if link.state is States.NOT_CRAWLED:
            raise ContentRefused(f"no link is kept as not crawled, such as {link.url}")
        if not 0 <= link.depth <= judging.LARGEST:
            raise ContentRefused(
                f"the depth of {link.url} is {link.depth}, and has to be from 0 on"
            )
        if not (isfinite(link.score) and isfinite(link.due) and isfinite(link.expires)):
            raise ContentRefused(
                f"the score and the times of a link are numbers, and those of {link.url} are not"
            )
        return [
            text(link.url),
            int(link.state),
            float(link.score),
            link.slot,
            link.partition,
            link.depth,
            float(link.due),
            float(link.expires),
            text(link.reason)[:_REASON_MAX],
            int(waits),
        ]

    def value(self, link: Link) -> str:
        """A link as one text: what a script of the store looks into, and JSON behind it."""
        url, state, score, slot, partition, depth, due, expires, reason, waits = self.fields(link)
        rest = _compact([url, depth, expires, reason])
        return f"{state} {waits} {score!r} {due!r} {partition} /{slot} {rest}"

    def link_of(self, fingerprint: bytes, value: bytes) -> Link:
        """The link in such a text."""
        what = f"a link {fingerprint.hex()}"
        try:
            state, waits, score, due, partition, slot, rest = value.decode(
                "utf-8", "replace"
            ).split(" ", 6)
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
        """What the log has of a change besides."""
        return _compact([text(reason)[:_REASON_MAX]])

    def change_of(self, number_: int, entry: bytes) -> LinkChange:
        """The change in an entry of the log, without the link's address."""
        end = 1 + (entry[0] if entry else 0)
        fingerprint, what = entry[1:end], f"a change ({number_})"
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
        link = made(
            Link,
            f"a link {fingerprint.hex()}",
            {**row, "fingerprint": fingerprint},
            {**LINK, "fingerprint": bytes},
        )
        if request is None:
            return link
        return Link(
            **{name: getattr(link, name) for name in (*LINK_FIELDS, "fingerprint")}, request=request
        )

    def change(self, fingerprint: bytes, row: Mapping[str, Any]) -> LinkChange:
        checks = {**CHANGE, "fingerprint": bytes}
        return made(
            LinkChange,
            f"a change of the link {fingerprint.hex()}",
            {**row, "fingerprint": fingerprint},
            checks,
        )

    # events

    def event_text(self, crawl: str, event: LinkEvent) -> str:
        if not 0 <= event.partition < PARTITIONS:
            raise ContentRefused(f"there is no partition {event.partition}")
        hidden = hidden_by(event.request) or next(
            filter(None, (hidden_by(one.request) for one in event.links)), None
        )
        plain = {
            "kind": event.kind.value,
            "fingerprint": event.fingerprint.hex(),
            "request": event.request,
            "partition": event.partition,
            "url": text(event.url),
            "status": event.status,
            "error": text(event.error),
            "digest": text(event.digest),
            "links": [[one.fingerprint.hex(), one.request, one.slot] for one in event.links],
            "body": None if event.body is None else text(event.body),
        }
        return self._kept(plain, hidden, "event", crawl)

    def event(
        self, crawl: str, number_: int, kept: str | bytes, fault: str | None = ""
    ) -> LinkEvent:
        what = f"an event ({number_} of {crawl})"
        said = self._said(what, kept, "event", crawl)
        row = {**(said if isinstance(said, dict) else {}), "number": number_, "fault": fault or ""}
        return made(LinkEvent, what, row, {**EVENT, "number": whole(1), "fault": judging.prose})

    # metadata

    def domain(self, name: str, kept: str | bytes) -> dict[str, Any]:
        what = f"the metadata of the domain {name[:100]!r}"
        metadata: dict[str, Any] = judged(
            what, {"it": from_json(what, kept)}, {"it": judging.document}
        )["it"]
        return metadata


def checked_metadata(name: str, metadata: Mapping[str, Any]) -> str:
    """The metadata of a domain as it is kept; `ContentRefused` when it could not be read again."""
    try:
        kept = json.dumps(dict(metadata))
        judging.document(json.loads(kept))
    except (TypeError, ValueError, RecursionError) as error:
        raise ContentRefused(
            f"the metadata of {name} is no JSON object that can be kept: {error}"
        ) from None
    return kept


def split_evenly(values: Sequence[Any], most: int) -> list[Sequence[Any]]:
    """Pieces of a list that have so many values at most."""
    return [values[start : start + most] for start in range(0, len(values), most)]
