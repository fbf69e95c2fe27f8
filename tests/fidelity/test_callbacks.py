"""What callbacks and errbacks yield, and the requests that they make: kinds, bodies, sessions, repetitions."""

import pytest
from rig.fidelity import MODES, Case, Comparison, rows_in_one_process, rows_on_nodes

USUAL = Case(name="rooms-and-pieces", files={})

ASYNC = Case(
    name="async-callbacks",
    files={
        "spider": """
            import asyncio

            from small.base import Rooms

            class Museum(Rooms):
                async def parse(self, response):
                    await asyncio.sleep(0)
                    for request in response.follow_all(css="a.piece", callback=self.parse_piece):
                        yield request
                    for request in response.follow_all(css="a[rel=next]"):
                        yield request

                async def parse_piece(self, response):
                    await asyncio.sleep(0.01)
                    return [
                        {"page": response.url},
                        response.follow(response.css("a.note")[0], self.parse_note),
                    ]

                async def parse_note(self, response):
                    yield {"note": response.css("p.note::text").get()}
        """
    },
)

INLINE = Case(
    name="inline-downloads",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                async def parse_piece(self, response):
                    request = response.follow(response.css("a.note")[0])
                    note = await self.crawler.engine.download_async(request)
                    yield {"page": response.url, "note": note.css("p.note::text").get()}
        """
    },
)

GET_RETRY_REQUEST = Case(
    name="get-retry-request",
    settings={"RETRY_TIMES": 2},
    files={
        "spider": """
            from scrapy.downloadermiddlewares.retry import get_retry_request

            from small.base import Rooms

            class Museum(Rooms):
                wing = "shut"

                def parse_piece(self, response):
                    name = response.css("h2::text").get()
                    if name is None:
                        yield get_retry_request(response.request, spider=self, reason="cleaning")
                    else:
                        yield {"page": response.url, "name": name, "times": response.meta["retry_times"]}
        """
    },
)

REPLACED = Case(
    name="request-replaced-in-the-callback",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "shut"

                def parse_piece(self, response):
                    name = response.css("h2::text").get()
                    if name is None:
                        return response.request.replace(dont_filter=True)
                    return [{"page": response.url, "name": name}]
        """
    },
)

UNFILTERED_LOOP = Case(
    name="unfiltered-loop",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response, turn=1):
                    yield {"page": response.url, "turn": turn}
                    if turn < 3:
                        yield response.request.replace(cb_kwargs={"turn": turn + 1}, dont_filter=True)
        """
    },
)

ERRBACK_ITEMS = Case(
    name="errback-yields-items",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "lost"

                def parse(self, response):
                    for link in response.css("a.piece"):
                        yield response.follow(link, self.parse_piece, errback=self.failed, cb_kwargs={"where": "a"})
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, where):
                    yield {"page": response.url, "where": where}

                def failed(self, failure):
                    request = failure.request
                    yield {"lost": request.url, "status": failure.value.response.status, **request.cb_kwargs}
        """
    },
)

ERRBACK_REQUESTS = Case(
    name="errback-yields-requests",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "lost"

                def parse(self, response):
                    yield from response.follow_all(css="a.piece", callback=self.parse_piece, errback=self.failed)
                    yield from response.follow_all(css="a[rel=next]")

                def failed(self, failure):
                    yield failure.request.replace(
                        url=failure.request.url.replace("/lost/", "/pieces/"), errback=None, meta={}
                    )
        """
    },
)

HANDLED_STATUS = Case(
    name="handled-status",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "lost"

                def parse(self, response):
                    meta = {"handle_httpstatus_list": [404]}
                    yield from response.follow_all(css="a.piece", callback=self.parse_piece, meta=meta)
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response):
                    yield {"page": response.url, "status": response.status}
        """
    },
)

