"""Values that may be shown: secrets in them are replaced by ***; rule: rather too much than too little."""

from __future__ import annotations

import re
from typing import Any

MASK = "***"

_SECRET_NAME = re.compile(r"passw|secret|token|credential|api_?key|private", re.IGNORECASE)
_QUERY = re.compile(r"([?&][^=&\s]*(?:passw|secret|token|key|sig)[^=&\s]*=)[^&\s#]+", re.IGNORECASE)
_LOGIN = re.compile(r"(://[^:@/\s]*):[^@]*@")
_HEADER = re.compile(r"((?:basic|bearer)\s+)\S+", re.IGNORECASE)


def masked(value: Any, name: str = "") -> Any:
    """The value with `***` for what is, or may be, a secret; texts, lists and mappings are looked into.

    Args:
        value: anything that JSON can say.
        name: what it is called, which may tell that all of it is secret.
    """
    if isinstance(value, dict):
        return {key: masked(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(inner, name) for inner in value]
    if value in (None, "") or isinstance(value, (bool, int, float)):
        return value
    return MASK if _SECRET_NAME.search(name) else masked_text(str(value))


def masked_text(text: str) -> str:
    """A text in which passwords of URLs, and what looks like a token, are replaced."""
    text = "".join(_without_password(word) for word in re.split(r"(\s+)", text))
    text = _LOGIN.sub(rf"\1:{MASK}@", text)
    return _HEADER.sub(rf"\1{MASK}", _QUERY.sub(rf"\1{MASK}", text))


def _without_password(word: str) -> str:
    if "@" not in word:
        return word
    scheme, sep, rest = word.partition("://")
    if not sep:
        scheme, rest = "", word
    # What stands before the last @ may be a password, even where the text is nonsense.
    login, _, host = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}{sep}{user}:{MASK}@{host}" if colon else word
