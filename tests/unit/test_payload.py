"""How a batch and a key travel: nothing lost, nothing readable that must not be, no byte more than the kernel takes."""

import errno
import hashlib
import json
import os
import random
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest
from cryptography.fernet import Fernet
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapyd_dist.middlewares import assignment
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.codec import IS_START, to_value

from scrapyd_dist import payload
from scrapyd_dist.keys import SealError, public_half, seal, unseal
from scrapyd_dist.payload import (
    ARGUMENT_MAX,
    START_URLS,
    PayloadError,
    decode,
    encode,
    fit,
    private_part_of,
    to_json,
)
from scrapyd_dist.scrapyd.jobs import check_job

KEY = Fernet.generate_key()
RANDOM = random.Random(7)
WORDS = "sunny quiet spacious modern garden flat house near park station river old new large small bright"

#: names that a value may have; the same ones often, so that batches share them
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from([0.0, 1.0, -0.0])
    | st.text(max_size=6)
)
VALUES = st.fixed_dictionaries(
    {"url": st.text(max_size=9).map("http://web/".__add__)},
    optional={
        "rule": st.integers(0, 2),
        "callback": st.sampled_from(["parse", "parse_item"]),
        "priority": st.integers(-2, 2),
        "dont_filter": st.booleans(),
        "meta": st.dictionaries(st.sampled_from(["a", "b", "$c"]), SCALARS, max_size=2),
        "cb_kwargs": st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2),
        "flags": st.lists(st.text(max_size=3), max_size=2),
    },
)
BATCHES = st.lists(VALUES, max_size=6)


def of_rule(urls: Iterable[str]) -> list[dict[str, Any]]:
    return [{"url": url, "rule": 1} for url in urls]


def numbered(count: int) -> list[dict[str, Any]]:
    return of_rule(f"http://web:9312/properties/property_{n:06d}.html" for n in range(count))


def slugs(count: int) -> list[dict[str, Any]]:
    rng = random.Random(7)
    names = (
        f"{'-'.join(rng.choices(WORDS.split(), k=7))}-{rng.randrange(10**7)}" for _ in range(count)
    )
    return of_rule(f"https://homes.example.com/for-sale/{name}" for name in names)


def hashed(count: int) -> list[dict[str, Any]]:
    return of_rule(
        f"https://example.com/p/{hashlib.sha256(str(n).encode()).hexdigest()}" for n in range(count)
    )


def long(count: int) -> list[dict[str, Any]]:
    return of_rule(f"{row['url']}?".ljust(150, "x") for row in numbered(count))