HANDLED_BY_THE_SPIDER = Case(
    name="spider-handles-a-status",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "lost"
                handle_httpstatus_list = [404]

                def parse_piece(self, response):
                    yield {"page": response.url, "status": response.status}
        """
    },
)

BUSY = Case(
    name="retries-of-the-site",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "busy"
        """
    },
)

MOVED = Case(
    name="redirects-of-the-site",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "moved"

                def parse_piece(self, response):
                    yield {"page": response.url, "from": response.meta["redirect_urls"]}
        """
    },
)

CHAIN = Case(
    name="item-travels-from-page-to-page",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    item = {"page": response.url, "notes": []}
                    todo = [response.urljoin(f"/echo/{n}?of={response.url[-2:]}") for n in range(2)]
                    meta = {"item": item, "todo": todo}
                    yield response.follow(response.css("a.note")[0], self.parse_more, meta=meta, priority=4)

                def parse_more(self, response):
                    item, todo = response.meta["item"], response.meta["todo"]
                    item["notes"].append(response.url)
                    if not todo:
                        return [item]
                    return response.follow(todo[0], self.parse_more, meta={"item": item, "todo": todo[1:]})
        """
    },
)

SHARED_PAGE = Case(
    name="pages-that-several-pieces-link-to",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    yield response.follow(response.css("a.maker")[0], self.parse_maker)

                def parse_maker(self, response):
                    yield {"maker": response.url}
        """
    },
    differs=frozenset({"items", "pages"}),
    sentence="3 pages (for example http://127.0.0.1",
)

SHARED_PAGE_OTHER_ITEMS = Case(
    name="pages-that-several-pieces-link-to-with-items-that-say-from-where",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    yield response.follow(response.css("a.maker")[0], self.parse_maker)

                def parse_maker(self, response):
                    referer = response.request.headers["Referer"].decode()
                    yield {"maker": response.url, "from": referer}
        """
    },
    differs=frozenset({"items", "pages"}),
    sentence="a page that target pages lead to, or are redirected to, is crawled once for each batch",
)

REDIRECTED_TO_ONE_PAGE = Case(
    name="pieces-that-redirect-to-one-page",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                wing = "lent"

                def parse_piece(self, response):
                    yield {"page": response.url}
        """
    },
    differs=frozenset({"items", "pages"}),
    sentence="a page that target pages lead to, or are redirected to, is crawled once for each batch",
)

BACK_TO_THE_INDEX = Case(
    name="pieces-that-lead-back-to-rooms",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.middlewares.Sold": 580}},
    files={
        "middlewares": """
            from small.base import SITE

            class Sold:
                def process_response(self, request, response):
                    if request.url.endswith("/pieces/5"):
                        return request.replace(url=f"{SITE}/rooms/1")
                    return response
        """,
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield {"room": response.url}
                    yield from super().parse(response)

                def parse_piece(self, response):
                    yield {"page": response.url}
                    if response.url.endswith("/pieces/3"):
                        yield response.follow("/rooms/2", self.parse_again)

                def parse_again(self, response):
                    yield {"again": response.url}
        """,
    },
    differs=frozenset({"items", "pages"}),
    sentence="2 pages (for example http://127.0.0.1",
)

#: where the jobs follow these links themselves, as with --push
PIECES_LEAD_TO_PIECES = Case(
    name="pieces-that-lead-to-pieces",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url, "from": response.request.headers["Referer"].decode()}
                    number = int(response.url.rpartition("/")[2])
                    yield response.follow(f"/pieces/{number * 7 % 18}", self.parse_piece)
        """
    },
    differs=frozenset({"items", "pages"}),
    sentence="or are redirected to, is crawled once for each batch",
)

META_IN_ITEMS = Case(
    name="items-that-copy-the-meta-of-their-page",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    yield {"room": response.url, **self.copied(response.meta)}
                    for link in response.css("a.piece"):
                        yield response.follow(link, self.parse_piece, meta=response.meta, errback=self.note)
                    yield from response.follow_all(css="a[rel=next]", meta=response.meta)

                def parse_piece(self, response):
                    yield {"page": response.url, **self.copied(response.meta)}
                    yield response.follow(
                        response.css("a.note")[0], self.parse_note, meta=response.meta, errback=self.note
                    )
                    number = response.url.rpartition("/")[2]
                    yield response.follow(f"/nowhere/{number}", self.parse_note, errback=self.note)

                def parse_note(self, response):
                    yield {"note": response.url, **self.copied(response.meta)}

                def note(self, failure):
                    yield {"failed": failure.request.url, **self.copied(failure.request.meta)}

                def copied(self, meta):
                    return {name: value for name, value in meta.items() if name != "download_latency"}
        """
    },
)

