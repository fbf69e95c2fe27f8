"""The demo site: what it holds, how it speaks HTTP, and that its pages misbehave as told."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsel import Selector
from scrapyd_dist.examples.behaviour import Behaviour, Behaviours
from scrapyd_dist.examples.hits import Log
from scrapyd_dist.examples.pages import Site
from scrapyd_dist.examples.server import BadRequestError, Server, take_request

T = TypeVar("T")


def page_of(site: Site, path: str) -> Selector:
    body = site.body(path, "127.0.0.1:80")
    assert body is not None
    return Selector(text=body.decode())


def links(site: Site, page: int, css: str = "a[itemprop=url]") -> list[str]:
    return page_of(site, site.index_path(page)).css(css).xpath("@href").getall()


@pytest.mark.parametrize(("items", "pages"), [(0, 1), (1, 1), (30, 1), (31, 2), (3000, 100)])
def test_there_are_as_many_index_pages_as_the_items_need(items: int, pages: int) -> None:
    site = Site(items=items)
    assert site.pages == pages
    assert site.body(site.index_path(pages - 1), "h") is not None
    assert site.body(site.index_path(pages), "h") is None


@pytest.mark.parametrize("style", ["numbered", "slug", "hashed", "long"])
def test_walking_the_index_finds_every_detail_page_once(style: Any) -> None:
    site = Site(items=95, url_style=style)
    path, found = site.index_path(0), []
    for page in range(site.pages):
        assert path == site.index_path(page)
        found += links(site, page)
        path = (links(site, page, "a.next") or [""])[0]
    assert path == "", "the last page has no next link"
    assert found == [site.detail_path(number) for number in range(95)]
    assert len(set(found)) == 95
    assert style != "long" or {len("http://127.0.0.1:12345" + path) for path in found} == {150}


def test_a_detail_page_shows_the_item() -> None:
    site = Site(items=40)
    page, item = page_of(site, site.detail_path(7)), site.item(7)
    for name in ("price", "description", "address"):
        assert page.xpath(f'//*[@itemprop="{name}"]/text()').get() == item[name]
    assert page.css("h1::text").get() == item["title"]
    assert page.css("img").xpath("@src").get() == item["image"]
    assert page.css(".number::text").get() == "7"
    agent = page.css("a.agent").xpath("@href").get()
    assert agent is not None
    assert site.body(agent, "h") is not None


def test_offsite_links_have_another_host_and_duplicate_links_another_order_of_their_query() -> None:
    site = Site(items=60, offsite=2, duplicates=1)
    foreign = [link for link in links(site, 1) if link.startswith("http")]
    assert foreign == [f"http://localhost:80{site.detail_path(n)}?via=partner" for n in (30, 31)]
    assert site.other_host("localhost:80") == "http://127.0.0.1:80"
    first = [link for link in links(site, 0) if link.startswith(site.detail_path(0))]
    assert [sorted(link.partition("?")[2].split("&")) for link in first] == [
        ["from=list", "sort=price"]
    ] * 2
    assert first[0] != first[1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gonee",
        "slow",
        "slow:soon",
        "status",
        "status:x",
        "fail:x",
        "header:X",
        "cookie:",
        "busy:soon",
        "says",
    ],
)
def test_a_behaviour_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Behaviour.parse(text)


def test_an_exact_path_wins_over_a_prefix() -> None:
    behaviours = Behaviours.parse({"/a*": "gone", "/a/b": "fail:2"})
    assert [behaviours.of(path) for path in ("/a/b", "/a/c", "/b")] == [
        Behaviour(kind="fail", argument="2"), Behaviour(kind="gone"), None,
    ]  # fmt: skip


REQUEST = b"POST /x?y=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"


@given(st.integers(0, len(REQUEST) * 2))
def test_a_request_is_taken_when_it_is_whole_and_not_before(cut: int) -> None:
    wire = (REQUEST * 2)[:cut]
    taken = take_request(wire)
    if cut < len(REQUEST):
        assert taken is None
    else:
        assert taken is not None
        assert (taken[0].method, taken[0].target, taken[0].body) == ("POST", "/x?y=1", b"hello")
        assert taken[1] == wire[len(REQUEST) :]


@pytest.mark.parametrize("wire", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                                  b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"])  # fmt: skip
def test_what_is_not_http_is_refused(wire: bytes) -> None:
    with pytest.raises(BadRequestError):
        take_request(wire)


class Client:
    """A raw connection to a served site."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        return (
            int(head[0].split()[1]),
            headers,
            await self.reader.readexactly(int(headers["content-length"])),
        )

    async def ask(
        self, path: str, *headers: str, body: bytes = b"", method: str = "GET"
    ) -> tuple[int, dict[str, str], bytes]:
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1:1",
            *headers,
            f"Content-Length: {len(body)}",
        ]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return await self.answer()


