"""Nodes: what may be written for one, and that a password never shows."""

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import Node, distinct_nodes


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("web1", "http://web1:6800", "web1:6800"),
        ("web1:6800", "http://web1:6800", "web1:6800"),
        (" WEB1:80 ", "http://web1", "web1"),
        ("http://web1", "http://web1", "web1"),
        ("http://web1:80/", "http://web1", "web1"),
        ("https://Web1.example.com:443//", "https://web1.example.com", "web1.example.com"),
        ("HTTP://web1:6800/", "http://web1:6800", "web1:6800"),
        ("http://web1:6800/scrapyd/one/", "http://web1:6800/scrapyd/one", "web1:6800"),
        ("http://web1:6800/a b".replace(" ", "%20"), "http://web1:6800/a%20b", "web1:6800"),
        ("web1:6800/base/", "http://web1:6800/base", "web1:6800"),
        ("10.0.0.7:6801", "http://10.0.0.7:6801", "10.0.0.7:6801"),
        ("[::1]:6801", "http://[::1]:6801", "[::1]:6801"),
        ("[::1]", "http://[::1]:6800", "[::1]:6800"),
        ("fe80::2", "http://[fe80::2]:6800", "[fe80::2]:6800"),
        ("http://[2001:db8::1]/x", "http://[2001:db8::1]/x", "[2001:db8::1]"),
        ("bücher.example:6800", "http://xn--bcher-kva.example:6800", "xn--bcher-kva.example:6800"),
    ],
)
def test_addresses(text: str, url: str, name: str) -> None:
    node = Node.parse(text)
    assert (node.url, node.name) == (url, name)
    assert Node.parse(node.url) == node


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no host"),
        ("   ", "no host"),
        (":6800", "no host"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("web1:", "port"),
        ("web1:0", "port"),
        ("web1:port", "port"),
        ("web1:65536", "port"),
        ("web1:-1", "port"),
        ("ftp://web1", "http and https"),
        ("unix:///var/run/scrapyd", "http and https"),
        ("http://web1/?x=1", "neither"),
        ("http://web1/#x", "neither"),
        ("web 1", "space"),
        ("web1\n:6800", "control"),
        ("http:\\\\web1", "backslash"),
        ("[::1", "cannot be read"),
        ("[nonsense]:6800", "cannot be read|IPv6"),
        ("web..1:6800", "impossible"),
        ("-web:6800", "impossible"),
        ("x" * 64, "impossible"),
        ("web_1:6800", "underscore"),
        ("http://web1/a@b", "%2F"),
    ],
)
def test_nonsense(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Node.parse(text)


def test_one_url_is_one_node() -> None:
    one, two = (
        Node.parse("web1:6800", name="a", username="u"),
        Node.parse("http://WEB1:6800/", name="b", slots=4),
    )
    assert one == two
    assert distinct_nodes([one, two, Node.parse("web2:6800")]) == (one, Node.parse("web2:6800"))
    assert distinct_nodes([one, two])[0].name == "a"


def test_pages() -> None:
    assert (
        Node.parse("http://web1:6800/base/").url_of("logs/a.log")
        == "http://web1:6800/base/logs/a.log"
    )
    assert Node.parse("web1").url_of("/logs/a.log") == "http://web1:6800/logs/a.log"
    assert Node.parse("[::1]:6800").host == "::1"


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("http://me:secret@web1:6800/", b"me:secret"),
        ("me:secret@web1:6800", b"me:secret"),
        ("http://me:p%40ss%2Fw%3A@web1", b"me:p@ss/w:"),
        ("http://me:p@ss@web1", b"me:p@ss"),
        ("http://me@web1", b"me:"),
        ("http://m%C3%A9:%E2%82%AC@web1", "mé:€".encode()),
    ],
)
def test_credentials(text: str, pair: bytes) -> None:
    header = Node.parse(text).authorization()
    assert header is not None
    assert b64decode(header.removeprefix("Basic ")) == pair
    assert "@" not in Node.parse(text).url


def test_credentials_given_apart_go_first() -> None:
    node = Node.parse("http://me:old@web1", username="you", password="new")
    assert (node.username, node.password) == ("you", "new")
    assert Node.parse("web1").authorization() is None
    with pytest.raises(ConfigError, match="colon"):
        Node.parse("web1", username="a:b", password="x")


_SECRETS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x24F), min_size=1, max_size=12
).map("hush".__add__)


@given(_SECRETS)
def test_a_password_never_shows(secret: str) -> None:
    node = Node.parse("web1", username="me", password=secret)
    assert node.password == secret
    for text in (repr(node), str(node), node.url, node.name):
        assert "hush" not in text


@given(
    st.sampled_from(["http://me:{}@web1:6800/", "me:{}@web1", "http://me:{}@", "me:{}@web1:port", "x://me:{}@web1",
                     "http//me:{}@web1", "http://me:{}@web_1/?", "me:{}@", "http://me:{}@web 1"]),
    _SECRETS,
)  # fmt: skip
def test_not_even_in_nonsense(form: str, secret: str) -> None:
    try:
        node = Node.parse(form.format(secret))
    except ConfigError as e:
        assert "hush" not in str(e)
    else:
        assert "hush" not in f"{node} {node!r} {node.url}"
