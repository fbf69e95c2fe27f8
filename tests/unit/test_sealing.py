"""A crawl's key for another project's code: only the other half opens it, and what is no half is said to be none."""

import pytest
from cryptography.fernet import Fernet
from scrapyd_dist.middlewares import assignment
from scrapyd_dist.middlewares.assignment import crawl_key

from scrapyd_dist.keys import SealError, public_half, seal, unseal

OURS, THEIRS, ANOTHER = (Fernet.generate_key() for _ in range(3))


def test_what_is_sealed_for_a_key_is_opened_by_it_alone_and_never_reads_the_same() -> None:
    assert public_half(THEIRS) == public_half(THEIRS) != public_half(ANOTHER)
    assert public_half(THEIRS).encode() != THEIRS
    tokens = {seal(OURS, public_half(THEIRS)) for _ in range(2)}
    assert len(tokens) == 2
    for token in tokens:
        assert unseal(token, THEIRS) == OURS
        assert OURS.decode() not in token
        with pytest.raises(SealError, match="other code"):
            unseal(token, ANOTHER)


@pytest.mark.parametrize(
    "public",
    ["", "x", "é", "AAAA", pytest.param(public_half(THEIRS)[:-4], id="cut short"), "AAAA" * 10 + "AAA="],
)
def test_what_is_no_public_half_seals_nothing(public: str) -> None:
    with pytest.raises(SealError, match="no public half"):
        seal(OURS, public)


@pytest.mark.parametrize(
    "token",
    ["", ".", "x.y", f"{public_half(ANOTHER)}.", f"{public_half(ANOTHER)}.é"],
    ids=["empty", "dot", "two words", "only a public half", "no base64"],
)
def test_what_was_not_sealed_so_opens_nothing(token: str) -> None:
    with pytest.raises(SealError):
        unseal(token, THEIRS)


def test_a_job_has_the_key_of_its_egg_or_for_another_project_the_one_that_was_sealed_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignment, "egg_key", lambda: THEIRS)
    assert crawl_key({}) == THEIRS
    assert crawl_key({"foreign": True}) is None  # nothing of that crawl is encrypted: what it finds is not, either
    sealed = {"foreign": True, "key_sealed": seal(OURS, public_half(THEIRS))}
    assert crawl_key(sealed) == OURS
    monkeypatch.setattr(assignment, "egg_key", lambda: None)
    with pytest.raises(SealError, match="carries no key"):
        crawl_key(sealed)
