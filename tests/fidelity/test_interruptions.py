"""What a project raises that is no `Exception` costs what an `Exception` at the same place would cost.

Plain Scrapy hangs at it, or its process dies, so these crawls are compared with plain ones in which an error is raised.
"""

import pytest
from rig.fidelity import Case, Comparison, Outcome

#: raised in every place, in words of Python
KINDS = ("asyncio.CancelledError()", "GeneratorExit()", "KeyboardInterrupt()", "SystemExit(3)")
MODULES = {
    "stumbling": """
        import asyncio

        KIND = lambda: {kind}

        def stumble(url, number):
            if url.endswith(f"/pieces/{{number}}"):
                raise KIND()
    """,
    "spider": """
        import asyncio

        from small.base import Rooms
        from small.stumbling import KIND, stumble

        class Museum(Rooms):
            def parse(self, response):
                for request in response.follow_all(css="a.piece", callback=self.parse_piece, errback=self.failed):
                    yield request
                yield from response.follow_all(css="a[rel=next]")
                if response.url.endswith("/rooms/1"):
                    raise KIND()

            def parse_piece(self, response):
                stumble(response.url, 0)
                return (self.generate, self.wait)[int(response.url.rpartition("/")[2]) % 2](response)

            def generate(self, response):
                stumble(response.url, 2)
                yield {"page": response.url}

            async def wait(self, response):
                await asyncio.sleep(0)
                stumble(response.url, 1)
                return [{"page": response.url}]

            def failed(self, failure):
                stumble(failure.request.url, 3)
                return failure
    """,
    "components": """
        from scrapy import signals

        from small.stumbling import KIND, stumble

        class Pipeline:
            def process_item(self, item, spider=None):
                stumble(item["page"], 4)
                return item

        class Downloading:
            def process_request(self, request, spider=None):
                if request.url.endswith("/pieces/3"):
                    raise ValueError("for its errback")
                stumble(request.url, 5)

            def process_response(self, request, response, spider=None):
                stumble(request.url, 6)
                return response

        class Scraping:
            def process_spider_input(self, response, spider=None):
                stumble(response.url, 7)

            async def process_spider_output(self, response, result, spider=None):
                async for one in result:
                    stumble(response.url, 8)
                    yield one

        class Outermost:
            async def process_spider_output(self, response, result, spider=None):
                async for one in result:
                    stumble(response.url, 9)
                    yield one

        class Listening:
            @classmethod
            def from_crawler(cls, crawler):
                listening = cls()
                crawler.signals.connect(listening.idle, signals.spider_idle)
                crawler.signals.connect(listening.scraped, signals.item_scraped)
                return listening

            def idle(self):
                raise KIND()

            async def scraped(self, item):
                stumble(item["page"], 10)
    """,
}
SETTINGS = {
    "ITEM_PIPELINES": {"small.components.Pipeline": 1},
    "DOWNLOADER_MIDDLEWARES": {"small.components.Downloading": 1},
    "SPIDER_MIDDLEWARES": {"small.components.Scraping": 500, "small.components.Outermost": 1},
    "EXTENSIONS": {"small.components.Listening": 1},
}
#: a project whose only code besides its callbacks is a download handler
HANDLER = """
    from inspect import iscoroutinefunction

    from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler

    from small.stumbling import stumble

    class Handler(HTTP11DownloadHandler):
        if iscoroutinefunction(HTTP11DownloadHandler.download_request):
            async def download_request(self, request):
                stumble(request.url, 5)
                return await super().download_request(request)
        else:  # Scrapy before 2.14
            def download_request(self, request, spider):
                stumble(request.url, 5)
                return super().download_request(request, spider)
"""
HANDLERS = {"DOWNLOAD_HANDLERS": {"http": "small.handlers.Handler"}}


def raising(kind: str, name: str) -> Case:
    """A project in which this is raised in every place, at a page of each."""
    files = {**MODULES, "stumbling": MODULES["stumbling"].format(kind=kind)}
    return Case(name=name, files=files, settings=SETTINGS)


def raising_without_components(kind: str, name: str) -> Case:
    """A project without pipelines and middlewares: callbacks raise this, and a download handler."""
    files = {
        "stumbling": MODULES["stumbling"].format(kind=kind),
        "spider": MODULES["spider"],
        "handlers": HANDLER,
    }
    return Case(name=name, files=files, settings=HANDLERS)


def check(comparison: Comparison, kind: str, mode: str, *, in_one_process: bool) -> None:
    """See that it costs the same pages and items as an error, and that the pages are named."""
    name = kind.partition("(")[0].rpartition(".")[2]
    crawl = comparison.in_one_process if in_one_process else comparison.distributed
    ours = crawl(raising(kind, f"raises-{name}-{mode}"), mode)
    plain = comparison.plain(raising("RuntimeError()", "raises-errors"))
    check_pages(ours, plain, name, (0, 1, 2, 4, 5, 6, 7, 8, 9))
    assert ours.code == 3, f"most pages have failed\n{ours.said}"


def check_pages(ours: Outcome, plain: Outcome, name: str, pieces: tuple[int, ...]) -> None:
    """See that both crawls have the same pages and items; ours names these pieces, and a room."""
    differences = {
        name: text for name, text in ours.differences(plain).items() if name in ("items", "pages")
    }
    assert differences == {}, f"{differences}\n{ours.said}"
    named = {page for page, reason in ours.misses.items() if reason.startswith(name)}
    assert named == {f"/pieces/{number}" for number in pieces} | {"/rooms/1"}, ours.misses


@pytest.mark.parametrize(("kind", "mode"), [(KINDS[0], "push"), (KINDS[3], "pull")])
def test_it_costs_what_an_error_costs_in_one_process(
    one_process: Comparison, kind: str, mode: str
) -> None:
    check(one_process, kind, mode, in_one_process=True)


def test_it_costs_the_same_where_only_callbacks_and_a_download_handler_raise_it(
    one_process: Comparison,
) -> None:
    ours = one_process.in_one_process(
        raising_without_components(KINDS[0], "raises-in-handler"), "pull"
    )
    plain = one_process.plain(raising_without_components("RuntimeError()", "errors-in-handler"))
    check_pages(ours, plain, "CancelledError", (0, 1, 2, 5))


@pytest.mark.black_box
@pytest.mark.full
@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_costs_what_an_error_costs(comparison: Comparison, kind: str, mode: str) -> None:
    check(comparison, kind, mode, in_one_process=False)