REQUEST_AS_DICT = Case(
    name="request-made-a-dict-in-the-callback",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    made = response.request.to_dict(spider=self)
                    yield {"room": response.url, "errback": made["errback"], "keys": sorted(made)}
                    yield from response.follow_all(
                        css="a.piece", callback=self.parse_piece, errback=self.note_failure
                    )
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response):
                    made = response.request.to_dict(spider=self)
                    yield {"page": response.url, "errback": made["errback"], "keys": sorted(made)}
                    yield response.follow(response.css("a.note")[0], self.parse_note)

                def parse_note(self, response):
                    made = response.request.to_dict(spider=self)
                    yield {"note": response.url, "errback": made["errback"], "keys": sorted(made)}

                def note_failure(self, failure):
                    yield {"failed": failure.request.url}
        """
    },
)

SHARED_STATE = Case(
    name="requests-count-down-in-one-object",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    state = {"left": len(response.css("a.piece"))}
                    for link in response.css("a.piece"):
                        yield response.follow(link, self.parse_piece, cb_kwargs={"state": state})
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, state):
                    yield {"page": response.url}
                    state["left"] -= 1
                    if not state["left"]:
                        yield {"room": "is done"}
        """
    },
    differs=frozenset({"items", "code"}),
    sentence="state): In one process these requests have the same value in meta or cb_kwargs",
    code=3,
)

ONE_OBJECT_IN_TWO_PLACES = Case(
    name="one-object-in-two-places",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    for link in response.css("a.piece"):
                        item = {"page": response.urljoin(link.attrib["href"]), "tags": [], "sizes": [{}]}
                        yield response.follow(
                            link,
                            self.parse_piece,
                            meta={"item": item, "size": item["sizes"][0]},
                            cb_kwargs={"tags": item["tags"], "again": {"item": item}},
                        )
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, tags, again):
                    tags.append(response.css("h2::text").get())
                    response.meta["size"]["width"] = 1
                    again["item"]["more"] = True
                    yield response.meta["item"]
        """
    },
)

SHARED_CONSTANT = Case(
    name="requests-read-one-object",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                config = {"selector": "h2::text"}

                def parse(self, response):
                    for link in response.css("a.piece"):
                        kwargs = {"config": self.config}
                        yield response.follow(link, self.parse_piece, cb_kwargs=kwargs, meta={"room": kwargs})
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, config):
                    name = response.css(config["selector"]).get()
                    yield {"page": response.url, "name": name, "room": sorted(response.meta["room"])}
        """
    },
)

OBJECTS = Case(
    name="objects-in-cb-kwargs-and-meta",
    files={
        "items": """
            import dataclasses

            import scrapy

            @dataclasses.dataclass
            class Place:
                room: int
                shelf: str

            class Label(scrapy.Item):
                text = scrapy.Field()
                when = scrapy.Field()
        """,
        "spider": """
            import datetime
            import decimal

            from small.base import Rooms
            from small.items import Label, Place

            class Museum(Rooms):
                def parse(self, response):
                    for number, link in enumerate(response.css("a.piece")):
                        kwargs = {
                            "place": Place(room=number, shelf="top"),
                            "label": Label(text=link.css("::text").get(), when=datetime.date(2026, 1, 2)),
                            "price": decimal.Decimal("1.50"),
                        }
                        meta = {"seen": {1, 2}, "pair": (1, "b"), "at": datetime.datetime(2026, 1, 2, 3, 4)}
                        yield response.follow(link, self.parse_piece, cb_kwargs=kwargs, meta=meta)
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response, place, label, price):
                    kinds = [type(one).__name__ for one in (place, label, price, label["when"])]
                    kinds += [type(response.meta[name]).__name__ for name in ("seen", "pair", "at")]
                    yield {"page": response.url, "room": place.room, "text": label["text"], "kinds": kinds}
        """,
    },
)

