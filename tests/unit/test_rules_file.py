"""A file of limits says exactly what it says, or nothing; and a domain is called as the store's budgets are."""

import pytest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.throttle.permits import ALL, Rule
from scrapyd_dist.throttle.rules_file import BadRules, domain_of, merge_rules, read

#: as in the documentation of Scrapy Cluster
CLUSTERS = b"""
blacklist:
    - domain3.com
    - domain4.com
domains:
    domain1.com:
        window: 60
        hits: 60
    domain2.com:
        window: 60
        hits: 60
        scale: 0.5
"""


def mistakes(text: str | bytes) -> list[tuple[int, str]]:
    with pytest.raises(BadRules) as caught:
        read(text.encode() if isinstance(text, str) else text, "rules.yml")
    return caught.value.mistakes


def test_the_file_of_scrapy_cluster_is_read_as_it_is() -> None:
    assert read(CLUSTERS, "rules.yml") == {
        "domain1.com": Rule(hits=60, window=60.0),
        "domain2.com": Rule(hits=60, window=60.0, scale=0.5),
        "domain3.com": Rule(blocked=True),
        "domain4.com": Rule(blocked=True),
    }


def test_json_aliases_and_a_byte_order_mark_are_no_trouble() -> None:
    domains = '{"a.com": &slow {"hits": 1, "window": 0.5}, "b.com": *slow, "*": *slow}'
    text = f'\ufeff{{"domains": {domains}, "blacklist": ["b.com"]}}'
    slow = Rule(hits=1, window=0.5)
    assert read(text.encode(), "-") == {
        "a.com": slow,
        "b.com": Rule(hits=1, window=0.5, blocked=True),
        ALL: slow,
    }


#: what a file may not say -> what is told of it
HITS = {"ten": "'ten', and must be a whole number", "1.5": 1.5, "yes": True, "'1'": "'1'", "-5": -5}
WINDOWS = {
    "0": "0 s",
    "-1": "-1 s",
    ".inf": "inf",
    ".nan": "nan",
    "1m": "'1m', and must be seconds",
}


