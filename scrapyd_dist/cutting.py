"""Cutting a stream of requests into batches, by count and by age; by encoded size it is `payload.fit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapyd_dist.payload import RequestValue


@dataclass(kw_only=True)
class Cut:
    """Requests that are about to become a batch."""

    values: list[RequestValue] = field(default_factory=list)
    fingerprints: list[bytes] = field(default_factory=list)  #: one for each value


class Cutter:
    """Collects requests until a batch is full, or its first request has waited long enough."""

    def __init__(self, *, size: int, max_age: float) -> None:
        self._size = size
        self._max_age = max_age
        self._cut = Cut()
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._cut.values)

    def add(self, value: RequestValue, fingerprint: bytes, now: float) -> Cut | None:
        """Take a request in; a full batch when it completes one."""
        if not self._cut.values:
            self._since = now
        self._cut.values.append(value)
        self._cut.fingerprints.append(fingerprint)
        return self.take() if len(self._cut.values) >= self._size else None

    def due(self, now: float) -> Cut | None:
        """What has waited longer than the greatest age, if anything."""
        return self.take() if self._cut.values and now - self._since >= self._max_age else None

    def take(self) -> Cut | None:
        """Whatever is there, if anything."""
        cut, self._cut = self._cut, Cut()
        return cut if cut.values else None