LOADER_IN_META = Case(
    name="item-loader-in-meta",
    files={
        "spider": """
            from itemloaders import ItemLoader

            from small.base import Rooms

            class Museum(Rooms):
                def parse(self, response):
                    for link in response.css("a.piece"):
                        loader = ItemLoader({}, selector=link)
                        loader.add_css("text", "::text")
                        yield response.follow(link, self.parse_piece, meta={"loader": loader})
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response):
                    loader = response.meta["loader"]
                    loader.add_value("page", response.url)
                    yield loader.load_item()
        """
    },
    handed_out=0,
    sentence="A node cannot rebuild such a request",
)

FORMS = Case(
    name="forms-and-json",
    files={
        "spider": """
            import scrapy
            from scrapy.http import FormRequest, JsonRequest

            from small.base import SITE, Rooms

            class Museum(Rooms):
                wing = "forms"

                def parse_piece(self, response):
                    form = {"word": "porté"}
                    yield FormRequest.from_response(response, formdata=form, callback=self.parse_answer)
                    number = int(response.url.rpartition("/")[2])
                    data = {"number": number, "word": "porté"}
                    yield JsonRequest(f"{SITE}/desk/json", data=data, callback=self.parse_answer)

                def parse_answer(self, response):
                    answer = response.json()
                    answer["sent"].pop("User-Agent")
                    yield {"asked": response.url, **answer}
        """
    },
)

POSTED_TARGETS = Case(
    name="posted-requests-are-handed-out",
    files={
        "spider": """
            from scrapy.http import FormRequest, JsonRequest

            from small.base import SITE, Rooms

            class Museum(Rooms):
                def parse(self, response):
                    for number in range(6):
                        data = {"number": number, "room": response.url[-1]}
                        yield JsonRequest(f"{SITE}/desk/1", data=data, callback=self.parse_piece)
                        form = {name: str(value) for name, value in data.items()}
                        yield FormRequest(f"{SITE}/desk/2", formdata=form, callback=self.parse_piece)
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response):
                    yield {"asked": response.url, "body": response.json()["body"]}
        """
    },
)

PRIORITIES = Case(
    name="priorities-headers-and-flags",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                def parse(self, response):
                    for number in range(4):
                        yield scrapy.Request(
                            f"{SITE}/desk/{response.url[-1]}{number}", self.parse_piece, method="PUT",
                            headers={"X-Token": f"t{number}"}, cookies={"lang": "de"}, body="é", encoding="latin-1",
                            priority=number - 2, flags=["marked"],
                        )
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response):
                    request = response.request
                    kept = {"priority": request.priority, "flags": request.flags}
                    yield {"asked": response.url, **kept, **response.json()}
        """
    },
)

OWN_REQUEST_CLASS = Case(
    name="request-class-of-the-project",
    settings={"DOWNLOADER_MIDDLEWARES": {"small.requests.Signed": 500}},
    files={
        "requests": """
            import scrapy

            class SignedRequest(scrapy.Request):
                attributes = (*scrapy.Request.attributes, "signature")

                def __init__(self, *args, signature="", **kwargs):
                    self.signature = signature
                    super().__init__(*args, **kwargs)

            class Signed:
                def process_request(self, request):
                    request.headers["X-Token"] = getattr(request, "signature", "none")
        """,
        "spider": """
            from small.base import SITE, Rooms
            from small.requests import SignedRequest

            class Museum(Rooms):
                def parse(self, response):
                    for number in range(4):
                        url = f"{SITE}/desk/{response.url[-1]}{number}"
                        yield SignedRequest(url, callback=self.parse_piece, signature=f"s{number}")
                    yield from response.follow_all(css="a[rel=next]")

                def parse_piece(self, response):
                    yield {"asked": response.url, "token": response.json()["sent"]["X-Token"]}
        """,
    },
    handed_out=0,
    sentence="A node cannot rebuild such a request",
)

COOKIE_JARS = Case(
    name="cookie-jars",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                async def start(self):
                    for who in ("ann", "bob", "eve"):
                        yield scrapy.Request(f"{SITE}/door?visitor={who}", meta={"cookiejar": who})

                def parse(self, response):
                    meta = {"cookiejar": response.meta["cookiejar"]}
                    yield from response.follow_all(css="a.piece", callback=self.parse_piece, meta=meta)
        """
    },
)