def random_text(length: int) -> str:
    return RANDOM.randbytes(length * 3 // 4 + 3).hex()[:length]


def check(carried: dict[str, str]) -> None:
    """No setting is over the limit, and a job takes them all."""
    assert all(len(f"{name}={value}".encode()) <= ARGUMENT_MAX for name, value in carried.items())
    check_job("spider", "c.b1.a1", carried, {})


@settings(max_examples=150)
@given(
    values=BATCHES, key=st.sampled_from([None, KEY]), plain=st.sampled_from([0, payload.PLAIN_MAX])
)
def test_every_form_comes_back_as_it_was(
    values: list[dict[str, Any]], key: bytes | None, plain: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "PLAIN_MAX", plain)
        carried = encode(values, key=key)
    check(carried)
    back = decode(carried.get, key=key)
    assert [json.dumps(row, sort_keys=True) for row in back] == [
        json.dumps(row, sort_keys=True) for row in values
    ]


def test_what_is_equal_in_python_only_is_not_written_once() -> None:
    values = [
        {"url": f"http://web/{n}", "cb_kwargs": {"page": page}}
        for n, page in enumerate([1, True, 1.0])
    ]
    back = payload.from_json(to_json(values))
    assert [repr(row["cb_kwargs"]["page"]) for row in back] == ["1", "True", "1.0"]


def test_bare_urls_are_the_form_of_the_book() -> None:
    values = [{"url": "http://web/1"}, {"url": "http://web/2"}]
    assert encode(values) == {START_URLS: '["http://web/1","http://web/2"]'}
    assert decode({START_URLS: '["http://web/1", "http://web/2"]'}.get) == values
    assert (
        decode({START_URLS: ["http://web/1", "http://web/2"]}.get) == values
    )  # a list in a settings file


def test_a_small_batch_can_be_read_by_a_person() -> None:
    assert encode(numbered(2))[START_URLS] == (
        '{"common":{"rule":1},"requests":["http://web:9312/properties/property_000000.html",'
        '"http://web:9312/properties/property_000001.html"]}'
    )


def test_up_to_the_limit_of_plain_it_is_plain_and_beyond_it_is_compressed() -> None:
    room = payload.PLAIN_MAX - len(to_json([{"url": "http://web/"}]))
    assert encode([{"url": "http://web/" + "x" * room}])[START_URLS].startswith("[")
    assert encode([{"url": "http://web/" + "x" * (room + 1)}])[START_URLS].startswith("z:")


def test_the_limit_is_the_kernels_at_the_exact_byte() -> None:
    fits = f"{START_URLS}=".ljust(ARGUMENT_MAX, "x")
    assert subprocess.run(["/bin/true", fits], check=False).returncode == 0
    with pytest.raises(OSError) as caught:
        subprocess.run(["/bin/true", fits + "x"], check=False)
    assert caught.value.errno == errno.E2BIG
    assert 32 * os.sysconf("SC_PAGE_SIZE") == ARGUMENT_MAX + 1


@pytest.mark.parametrize("extra", range(-2, 3))
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_the_settings_are_filled_to_the_last_byte_and_not_beyond(pieces: int, extra: int) -> None:
    rooms = [ARGUMENT_MAX - len(payload.setting_name(n)) - 1 for n in range(pieces)]
    text = random_text(sum(rooms) + extra)
    carried = payload._split_into_settings(text)
    check(carried)
    assert "".join(carried.values()) == text
    assert list(carried) == [payload.setting_name(n) for n in range(len(carried))]
    assert len(carried) == pieces + (extra > 0)
    if extra == 0:
        assert {len(f"{name}={value}") for name, value in carried.items()} == {ARGUMENT_MAX}


def test_pieces_arrive_as_arguments_of_a_real_process() -> None:
    values = [{"url": "http://web/" + random_text(500_000)}]
    carried = encode(values, key=KEY)
    assert len(carried) > 2
    script = "import json, sys; print(json.dumps(dict(a.split('=', 1) for a in sys.argv[1:])))"
    words = [f"{name}={value}" for name, value in carried.items()]
    told = subprocess.run(["python3", "-c", script, *words], check=True, capture_output=True)
    assert decode(json.loads(told.stdout).get, key=KEY) == values


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 90_000), min_size=1, max_size=12),
    st.sampled_from([None, KEY]),
    st.booleans(),
)
def test_whatever_fits_is_never_over_the_limit_and_stays_in_order(
    sizes: list[int], key: bytes | None, hide: bool
) -> None:
    values: list[dict[str, Any]] = [
        {"url": f"http://web/{n}/{random_text(size)}"} for n, size in enumerate(sizes)
    ]
    if hide and key:
        values[0]["body"] = {"$bytes": "AA=="}
    pieces = fit(values, key=key)
    assert [value for part, _ in pieces for value in part] == values
    for part, carried in pieces:
        check(carried)
        assert payload.argument_bytes(carried) <= payload.BATCH_MAX_BYTES + 200
        assert decode(carried.get, key=key) == part


def test_a_single_request_that_does_not_fit_is_told() -> None:
    with pytest.raises(payload.TooLarge, match="do not fit"):
        fit([*numbered(3), {"url": "http://web/" + random_text(900_000)}])


def test_nothing_to_send_is_an_empty_batch() -> None:
    assert fit([]) == [([], {START_URLS: "[]"})]


# what must not be readable

SECRET = "Tr0ub4dor"
HIDDEN: dict[str, dict[str, Any]] = {
    "cookies": {"cookies": {"session": SECRET}},
    "listed cookies": {"cookies": [{"name": "session", "value": SECRET}]},
    "authorization": {"headers": {"Authorization": [SECRET]}},
    "cookie header": {"headers": {"Accept": ["*/*"], "cookie": [SECRET]}},
    "own header": {"headers": {"X-Api-Key": [SECRET]}},
    "body": {"method": "POST", "body": {"$bytes": SECRET}},
    "url": {"url": f"http://me:{SECRET}@web/"},
    "user only": {"url": f"http://{SECRET}@web/"},
    "proxy": {"meta": {"proxy": f"http://me:{SECRET}@proxy/"}},
    "packed proxy": {"meta": {"$dict": {"proxy": f"http://me:{SECRET}@proxy/", "$x": 1}}},
    "password of HTTP auth": {"meta": {"http_user": "me", "http_pass": SECRET}},
    "packed password": {"meta": {"$dict": {"http_pass": SECRET, "$x": 1}}},
}


