"""The site of the fidelity rows: a museum with three rooms of four pieces, served by threads; it logs each hit."""

import gzip
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

#: pieces of the museum, and of a room
PIECES, PER_ROOM = 12, 4
ROOMS = PIECES // PER_ROOM


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A request as it came; `earlier` is how often its address was asked for before."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str
    earlier: int

    @property
    def number(self) -> int:
        """The number that ends the path, without a suffix; 0 if there is none."""
        word = self.path.rpartition("/")[2].partition(".")[0]
        return int(word) if word.isdigit() else 0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the site says."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": "text/html; charset=utf-8"}
    )


def html(body: str, status: int = 200) -> Answer:
    return Answer(body=f"<html><body>{body}</body></html>".encode(), status=status)


def typed(kind: str, body: str | bytes) -> Answer:
    return Answer(
        body=body.encode() if isinstance(body, str) else body, headers={"Content-Type": kind}
    )


def redirect(path: str) -> Answer:
    return Answer(body=b"", status=302, headers={"Location": path})


def room(visit: Visit) -> Answer:
    """An index page: links to its pieces, in the wing that the query names, and to the next room."""
    wing, first = visit.query.get("wing", "pieces"), visit.number * PER_ROOM
    links = "".join(
        f'<a class="piece" href="/{wing}/{number}">Piece {number}</a> '
        for number in range(first, min(first + PER_ROOM, PIECES))
    )
    query = f"?wing={wing}" if "wing" in visit.query else ""
    following = (
        f'<a rel="next" href="/rooms/{visit.number + 1}{query}">next</a>'
        if visit.number + 1 < ROOMS
        else ""
    )
    return html(f"<h1>Room {visit.number}</h1>{links}{following}")


def piece(visit: Visit) -> Answer:
    number = visit.number
    return html(
        f'<h2>Piece {number}, porté</h2><b class="year">{1900 + number}</b><i class="kind">{number % 3}</i>'
        f'<a class="maker" href="/makers/{number % 3}">maker</a><a class="note" href="/notes/{number}">note</a>'
        f'<img src="/pictures/{number}.png">'
    )


def note(visit: Visit) -> Answer:
    return html(f'<p class="note">Note {visit.number}</p>')


def shut(visit: Visit) -> Answer:
    """At the first visit it is being cleaned, which only its text says."""
    return piece(visit) if visit.earlier else html("cleaning")


def busy(visit: Visit) -> Answer:
    """At the first visit there are too many people."""
    return piece(visit) if visit.earlier else html("busy", status=503)


def lost(visit: Visit) -> Answer:
    """Each fourth piece is not there."""
    return html("lost", status=404) if visit.number % 4 == 0 else piece(visit)


def door(visit: Visit) -> Answer:
    """Gives a cookie, and shows the cabinets of this visitor."""
    who = visit.query["visitor"]
    page = html(
        "".join(f'<a class="piece" href="/cabinets/{n}?of={who}">cabinet</a>' for n in range(4))
    )
    return Answer(body=page.body, headers={**page.headers, "Set-Cookie": f"visitor={who}; Path=/"})


def cabinet(visit: Visit) -> Answer:
    return html(f"<h2>{visit.headers.get('Cookie', 'no cookie')}</h2>")


def desk(visit: Visit) -> Answer:
    """Says what was sent to it."""
    names = ("Content-Type", "X-Token", "Cookie", "Authorization", "User-Agent")
    sent = {name: visit.headers[name] for name in names if name in visit.headers}
    return typed(
        "application/json", json.dumps({"method": visit.method, "body": visit.body, "sent": sent})
    )


def form(visit: Visit) -> Answer:
    return html(
        f'<form method="post" action="/desk/{visit.number}"><input name="secret" value="s{visit.number}">'
        '<input name="word"></form>'
    )


def sitemap(visit: Visit) -> Answer:
    rows = "".join(
        f"<url><loc>http://{visit.headers['Host']}/pieces/{number}</loc>"
        f"<lastmod>2026-01-{number + 1:02d}</lastmod></url>"
        for number in range(PIECES)
    )
    text = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{rows}</urlset>'
    return typed("application/gzip", gzip.compress(text.encode(), mtime=0))


def xml(visit: Visit) -> Answer:
    rows = "".join(
        f"<piece><number>{n}</number><path>/pieces/{n}</path></piece>" for n in range(PIECES)
    )
    return typed("application/xml", f"<pieces>{rows}</pieces>")


def csv(visit: Visit) -> Answer:
    return typed("text/csv", "number,path\n" + "".join(f"{n},/pieces/{n}\n" for n in range(PIECES)))


#: the first word of a path -> what answers
PAGES: Mapping[str, Callable[[Visit], Answer]] = {
    "rooms": room,
    "pieces": piece,
    "notes": note,
    "makers": lambda visit: html(
        f'<h2>Maker {visit.number}</h2><a href="/makers/{(visit.number + 1) % 3}">other</a>'
    ),
    "shut": shut,
    "busy": busy,
    "lost": lost,
    "moved": lambda visit: redirect(f"/pieces/{visit.number}"),
    "lent": lambda visit: redirect(f"/makers/{visit.number % 3}"),
    "door": door,
    "cabinets": cabinet,
    "desk": desk,
    "forms": form,
    "pictures": lambda visit: typed("image/png", b"picture %d " % visit.number * 20),
    "sitemap.xml.gz": sitemap,
    "pieces.xml": xml,
    "pieces.csv": csv,
    "echo": lambda visit: html(f"<h2>{visit.path}</h2>"),
}


class Museum:
    """The site, listening until it is closed; `url` has no slash at its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hits: Counter[str] = Counter()
        museum = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 65536  # an answer leaves in one piece

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode(
                    "utf-8", "replace"
                )
                answer = museum.answer(self.command, self.path, dict(self.headers.items()), body)
                self.send_response(answer.status)
                for name, value in {
                    **answer.headers,
                    "Content-Length": str(len(answer.body)),
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            do_POST = do_PUT = do_GET  # noqa: N815 - likewise

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: str) -> Answer:
        """Log a request, and answer it."""
        hit = f"{method} {target} {body}".rstrip()
        with self._lock:
            earlier = self._hits[hit]
            self._hits[hit] += 1
        parts = urlsplit(target)
        path, query = unquote(parts.path), dict(parse_qsl(parts.query))
        visit = Visit(
            method=method, path=path, query=query, headers=headers, body=body, earlier=earlier
        )
        page = PAGES.get(path.strip("/").partition("/")[0])
        return page(visit) if page else html("nothing here", status=404)

    def hits(self) -> Counter[str]:
        """How often each was asked for: method, path with query, and the body if there is one."""
        with self._lock:
            return Counter(self._hits)

    def forget(self) -> None:
        """Forget all visits."""
        with self._lock:
            self._hits.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
