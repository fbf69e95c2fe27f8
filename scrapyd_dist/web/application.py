"""The web application: its addresses, how a page or JSON is made of a view, and what is refused."""

import asyncio
import base64
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.responses import StreamingResponse as Stream
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scrapyd_dist.errors import ConfigError, DistError, NothingMatched
from scrapyd_dist.report.facts import hidden
from scrapyd_dist.report.page import POLICY, make_environment, read_style, values_of

from .drawing import make_filters
from .project_pages import PageView, ProjectPages
from .shared_answers import EVERY, note_times

#: the report's, with scripts and a style sheet of our own
PAGES_POLICY = (
    f"{POLICY} 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
#: file in `static` -> its type
STATIC = {
    "htmx.min.js": "text/javascript",
    "htmx-sse.min.js": "text/javascript",
    "idiomorph.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "style.css": "text/css",
}
#: names by which a browser on this machine calls it
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
#: the header with the token of an action
TOKEN = "X-Sdist-Token"  # noqa: S105 - a name
#: the status of a page that is there, and cannot be shown now
_NOT_NOW = 503
#: status -> the title of a page that says why another one is not shown
_TITLES = {
    _NOT_NOW: "This page cannot be shown now",
    400: "This cannot be asked for",
    500: "This page has failed",
}
#: bytes that a request to start work may have
MOST_BYTES = 1_000_000

Start = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Actions:
    """What may be started over HTTP; each gets the object of a request, and gives a document."""

    token: str  #: which a request has to have
    start_crawl: Start
    start_jobs: Start


def make_application(
    pages: ProjectPages, *, password: str = "", actions: Actions | None = None
) -> ASGIApp:
    """Return the application; without a password it answers to names of this machine only."""
    site = _Site(pages, actions)
    handlers = dict.fromkeys((DistError, HTTPException, Exception), site.tell_error)
    application = Starlette(routes=site.routes(), exception_handlers=handlers)
    return _Guard(application, password)


class _Site:
    """The addresses of a project's pages."""

    def __init__(self, pages: ProjectPages, actions: Actions | None) -> None:
        self._pages = pages
        self._actions = actions
        self._environment = make_environment(__package__)
        self._environment.filters.update(make_filters(), path=quote_part)

    def routes(self) -> list[Route]:
        """Return all addresses; beside each page is its JSON."""
        pages = self._pages
        crawl = "/crawls/{name}"
        views: dict[str, Callable[[Request], PageView]] = {
            "/index": lambda _: pages.home(),
            "/crawls": lambda _: pages.crawls(),
            f"{crawl}/batches": lambda request: pages.batches(_name(request)),
            f"{crawl}/misses": lambda request: pages.misses(_name(request)),
            f"{crawl}/jobs": lambda request: pages.crawl_jobs(_name(request)),
            f"{crawl}/log": lambda request: pages.crawl_log(_name(request)),
            crawl: lambda request: pages.crawl(_name(request)),
            "/jobs": lambda request: pages.jobs(_words_of_query(request)),
            "/jobs/{name:path}": lambda request: pages.job(_name(request), _nodes(request)),
            "/nodes/{name:path}": lambda request: pages.node(_name(request)),
            "/throttle": lambda _: pages.throttle(),
            "/frontiers": lambda _: pages.frontiers(),
            "/strategies": lambda _: pages.strategies(),
        }
        routes = [
            Route("/static/{file}", _send_static),
            Route("/nodes", lambda _: RedirectResponse("/")),
            Route(f"{crawl}/events", self._send_events),
            Route(f"{crawl}/report", self._send_report),
            Route("/crawls", self._start_crawl, methods=["POST"]),
            Route("/jobs", self._start_jobs, methods=["POST"]),
        ]
        for path, view in views.items():
            routes.append(Route(f"{path}.json", partial(self._send_json, view)))
            routes.append(Route(path.replace("/index", "/"), partial(self._send_page, view)))
        return routes

    def _send_json(self, view: Callable[[Request], PageView], request: Request) -> Response:
        shown = view(request)
        if shown.refused is not None:
            raise shown.refused
        if shown.fault:
            return _send_fault(shown.fault, _NOT_NOW)
        return JSONResponse({"schema": 1, **without_logins(shown.document)})

    def _send_page(self, view: Callable[[Request], PageView], request: Request) -> Response:
        with note_times() as times:
            shown = view(request)
        as_of = min(times, default=time.time())
        values = {"document": shown.document, "as_of": as_of, **shown.values}
        status = _NOT_NOW if shown.is_partial else 200
        if shown.refused is not None:
            status = _status_of(shown.refused)
        return HTMLResponse(self._render(shown.template, request, values), status)

    def _render(self, template: str, request: Request, values: Mapping[str, Any]) -> str:
        # Not by `request.url`, for which a question mark in a name begins the query.
        path = quote(request.scope["path"], errors="replace")
        asked = request.scope["query_string"].decode("latin-1")
        query = f"?{asked}" if asked else ""
        beside = "/index.json" if path == "/" else f"{path}.json"
        made = self._environment.get_template(f"templates/{template}.html.j2")
        usual = {"here": f"{path}{query}", "json_beside": f"{beside}{query}"}
        return made.render({**usual, **values})

    def _send_report(self, request: Request) -> Response:
        try:
            return HTMLResponse(self._pages.whole_report(_name(request)))
        except DistError as error:
            return self._send_error_page(request, error, comes_whole=True)

    async def _send_events(self, request: Request) -> Response:
        return Stream(self._follow_crawl(_name(request)), media_type="text/event-stream")

    async def _follow_crawl(self, name: str) -> AsyncIterator[str]:
        """Generate an event whenever the head of a crawl's page is another one, up to its end."""
        last = ""
        while True:
            head, goes_on = await run_in_threadpool(self._render_head, name)
            if head != last:
                yield _event("head", head)
            if not goes_on:
                yield _event("end", "")
                return
            last = head
            await asyncio.sleep(EVERY)

    def _render_head(self, name: str) -> tuple[str, bool]:
        """Return the head of a crawl's page, and whether it may be another one soon."""
        fault = self._environment.get_template("templates/fault.html.j2")
        try:
            facts = self._pages.growth(name)
        except NothingMatched as error:
            return fault.render(text=str(error)), False
        except DistError as error:
            return fault.render(text=str(error)), True
        head = self._environment.get_template("templates/crawl_head.html.j2")
        return head.render(values_of(facts)), facts.lives

    def tell_error(self, request: Request, error: Exception) -> Response:
        """Say what keeps a page from being shown; it comes by itself when that is over."""
        if request.method not in {"GET", "HEAD"} or request.url.path.endswith(".json"):
            return _send_fault(_words_of(error), _status_of(error), _headers_of(error))
        return self._send_error_page(request, error)

    def _send_error_page(
        self, request: Request, error: Exception, *, comes_whole: bool = False
    ) -> Response:
        """Say it on a page that is tried again; comes_whole: not only its live part."""
        status = _status_of(error)
        values: dict[str, Any] = {
            "title": _TITLES.get(status, "There is no such page"),
            "text": _words_of(error),
            "is_for_now": status == _NOT_NOW,
            "comes_whole": comes_whole,
            "as_of": time.time(),
        }
        if status != _NOT_NOW:
            values["json_beside"] = ""  # what is there may be another page's
        return HTMLResponse(self._render("error", request, values), status, _headers_of(error))

    # actions

    async def _start_crawl(self, request: Request) -> Response:
        return await self._start(request, lambda actions: actions.start_crawl)

    async def _start_jobs(self, request: Request) -> Response:
        return await self._start(request, lambda actions: actions.start_jobs)

    async def _start(self, request: Request, choose: Callable[[Actions], Start]) -> Response:
        """Start what is asked for, and answer with the document of the command that does so."""
        if self._actions is None:
            return _refuse("Work is started here only by a server that was begun with --actions.")
        given = request.headers.get(TOKEN, "").encode("latin-1")  # the bytes that were sent
        if not hmac.compare_digest(given, self._actions.token.encode()):
            return _refuse(f"The header {TOKEN} has to have the token of this server.")
        asked = await _read_object(request)
        document = await run_in_threadpool(choose(self._actions), asked)
        return JSONResponse({"schema": 1, **document}, _status_of_start(document))


def without_logins(value: Any) -> Any:
    """Return a part of a document without the user names and passwords of addresses in it."""
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, Mapping):
        return {name: without_logins(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_logins(part) for part in value]
    return value


def quote_part(text: str) -> str:
    """Return a name as a part of an address."""
    return quote(text, safe="", errors="replace")


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _words_of_query(request: Request) -> dict[str, list[str]]:
    """Return the values of each name in the query of an address."""
    return {name: request.query_params.getlist(name) for name in request.query_params}


def _nodes(request: Request) -> tuple[str, ...]:
    return tuple(request.query_params.getlist("node"))


def _status_of(error: Exception) -> int:
    if isinstance(error, NothingMatched):
        return 404
    if isinstance(error, ConfigError):
        return 400
    if isinstance(error, HTTPException):
        return error.status_code
    return _NOT_NOW if isinstance(error, DistError) else 500


def _status_of_start(document: Mapping[str, Any]) -> int:
    """Return the status of what was started; jobs are not where no node took one."""
    jobs = document.get("jobs")
    if jobs is None or any(job["state"] == "scheduled" for job in jobs):
        return 201
    return 502


def _words_of(error: Exception) -> str:
    if isinstance(error, DistError):
        return str(error)
    if isinstance(error, HTTPException):
        return f"{error.detail}."
    return "sdist web itself has failed to make it. What went wrong is written where it runs."


def _send_fault(text: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"schema": 1, "error": hidden(text)}, status, headers)


