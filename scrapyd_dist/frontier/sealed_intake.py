"""Seals requests that a report brings home, so that the crawl's key alone makes and reads them.

Part of the worker half: imports the standard library, and `cryptography` when it is used.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scrapyd_dist.batches import Miss, MissKind
from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.keys import SealError
from scrapyd_dist.payload import RequestValue

#: most bytes of JSON that are sealed: a report has at most 16 MiB
SEALED_BYTES = 8 * 1024 * 1024
#: most that one count says
_MOST_COUNTED = 1 << 53
#: most bytes of a fingerprint
_FINGERPRINT_BYTES = 64


def weigh(value: RequestValue) -> int:
    """Return the bytes that a request takes of `SEALED_BYTES`, about."""
    return len(json.dumps(value)) + 2 * _FINGERPRINT_BYTES


@dataclass(frozen=True, kw_only=True)
class SealedIntake:
    """Holds what a job has asked the fleet for, with the account of it."""

    requests: Sequence[FrontierIntake] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  #: of those that go nowhere, by name
    misses: Sequence[Miss] = ()  #: those for other spiders that none can take

    def seal(self, key: bytes) -> str:
        """Return it as text that only this Fernet key opens."""
        from cryptography.fernet import Fernet  # noqa: PLC0415 - see the module

        document = {
            "requests": [_row_of(request) for request in self.requests],
            "counts": dict(self.counts),
            "misses": [asdict(miss) for miss in self.misses],
        }
        return Fernet(key).encrypt(zlib.compress(json.dumps(document).encode(), 9)).decode()

    @classmethod
    def unseal(cls, text: str, key: bytes | None) -> SealedIntake:
        """Read what `seal` has written.

        Raises:
            SealError: it was sealed with another key, or there is no key, or it is none.
        """
        if key is None:
            raise SealError("what its job has asked for is sealed, and there is no key")
        from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 - see the module

        try:
            return cls._read(json.loads(_decompress(Fernet(key).decrypt(text))))
        except InvalidToken:
            raise SealError("what its job has asked for was sealed with another key") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as why:
            message = f"what its job has asked for cannot be read: {type(why).__name__}"
            raise SealError(message) from why

    @classmethod
    def _read(cls, document: Any) -> SealedIntake:
        counts = {}
        for name, number in document["counts"].items():
            counts[str(name)] = _read_number(number, 0, _MOST_COUNTED)
        return cls(
            requests=[_read_request(*row) for row in document["requests"]],
            counts=counts,
            misses=[_read_miss(**row) for row in document["misses"]],
        )


def _row_of(request: FrontierIntake) -> list[Any]:
    return [request.value, request.fingerprint.hex(), request.priority]


def _decompress(data: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(data, 2 * SEALED_BYTES)
    if not unpacking.eof:
        raise ValueError("it is too large, or cut")
    return found


def _read_number(number: Any, least: int, most: int) -> int:
    if type(number) is not int or not least <= number <= most:
        raise ValueError("a number that is none")
    return number


def _read_request(value: Any, fingerprint: str, priority: Any) -> FrontierIntake:
    if not isinstance(value, dict) or not isinstance(value.get("url"), str):
        raise TypeError("a request without a URL")
    known_by = bytes.fromhex(fingerprint)
    if not 0 < len(known_by) <= _FINGERPRINT_BYTES:
        raise ValueError("a fingerprint that is none")
    priority = _read_number(priority, -MAX_PRIORITY, MAX_PRIORITY)
    return FrontierIntake(value=value, fingerprint=known_by, priority=priority)


def _read_miss(*, url: str, kind: str, reason: str, batch: int) -> Miss:
    return Miss(url=str(url), kind=MissKind(kind).value, reason=str(reason), batch=int(batch))
