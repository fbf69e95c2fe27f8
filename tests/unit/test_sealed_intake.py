"""What a report asks the fleet for comes back as it was sealed, and nothing else is taken for it."""

import json
import zlib
from typing import Any

import pytest
from cryptography.fernet import Fernet

from scrapyd_dist.batches import Miss
from scrapyd_dist.frontier import sealed_intake
from scrapyd_dist.frontier.packing import FrontierIntake
from scrapyd_dist.frontier.sealed_intake import SealedIntake
from scrapyd_dist.keys import SealError

KEY = Fernet.generate_key()
REQUEST = FrontierIntake(
    value={"url": "http://web/é", "meta": {"a": [1, None]}}, fingerprint=b"\0" * 20, priority=-3
)
INTAKE = SealedIntake(
    requests=[REQUEST],
    counts={"offsite": 2},
    misses=[Miss(url="http://web/x", kind="dead", reason="no spider takes it")],
)
ROW = [{"url": "http://web/"}, "00" * 20, 0]


def seal(document: Any) -> str:
    """Any document, as a node with the key could seal it."""
    return Fernet(KEY).encrypt(zlib.compress(json.dumps(document).encode())).decode()


def test_what_is_sealed_comes_back_and_cannot_be_read_without_the_key() -> None:
    text = INTAKE.seal(KEY)
    assert SealedIntake.unseal(text, KEY) == INTAKE
    assert "http" not in text


@pytest.mark.parametrize("key", [None, Fernet.generate_key()], ids=["none", "another"])
def test_without_the_key_it_is_refused(key: bytes | None) -> None:
    with pytest.raises(SealError):
        SealedIntake.unseal(INTAKE.seal(KEY), key)


@pytest.mark.parametrize(
    "fields",
    [
        {"requests": 3},
        {"requests": [ROW[:2]]},
        {"requests": [["http://web/", *ROW[1:]]]},
        {"requests": [[{"url": 1}, *ROW[1:]]]},
        {"requests": [[ROW[0], "", 0]]},
        {"requests": [[ROW[0], "zz", 0]]},
        {"requests": [[ROW[0], "00" * 65, 0]]},
        {"requests": [[*ROW[:2], 1.5]]},
        {"requests": [[*ROW[:2], 1 << 60]]},
        {"counts": {"offsite": True}},
        {"counts": {"offsite": -1}},
        {"counts": [1]},
        {"misses": [{"url": "x"}]},
        {"misses": [{"url": "x", "kind": "odd", "reason": "", "batch": 0}]},
    ],
    ids=str,
)
def test_what_is_no_such_document_is_refused(fields: dict[str, Any]) -> None:
    document = {"requests": [ROW], "counts": {}, "misses": []}
    assert len(SealedIntake.unseal(seal(document), KEY).requests) == 1
    with pytest.raises(SealError, match="cannot be read"):
        SealedIntake.unseal(seal({**document, **fields}), KEY)


def test_no_report_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_intake, "SEALED_BYTES", 1_000)
    large = {"requests": [], "counts": {}, "misses": [], "more": "x" * 3_000}
    with pytest.raises(SealError):
        SealedIntake.unseal(seal(large), KEY)


@pytest.mark.parametrize(
    "text",
    ["", "x", "é", Fernet(KEY).encrypt(b"no zlib").decode()],
    ids=["empty", "short", "no ASCII", "sealed and not packed"],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(SealError):
        SealedIntake.unseal(text, KEY)