HELPERS = Case(
    name="callbacks-that-are-no-methods",
    files={
        "spider": """
            import functools

            from small.base import Rooms

            def outside(response):
                yield {"page": response.url, "by": "function"}

            class Helper:
                def parse_piece(self, response):
                    yield {"page": response.url, "by": "helper"}

            class Museum(Rooms):
                def parse(self, response):
                    callbacks = [
                        self.parse_piece, Helper().parse_piece, functools.partial(self.parse_with, extra=1), outside,
                    ]
                    for link, callback in zip(response.css("a.piece"), callbacks):
                        yield response.follow(link, callback)
                    yield from response.follow_all(css="a[rel=next]")

                def parse_with(self, response, extra):
                    yield {"page": response.url, "by": "partial", "extra": extra}
        """
    },
    handed_out=3,
)

START_WITH_ITEMS = Case(
    name="start-yields-items",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                async def start(self):
                    yield {"opened": "2026"}
                    for number in range(3):
                        yield scrapy.Request(f"{SITE}/rooms/{number}")
                        yield {"room": number}

                def parse(self, response):
                    yield {"seen": response.url}
                    yield from response.follow_all(css="a.piece", callback=self.parse_piece)
        """
    },
)

TARGETS_AT_THE_START = Case(
    name="start-yields-the-pages-themselves",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                async def start(self):
                    for number in range(12):
                        yield scrapy.Request(f"{SITE}/pieces/{number}", self.parse_piece, dont_filter=number < 2)
        """
    },
)

READS_ITS_INPUT = Case(
    name="start-reads-standard-input",
    stdin="{site}/pieces/1\n{site}/pieces/2\n",
    files={
        "spider": """
            import sys

            import scrapy

            from small.base import Rooms

            class Museum(Rooms):
                async def start(self):
                    for line in sys.stdin:
                        yield scrapy.Request(line.strip(), self.parse_piece)
        """
    },
    handed_out=2,
)

START_WAITS_FOR_ITEMS = Case(
    name="start-waits-for-an-item",
    files={
        "spider": """
            import asyncio

            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                async def start(self):
                    for number in range(3):
                        yield scrapy.Request(f"{SITE}/pieces/{number}", self.parse_piece)
                        await self.wait_for(scrapy.signals.item_scraped)

                async def wait_for(self, signal):
                    came = asyncio.Event()
                    self.heard = lambda **_: came.set()
                    self.crawler.signals.connect(self.heard, signal)
                    await came.wait()
        """
    },
    refusals=dict.fromkeys(
        MODES, "Museum.start): The spider's start waits for a signal of its items"
    ),
)