def served(server: Server, talk: Callable[[Client, int], Awaitable[T]]) -> T:
    """Serve, talk over one connection, stop."""

    async def run() -> T:
        port = await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await asyncio.wait_for(talk(Client(reader, writer), port), 20)
        finally:
            writer.close()
            server.close()

    # In a thread, because the test process already runs the loop of Twisted's reactor.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, run()).result()


def test_pipelined_requests_are_answered_in_their_order_on_one_connection() -> None:
    site = Site(items=60)
    paths = [site.detail_path(3), site.index_path(1), "/nothing", site.detail_path(59)]

    async def talk(client: Client, _: int) -> list[tuple[int, bytes]]:
        client.writer.write(
            b"".join(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode() for path in paths)
        )
        return [(status, body) for status, _, body in [await client.answer() for _ in paths]]

    for latency in (0.0, 0.01):
        answers = served(Server(site, latency=latency), talk)
        assert [status for status, _ in answers] == [200, 200, 404, 200]
        assert [body for status, body in answers if status == 200] == [
            site.body(paths[n], "h") for n in (0, 1, 3)
        ]


def test_latency_of_one_connection_does_not_hold_up_another() -> None:
    async def talk(client: Client, port: int) -> None:
        slow = asyncio.ensure_future(client.ask("/properties/index_00000.html?behave=slow:30"))
        other = Client(*await asyncio.open_connection("127.0.0.1", port))
        await other.ask("/properties/index_00000.html")
        other.writer.close()
        assert not slow.done()
        slow.cancel()

    served(Server(Site()), talk)


def test_pages_misbehave_as_told() -> None:
    told = {"/properties/property_000001.html": "fail:2", "/properties/property_000002.html": "gone",
            "/properties/property_000003.html": "redirect:/properties/property_000004.html",
            "/properties/property_000005.html": "header:X-Key=7", "/properties/property_000006.html": "cookie:in=1",
            "/properties/property_000007.html": "setcookie:in=1", "/properties/property_000008.html": "status:429",
            "/busy": "busy:3", "/robots.txt": "says:User-agent: *\nCrawl-delay: 2",
            }  # fmt: skip

    async def talk(client: Client, _: int) -> None:
        async def status(number: int, *headers: str) -> int:
            return (await client.ask(f"/properties/property_{number:06d}.html", *headers))[0]

        assert [await status(1) for _ in range(3)] == [500, 500, 200]
        assert [await status(2), await status(8), await status(9)] == [404, 429, 200]
        assert (await client.ask("/properties/property_000003.html"))[1]["location"].endswith(
            "000004.html"
        )
        assert [await status(5), await status(5, "x-key: 7")] == [403, 200]
        assert [await status(6, "Cookie: in=2"), await status(6, "Cookie: a=b; in=1")] == [403, 200]
        assert (await client.ask("/properties/property_000007.html"))[1][
            "set-cookie"
        ] == "in=1; path=/"
        busy = await client.ask("/busy")
        assert (busy[0], busy[1]["retry-after"]) == (429, "3")
        assert (await client.ask("/robots.txt"))[2] == b"User-agent: *\nCrawl-delay: 2"
        echo = json.loads(
            (await client.ask("/echo?a=1", "X-Me: you", body=b"b=2", method="POST"))[2]
        )
        assert [echo[name] for name in ("method", "target", "body")] == ["POST", "/echo?a=1", "b=2"]
        assert echo["headers"]["x-me"] == "you"

    served(Server(Site(), behaviours=Behaviours.parse(told)), talk)