def _headers_of(error: Exception) -> Mapping[str, str] | None:
    return error.headers if isinstance(error, HTTPException) else None


def _refuse(text: str) -> Response:
    return _send_fault(text, 403)


async def _read_object(request: Request) -> Mapping[str, Any]:
    """Return the JSON object of a request; ConfigError if it has none."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise ConfigError("A request to start work has a JSON object, as application/json.")
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BYTES:
            raise ConfigError("A request to start work has one megabyte at most.")
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise ConfigError(f"The request is no JSON: {error}.") from None
    if not isinstance(asked, dict):
        raise ConfigError("A request to start work has a JSON object.")
    return asked


def _event(name: str, text: str) -> str:
    """Return a server-sent event."""
    lines = "\n".join([f"data: {line}" for line in text.split("\n")])
    return f"event: {name}\n{lines}\n\n"


def _send_static(request: Request) -> Response:
    name = str(request.path_params["file"])
    if name not in STATIC:
        return PlainTextResponse("There is no such file.", 404)
    text = files(__package__).joinpath("static", name).read_text("utf-8")
    if name == "style.css":
        text = f"{read_style()}\n{text}"
    return Response(text, media_type=STATIC[name], headers={"Cache-Control": "max-age=3600"})


class _Guard:
    """Refuses strangers, and puts the headers on each answer that tell a browser what it may do."""

    def __init__(self, application: ASGIApp, password: str) -> None:
        self._application = application
        self._password = password

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                headers["Content-Security-Policy"] = PAGES_POLICY
                headers["Referrer-Policy"] = "same-origin"
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        answer = self._application
        if scope["type"] == "http":
            answer = self._find_refusal(Headers(scope=scope)) or answer
        await answer(scope, receive, send_guarded)

    def _find_refusal(self, headers: Headers) -> Response | None:
        if _is_of_another_site(headers):
            return PlainTextResponse("Pages of other sites can only link here.", 403)
        if self._password:
            if _has_password(headers.get("authorization", ""), self._password):
                return None
            challenge = {"WWW-Authenticate": 'Basic realm="sdist web", charset="UTF-8"'}
            return PlainTextResponse("A password is needed.", 401, challenge)
        # A page of a stranger may have a name that leads here, and would read what is shown.
        if _name_in(headers.get("host", "")) in LOCAL_NAMES:
            return None
        return PlainTextResponse("This server is called by 127.0.0.1 or localhost.", 421)


def _is_of_another_site(headers: Headers) -> bool:
    """Tell whether a page of another site has sent a request that is not a link to follow.

    It could make the server ask the nodes, as often as it likes, though it sees no answer.
    """
    if headers.get("sec-fetch-site") not in {"cross-site", "same-site"}:
        return False
    how = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return how != ("navigate", "document")


def _name_in(host: str) -> str:
    """Return the name in the header Host, without its port."""
    if ":" not in host or host.endswith("]"):
        return host
    return host.rpartition(":")[0]


def _has_password(authorization: str, password: str) -> bool:
    """Tell whether a request has the password; any user name will do."""
    kind, _, encoded = authorization.partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True).partition(b":")[2]
    except ValueError:
        return False
    return kind.lower() == "basic" and hmac.compare_digest(given, password.encode())
