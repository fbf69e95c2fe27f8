"""Keeps the key of a project, which encrypts its batches and signs its rows, and seals with it.

The Fernet key is kept only in the state folder and inside eggs. Sealing encrypts a crawl's key for
workers of another project: a worker publishes the public key of a key pair derived from the Fernet
key in its egg, and the crawl's key is encrypted for it. Part of the worker half: imports
`cryptography` (a dependency of Scrapy) only when it is used.
"""

from __future__ import annotations

import base64
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.ownership import fault_of_file, read_regular

if TYPE_CHECKING:
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

_FILE = "key"
_LENGTH = 32  #: bytes of a key
#: file name of the Fernet key inside an egg: importlib.resources.files("scrapyd_dist") / EGG_FILE
EGG_FILE = "_key.txt"
# HKDF info strings, which separate these keys from others derived from the same secret.
_OF_AN_EGG = b"scrapyd-dist: code of a project"
_OF_A_SEAL = b"scrapyd-dist: sealed for a project"


class SealError(ValueError):
    """A public key is invalid, or a token was not sealed for this code; the message says which."""


def state_key(state: Path) -> bytes:
    """Return the project's Fernet key, made on first use in a file that only its owner can read."""
    path = state / _FILE
    if not path.exists():
        from cryptography.fernet import Fernet  # noqa: PLC0415 - see the module

        handle, name = tempfile.mkstemp(dir=state, prefix=".key-")
        with os.fdopen(handle, "wb") as file:
            file.write(Fernet.generate_key())
        # Linking is atomic: of two processes, the later one uses the earlier one's key.
        with suppress(FileExistsError):
            os.link(name, path)
        Path(name).unlink()
    return _read_key(path)


def known_key(state: Path) -> bytes | None:
    """Return the project's Fernet key, or None if there is none yet."""
    path = state / _FILE
    return _read_key(path) if path.exists() else None


def _read_key(path: Path) -> bytes:
    """Return the key in this file; ConfigError if it is none, or may be another user's."""
    if fault := fault_of_file(path):
        raise ConfigError(f"The key is not used: {fault}")
    try:
        key = read_regular(path).strip()
        is_valid = len(base64.urlsafe_b64decode(key)) == _LENGTH
    except (OSError, ValueError):
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f"The key in {path} cannot be read, or is none. What the store has of this project is"
            " encrypted and signed with it: put a copy of the file back. Without one, remove the"
            " file: what is stored here is lost then."
        )
    return key


def public_half(key: bytes) -> str:
    """Return the public key that belongs to a project's Fernet key, as text."""
    return _encode(_public_bytes(_derive_pair(key)))


def seal(secret: bytes, public: str) -> str:
    """Encrypt a secret for the owner of a public key, and return a token.

    Raises:
        SealError: the public key is invalid.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - see the module

    pair = X25519PrivateKey.generate()
    own_public = _public_bytes(pair)
    try:
        their_public = base64.b64decode(public, altchars=b"-_", validate=True)
        box = _make_box(pair, their_public, own_public + their_public)
    except ValueError:
        raise SealError("that is no public half of a key") from None
    return f"{_encode(own_public)}.{box.encrypt(secret).decode()}"


def unseal(token: str, key: bytes) -> bytes:
    """Decrypt a token that was sealed for this project's Fernet key.

    Raises:
        SealError: it was sealed for another key, or is none.
    """
    from cryptography.fernet import InvalidToken  # noqa: PLC0415 - see the module

    public, _, sealed = token.partition(".")
    pair = _derive_pair(key)
    try:
        their_public = base64.b64decode(public, altchars=b"-_", validate=True)
        box = _make_box(pair, their_public, their_public + _public_bytes(pair))
        return box.decrypt(sealed)
    except (ValueError, InvalidToken):
        raise SealError("it was sealed for other code than this") from None


def _make_box(pair: X25519PrivateKey, their_public: bytes, publics: bytes) -> Fernet:
    """Return what encrypts between two key pairs.

    `publics` is the public key of the sealing pair, then the other.
    """
    from cryptography.fernet import Fernet  # noqa: PLC0415 - see the module
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415 - as above

    shared = pair.exchange(X25519PublicKey.from_public_bytes(their_public))
    return Fernet(base64.urlsafe_b64encode(_derive(shared, _OF_A_SEAL + publics)))


def _derive_pair(key: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415 - see the module

    return X25519PrivateKey.from_private_bytes(_derive(key, _OF_AN_EGG))


def _public_bytes(pair: X25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415 - see the module

    return pair.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _derive(secret: bytes, purpose: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - see the module
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415 - as above

    return HKDF(algorithm=SHA256(), length=_LENGTH, salt=None, info=purpose).derive(secret)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()
