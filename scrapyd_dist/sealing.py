"""A crawl's key on its way to workers of another project, sealed so that only that project's own code can open it.

The rule it keeps: what a worker tells of itself may be read by anybody (half of a pair that is made from the key in its
egg), and what it is told opens nothing without the other half. Part of the worker half: the standard library, and
`cryptography` (which Scrapy brings) when it is used.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

#: what tells the keys that are made here from any other one made of the same secret
_OF_AN_EGG, _OF_A_SEAL = b"scrapyd-dist: code of a project", b"scrapyd-dist: sealed for a project"


class SealError(ValueError):
    """It is no public half, or was not sealed for this code; the text says which."""


def public_half(key: bytes) -> str:
    """What may be known of a project's key: enough to seal for whoever has it."""
    return _text(_public(_pair(key)))


def seal(secret: bytes, public: str) -> str:
    """The secret, to be opened only by the key that this public half is of.

    Raises:
        SealError: it is no public half.
    """
    from cryptography.fernet import Fernet  # noqa: PLC0415 - only work for other projects pays for it
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - likewise
        X25519PrivateKey,
        X25519PublicKey,
    )

    once = X25519PrivateKey.generate()
    try:
        shared = once.exchange(X25519PublicKey.from_public_bytes(_bytes(public)))
    except ValueError:
        raise SealError("that is no public half of a key") from None
    mine = _public(once)
    box = Fernet(base64.urlsafe_b64encode(_derived(shared, _OF_A_SEAL + mine + _bytes(public))))
    return f"{_text(mine)}.{box.encrypt(secret).decode()}"


def unseal(token: str, key: bytes) -> bytes:
    """What was sealed for this key.

    Raises:
        SealError: it was sealed for another one, or is none of ours.
    """
    from cryptography.fernet import Fernet, InvalidToken  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415 - as above

    once, _, sealed = token.partition(".")
    pair = _pair(key)
    try:
        theirs = _bytes(once)
        shared = pair.exchange(X25519PublicKey.from_public_bytes(theirs))
        box = Fernet(base64.urlsafe_b64encode(_derived(shared, _OF_A_SEAL + theirs + _public(pair))))
        return box.decrypt(sealed)
    except (ValueError, InvalidToken):
        raise SealError("it was sealed for other code than this") from None


def _pair(key: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - as above

    return X25519PrivateKey.from_private_bytes(_derived(key, _OF_AN_EGG))


def _public(pair: X25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415 - as above

    return pair.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _derived(secret: bytes, what_for: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - as above

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=what_for).derive(secret)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:
        raise SealError("that is no public half of a key") from None