def test_a_reset_a_cut_and_a_hanging_page() -> None:
    ends = {
        "reset": ConnectionResetError,
        "cut": asyncio.IncompleteReadError,
        "hang": asyncio.TimeoutError,
    }

    async def talk(_: Client, port: int) -> None:
        for behaviour, error in ends.items():
            client = Client(*await asyncio.open_connection("127.0.0.1", port))
            with pytest.raises(error):
                page = f"/properties/index_00000.html?behave={behaviour}"
                await asyncio.wait_for(client.ask(page), 0.2 if behaviour == "hang" else 10)
            client.writer.close()

    served(Server(Site()), talk)


def test_behaviours_can_be_changed_and_hits_read_while_it_serves() -> None:
    async def talk(client: Client, _: int) -> None:
        page = "/properties/index_00000.html"
        assert (await client.ask(page))[0] == 200
        told = await client.ask(
            "/__behave__", body=json.dumps({page: "gone"}).encode(), method="POST"
        )
        assert told[0] == 200
        assert (await client.ask(page))[0] == 404
        assert (await client.ask("/__behave__", body=b'{"/x": "nonsense"}', method="POST"))[
            0
        ] == 400
        assert json.loads((await client.ask("/__hits__"))[2]) == {page: 2}
        assert [
            json.loads(row)["target"] for row in (await client.ask("/__log__"))[2].splitlines()
        ] == [page, page]
        await client.ask("/__reset__", method="POST")
        assert json.loads((await client.ask("/__hits__"))[2]) == {}

    served(Server(Site()), talk)


def test_a_nonsense_request_gets_400_and_the_server_lives_head_has_no_body_and_close_closes() -> (
    None
):
    async def talk(client: Client, port: int) -> bytes:
        client.writer.write(b"\x16\x03\x01 what\r\n\r\n")
        assert (await client.answer())[0] == 400
        other = Client(*await asyncio.open_connection("127.0.0.1", port))
        other.writer.write(
            b"HEAD /properties/index_00000.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        answer = await other.reader.read()
        other.writer.close()
        return answer

    answer = served(Server(Site()), talk)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def test_the_log_file_has_every_hit_once_with_its_headers(tmp_path: Path) -> None:
    log = Log(tmp_path / "hits.jl", with_headers=True)
    log.add("GET", "/a", ("127.0.0.2", 1), b"Host: h", b"")
    log.flush()
    log.add("POST", "/b", ("127.0.0.2", 2), b"Host: h\r\nX: y", b"body")
    log.close()
    rows = [json.loads(line) for line in (tmp_path / "hits.jl").read_text().splitlines()]
    assert [(row["method"], row["target"], row["address"], row["port"], row["host"]) for row in rows] == [
        ("GET", "/a", "127.0.0.2", 1, "h"), ("POST", "/b", "127.0.0.2", 2, "h"),
    ]  # fmt: skip
    assert rows[1]["headers"] == {"host": "h", "x": "y"}
    assert rows[1]["body_sha256"] != rows[0]["body_sha256"]


def test_as_a_program_it_serves_the_site_it_was_told_to(site: Callable[..., Any]) -> None:
    running = site(31, url_style="slug", per_page=10)
    with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))) as connection:
        connection.sendall(f"GET {running.site.detail_path(30)} HTTP/1.0\r\n\r\n".encode())
        assert b"200 OK" in connection.recv(100)
    assert running.item_hits() == {30: 1}
    items = [running.site.item(number) for number in range(31)]
    assert running.differences(items) == {}
    assert running.differences([*items[1:], items[1], {**items[2], "number": "99"}]) == {
        "missing": ["0"], "repeated": ["1"], "unexpected": ["99"],
    }  # fmt: skip
    assert running.differences([*items[:-1], {**items[30], "price": "1"}]) == {"wrong": ["30"]}
