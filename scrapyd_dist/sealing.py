"""Encrypts a crawl's key for workers of another project, so that only that project's code can decrypt it.

A worker publishes the public key of a key pair derived from the Fernet key in its egg; the crawl's key is encrypted for
it. Part of the worker half: imports the standard library, and `cryptography` (a dependency of Scrapy) when used.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

#: HKDF info strings that separate these keys from others derived from the same secret
_OF_AN_EGG, _OF_A_SEAL = b"scrapyd-dist: code of a project", b"scrapyd-dist: sealed for a project"


class SealError(ValueError):
    """A public key is invalid, or a token was not sealed for this code; the message says which."""


def public_half(key: bytes) -> str:
    """Return the public key that belongs to a project's Fernet key, as text."""
    return _text(_public(_pair(key)))


def seal(secret: bytes, public: str) -> str:
    """Encrypt a secret for the owner of a public key; returns a token.

    Raises:
        SealError: the public key is invalid.
    """
    from cryptography.fernet import Fernet  # noqa: PLC0415 - only needed for work of other projects
    from cryptography.hazmat.primitives.asymmetric.x25519 import (  # noqa: PLC0415 - as above
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
    """Decrypt a token that was sealed for this project's Fernet key.

    Raises:
        SealError: the token is invalid or was sealed for another key.
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