@pytest.mark.parametrize("fields", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("company", [0, 500])
def test_without_a_key_nothing_hidden_is_encoded_and_with_one_nothing_can_be_read(
    fields: dict[str, Any], company: int
) -> None:
    value = {"url": "http://web/", **fields}
    values = [*numbered(company), value]
    assert private_part_of(value)
    for attempt in (encode, fit):
        with pytest.raises(PayloadError, match="no key"):
            attempt(values)
    check_unreadable(values)


@pytest.mark.parametrize("field", ["meta", "cb_kwargs"])
def test_more_than_an_address_is_encrypted_when_there_is_a_key(field: str) -> None:
    values = [{"url": "http://web/", field: {"token": SECRET}}]
    assert private_part_of(values[0]) is None
    check_unreadable(values)


def check_unreadable(values: list[dict[str, Any]]) -> None:
    carried = encode(values, key=KEY)
    shown = json.dumps(carried)
    assert carried[START_URLS].startswith("e:")
    assert SECRET not in shown
    assert KEY.decode() not in shown
    assert decode(carried.get, key=KEY) == values
    wrong_keys = {
        "carries no key": None,
        "another key": Fernet.generate_key(),
        "cannot be unpacked": b"no key",
    }
    for why, wrong in wrong_keys.items():
        with pytest.raises(PayloadError, match=why):
            decode(carried.get, key=wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "headers": {
                "Accept-Language": ["de"],
                "User-Agent": ["x"],
                "Referer": ["http://web/index"],
            }
        },
        {"meta": {"link_text": "next"}, "priority": 1, "callback": "parse_item", "errback": "gone"},
        {"url": "http://web/@me", "meta": {"proxy": "http://proxy:8080/"}},
    ],
)
def test_what_may_be_read_needs_no_key(fields: dict[str, Any]) -> None:
    value = {"url": "http://web/", **fields}
    assert private_part_of(value) is None
    assert encode([value])[START_URLS].startswith(("{", "["))


def test_addresses_stay_readable_even_when_there_is_a_key() -> None:
    assert encode(numbered(3), key=KEY) == encode(numbered(3))


def test_the_spiders_own_start_requests_are_no_secret() -> None:
    spider = Spider(name="any")
    request = Request("http://web/", meta={IS_START: True})
    assert encode([to_value(request, spider)], key=KEY)[START_URLS].startswith("{")


@pytest.mark.parametrize(
    "first",
    [
        None, "", "no json",
        "{}", "5", "null", '"http://web/"', "[1]", "[null]", "[[]]", '[{"rule": 1}]', '[{"url": 5}]',
        '{"requests": 5}', '{"common": [], "requests": ["u"]}', '{"common": 1, "requests": ["u"]}', "[" * 100_000,
        "z:", "z:!", "z:AAAA", "z:ü", "e:AAAA", "e:ü", "e:",
    ],
)  # fmt: skip
def test_what_is_no_batch_is_told_so(first: str | None) -> None:
    with pytest.raises(PayloadError):
        decode({START_URLS: first}.get, key=KEY)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_batch_that_lost_a_piece_is_told_so(lost: int) -> None:
    carried = encode([{"url": "http://web/" + random_text(500_000)}])
    carried[payload.setting_name(lost)] = "z:" if lost == 0 else ""
    with pytest.raises(PayloadError):
        decode(carried.get)


# bytes per URL: the table of docs/internals/payload.md


@pytest.mark.parametrize(
    ("make", "most"), [(numbered, 5.0), (slugs, 20.0), (hashed, 54.0), (long, 6.0)]
)
def test_bytes_per_url(make: Any, most: float) -> None:
    values = make(1000)
    plain = len(to_json(values)) / 1000
    carried, secret = (
        encode(values),
        encode([*values[:-1], {**values[-1], "cookies": {"a": "b"}}], key=KEY),
    )
    found = payload.describe(values, carried)
    encrypted = payload.argument_bytes(secret) / 1000
    print(
        f"{make.__name__:9} plain {plain:6.1f}  compressed {found['per_url']:5.1f}  encrypted {encrypted:5.1f}"
    )
    assert found["form"] == "compressed"
    assert found["targets"] == {"1": 1000}
    assert found["bytes"] == payload.argument_bytes(carried)
    assert found["per_url"] <= most < plain
    assert payload.argument_bytes(secret) <= payload.argument_bytes(carried) * 1.4 + 200
    check(carried)


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
    [
        "",
        "x",
        "é",
        "AAAA",
        pytest.param(public_half(THEIRS)[:-4], id="cut short"),
        "AAAA" * 10 + "AAA=",
    ],
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
    assert Assignment(crawl="c").crawl_key() == THEIRS
    # nothing of that crawl is encrypted: what it finds is not, either
    assert Assignment(crawl="c", foreign=True).crawl_key() is None
    sealed = Assignment(crawl="c", foreign=True, key_sealed=seal(OURS, public_half(THEIRS)))
    assert sealed.crawl_key() == OURS
    monkeypatch.setattr(assignment, "egg_key", lambda: None)
    with pytest.raises(SealError, match="carries no key"):
        sealed.crawl_key()