@pytest.mark.parametrize("text", ["domains: {}", "domains:\nblacklist:\n", "blacklist: []"])
def test_a_file_can_say_that_there_are_no_limits(text: str) -> None:
    assert read(text.encode(), "rules.yml") == {}


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("", 1, "it is empty"),
        ("# domains:\n", 1, "it is empty"),
        (b"domains:\n  b\xfccher.de: 1\n", 2, "this is no UTF-8 text."),
        ("{}", 1, "to remove all limits"),
        ("a text", 1, "found 'a text'"),
        ("- a.com", 1, "found a list"),
        ("domains:\n  - a.com\n", 2, "found a list"),
        ("blacklist: a.com", 1, "expected a list of domains"),
        ("blacklist:\n  - [a.com]", 2, "found a list"),
        ("blacklist:\n  - a.com\n  - '*'", 3, "sdist throttle pause"),
        ("domain: {}", 1, "did you mean domains?"),
        ("domains: {}\nblacklist: []\ndomains: {}", 3, "domains stands here twice"),
        ("domains:\n  a.com: {hits: 1}", 2, "a.com: window is missing"),
        ("domains:\n  a.com:\n    window: 1", 3, "a.com: hits is missing"),
        ("domains:\n  a.com:", 2, "found nothing"),
        ("domains:\n  a.com: 10", 2, "found '10'"),
        ("domains:\n  a.com: {hits: 1, window: 1, scal: 1}", 2, "did you mean scale?"),
        ("domains:\n  a.com:\n    hits: 1\n    window: 1\n    hits: 2", 5, "hits stands here twice"),
        *((f"domains:\n  a.com: {{hits: {hits}, window: 1}}", 2, f"hits is {told}") for hits, told in HITS.items()),
        *((f"domains:\n  a.com: {{hits: 1, window: {time}}}", 2, f"window is {why}") for time, why in WINDOWS.items()),
        ("domains:\n  a.com: {hits: [1], window: 1}", 2, "hits is 'a list'"),
        ("domains:\n  a.com: {hits: 0, window: 1}", 2, "hits is 0, and must be from 1"),
        (f"domains:\n  a.com: {{hits: 1, window: 1{'0' * 400}}}", 2, "to 31 days"),
        *((f"domains:\n  a.com: {{hits: 1, window: 1, scale: {part}}}", 2, f"scale is {part}") for part in (1.1, -0.1)),
        ("domains:\n  a.com: {hits: 1, window: 1}\n  A.com.: {hits: 2, window: 1}", 3, "first in line 2"),
        ("blacklist:\n  - a.com\n  - b.com\n  - A.COM", 4, "first in line 2"),
        ("domains:\n  www.example.com: {hits: 1, window: 1}", 2, "name example.com"),
        ("domains:\n  *: {hits: 1, window: 1}", 2, 'with quotes: "*"'),
        ("domains:\n  a.com: {hits: 1\n", 3, "this is no YAML"),
        ("domains:\n\ta.com: 1", 2, "this is no YAML"),
        ("domains: {}\n---\ndomains: {}", 2, "another document"),
        ("domains: {}\n\x01", 2, "a character that no text has"),
        ("[" * 20_000, 1, "nested too deeply"),
        ("? [a.com]\n: 1", 1, "a list"),
        ("domains:\n  a.com: {<<: {hits: 1}, window: 1}", 2, "'<<' is not known"),
        ("domains: !!python/object/apply:os.getpid []", 1, "found a list"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(text: str | bytes, line: int, part: str) -> None:
    found = mistakes(text)
    assert any(at == line and part in told for at, told in found), found


def test_all_mistakes_of_a_file_are_told_at_once_and_of_very_many_the_first() -> None:
    text = "blacklist: [http://a.com/]\ndomains:\n  b.com: {hits: 0, window: x}\n  c.com: {}\n"
    assert [line for line, _ in mistakes(text)] == [1, 3, 3, 4, 4]
    with pytest.raises(BadRules, match=r"rules\.yml:3: b\.com: hits is 0"):
        read(text.encode(), "rules.yml")
    with pytest.raises(BadRules, match="and 980 more") as caught:
        read(b"blacklist:\n" + b"- x y\n" * 1000, "rules.yml")
    assert str(caught.value).count("\n") == 21


def test_a_file_replaces_limits_and_blocks_and_leaves_what_is_paused() -> None:
    paused, same, new = Rule(paused=True), Rule(hits=1, window=1.0), Rule(hits=2, window=1.0)
    limited = Rule(hits=1, window=1.0, paused=True)
    now = {
        "same.com": same,
        "other.com": limited,
        "gone.com": Rule(blocked=True),
        "rests.com": limited,
        ALL: paused,
    }
    said = {"same.com": same, "other.com": Rule(blocked=True), "new.com": new}
    changed = {
        "other.com": Rule(blocked=True, paused=True),
        "gone.com": Rule(),
        "rests.com": paused,
        ALL: paused,
    }
    assert merge_rules(said, now) == {**said, **changed}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("Example.COM.", "example.com"),
        (" example.co.uk ", "example.co.uk"),
        ("bücher.de", "xn--bcher-kva.de"),
        ("XN--BCHER-KVA.de", "xn--bcher-kva.de"),
        ("[::1]", "::1"),
        ("0:0::1", "::1"),
        *((name, name) for name in ("localhost", "intranet", "127.0.0.1", "github.io", ALL)),
    ],
)
def test_a_domain_is_called_as_its_urls_are(typed: str, name: str) -> None:
    assert domain_of(typed) == name
    if name != ALL:
        assert site_of(f"http://[{name}]:80/" if ":" in name else f"http://{name}:80/") == name


NO_NAMES = ["", ".", "a b.com", "-a.com", "a..com", f"{'a' * 64}.com", ".".join(["abc"] * 80), "~"]
ADDRESSES = ["http://www.example.com/x", "example.com/x", "me@example.com"]


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        *((typed, "cannot be the name") for typed in NO_NAMES),
        *((typed, "name the domain alone, example.com") for typed in ADDRESSES),
        ("example.com:8000", "all ports of a host: name example.com"),
        ("*.example.com", "name example.com"),
        ("www.example.co.uk", "belongs to example.co.uk"),
        ("co.uk", "such as example.co.uk"),
    ],
)
def test_what_would_limit_nothing_is_refused_with_a_hint(typed: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        domain_of(typed)
    assert part in str(caught.value)
