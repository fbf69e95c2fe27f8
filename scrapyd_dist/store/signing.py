"""Signatures of what a store keeps: a row that leads to an effect is believed only if the project's key made it.

The rule it keeps: a signature covers what a row says and which row it is, so that rows cannot be swapped. Part of the
worker half: imports the standard library only.
"""

from __future__ import annotations

import base64
import hmac
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        believes_unsigned: whether a document without a signature is believed: in a file, which only its owner can
            write, those of an older version are.
    """

    def __init__(self, key: bytes | None, *, believes_unsigned: bool) -> None:
        self._key = None if key is None else hmac.digest(key, _PURPOSE, "sha256")
        #: tells keys apart, and tells nothing of them
        self.name = "" if self._key is None else hmac.digest(self._key, b"its name", "sha256").hex()[:_DIGITS]
        self._believes_unsigned = believes_unsigned

    def signed(self, document: Mapping[str, Any], *about: object) -> dict[str, Any]:
        """The document with its signature; `about` says which row it is."""
        plain = {name: value for name, value in document.items() if name != FIELD}
        return plain if self._key is None else {**plain, FIELD: f"{self.name}.{_made(self._key, plain, about)}"}

    def opened(self, document: Mapping[str, Any], *about: object) -> tuple[dict[str, Any], str]:
        """The document without its signature; and why it is not believed, empty when it is."""
        plain = {name: value for name, value in document.items() if name != FIELD}
        if self._key is None:
            return plain, ""
        if FIELD not in document:
            return plain, "" if self._believes_unsigned else "it has no signature"
        name, _, made = str(document[FIELD]).partition(".")
        if hmac.compare_digest(_made(self._key, plain, about).encode(), made.encode("utf-8", "replace")):
            return plain, ""
        if name != self.name:
            return plain, f"it is signed with another key than the one here ({self.name})"
        return plain, "its signature does not fit it: it was changed"


def _made(key: bytes, plain: Mapping[str, Any], about: tuple[object, ...]) -> str:
    text = json.dumps([about, plain], sort_keys=True, separators=(",", ":"))
    return base64.urlsafe_b64encode(hmac.digest(key, text.encode(), "sha256")[:_BYTES]).decode().rstrip("=")