ALSO_INDEX = Case(
    name="pages-that-are-asked-for-in-two-ways",
    files={
        "spider": """
            from small.base import SITE, Rooms

            class Museum(Rooms):
                def parse(self, response):
                    if response.url.endswith("/rooms/0"):
                        for first, last, callback in (
                            (0, 4, self.parse_label),
                            (2, 8, self.parse_piece),
                            (6, 10, self.parse_label),
                            (8, 12, self.parse_piece),
                        ):
                            for number in range(first, last):
                                yield response.follow(f"{SITE}/pieces/{number}", callback)
                    yield from response.follow_all(css="a[rel=next]")

                def parse_label(self, response):
                    yield {"label": response.url}
        """
    },
    each_page_once=True,
    handed_out=6,
)

SECRETS = Case(
    name="odd-addresses",
    files={
        "spider": """
            import scrapy

            from small.base import SITE, Rooms

            class Museum(Rooms):
                def parse(self, response):
                    tails = ["café/ñ", "a b?q=日本", "%E4", "?x=" + "y" * 1500]
                    tails += ["p;v=1", "?b=2&a=1", "#part", "?e=%20+%2B"]
                    for number, tail in enumerate(tails):
                        yield scrapy.Request(f"{SITE}/echo/{number}{tail}", self.parse_piece, cb_kwargs={"n": number})

                def parse_piece(self, response, n):
                    yield {"n": n, "page": response.url, "heard": response.css("h2::text").get()}
        """
    },
    handed_out=8,
)

SPIDER_ERROR = Case(
    name="callback-raises",
    files={
        "spider": """
            from small.base import Rooms

            class Museum(Rooms):
                def parse_piece(self, response):
                    yield {"page": response.url}
                    if response.url.endswith("/3"):
                        raise ValueError("no such piece")
                    yield {"after": response.url}
        """
    },
    differs=frozenset({"code"}),
    sentence="no such piece",
    code=3,
)

CASES = [
    USUAL,
    ASYNC,
    INLINE,
    GET_RETRY_REQUEST,
    REPLACED,
    UNFILTERED_LOOP,
    ERRBACK_ITEMS,
    ERRBACK_REQUESTS,
    HANDLED_STATUS,
    HANDLED_BY_THE_SPIDER,
    BUSY,
    MOVED,
    CHAIN,
    SHARED_PAGE,
    SHARED_PAGE_OTHER_ITEMS,
    REDIRECTED_TO_ONE_PAGE,
    BACK_TO_THE_INDEX,
    META_IN_ITEMS,
    REQUEST_AS_DICT,
    SHARED_STATE,
    ONE_OBJECT_IN_TWO_PLACES,
    SHARED_CONSTANT,
    OBJECTS,
    LOADER_IN_META,
    FORMS,
    POSTED_TARGETS,
    PRIORITIES,
    OWN_REQUEST_CLASS,
    COOKIE_JARS,
    HELPERS,
    START_WITH_ITEMS,
    TARGETS_AT_THE_START,
    READS_ITS_INPUT,
    ALSO_INDEX,
    START_WAITS_FOR_ITEMS,
    SECRETS,
    SPIDER_ERROR,
]
#: the fast part: a crawl of each in one process, in this mode
QUICK_ROWS = [
    (USUAL, "pull"),
    (ASYNC, "push"),
    (ERRBACK_ITEMS, "pull"),
    (SHARED_STATE, "pull"),
    (ONE_OBJECT_IN_TWO_PLACES, "push"),
    (ALSO_INDEX, "pull"),
    (COOKIE_JARS, "push"),
    (MOVED, "push"),
    (PIECES_LEAD_TO_PIECES, "push"),
    (SHARED_PAGE_OTHER_ITEMS, "pull"),
    (BACK_TO_THE_INDEX, "pull"),
]


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize(("case", "mode"), rows_on_nodes(CASES))
def test_what_callbacks_yield_is_the_same(comparison: Comparison, case: Case, mode: str) -> None:
    comparison.check(case, mode)


@pytest.mark.parametrize(("case", "mode"), rows_in_one_process(CASES, QUICK_ROWS))
def test_what_callbacks_yield_is_the_same_in_one_process(
    one_process: Comparison, case: Case, mode: str
) -> None:
    one_process.check_in_one_process(case, mode)
