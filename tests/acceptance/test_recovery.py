"""What a person does about a crawl that gave something up: looks at its batches, and tries those again."""

from pathlib import Path

from rig.bad_days import IMPATIENT, ITEMS, arguments
from rig.crawls import crawls, last_crawl
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode

#: dies on one page as long as a file is there: what a library that crashes is until it is mended
FRAGILE = """
    import os
    import signal
    from pathlib import Path

    from properties.spiders.easy import EasySpider


    class FragileSpider(EasySpider):
        name = "fragile"

        def parse_item(self, response):
            if response.url.endswith({url!r}) and Path({flag!r}).exists():
                os.kill(os.getpid(), signal.SIGKILL)
            yield from super().parse_item(response)
"""


def test_what_was_given_up_is_tried_again(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand, tmp_path: Path
) -> None:
    pages, flag = site(12), tmp_path / "broken"
    flag.touch()
    pages.behave({pages.site.detail_path(1): "fail", pages.site.detail_path(9): "gone"})
    settings = {**IMPATIENT, "START_URL": pages.start_url, "DISTRIBUTED_BATCH_SIZE": 4}
    it = project(nodes=pair, settings={**settings, "DISTRIBUTED_MAX_ATTEMPTS": 1})
    it.spider("fragile", FRAGILE.format(url=pages.site.detail_path(6), flag=str(flag)))
    command = [text.replace("easy", "fragile") for text in arguments("sdist", pages, shards=1)]
    run_cli(it, *command, code=3)
    crawl = crawls(it)[0].id

    dead = run_cli(it, "batches", crawl, "--state", "dead", "--urls")
    assert dead.out.split() == [pages.detail(6)]
    listed = run_cli(it, "batches", crawl, "--json").json()
    assert {row["state"] for row in listed["batches"]} == {"done", "dead", "split"}
    run_cli(it, "batches", crawl, "--state", "lost", code=2)

    flag.unlink()
    pages.behave({pages.site.detail_path(9): "gone"})
    run_cli(it, "retry", crawl, "--failed-urls", "--json", code=0)
    assert pages.differences(it.items(ITEMS), without=[9]) == {}
    summary = last_crawl(it).summary
    assert (summary["failed_urls"], summary["dead_urls"], summary["gone_urls"]) == (0, 0, 1)
    nothing = run_cli(it, "retry", crawl, "--failed-urls")
    assert nothing.code == 4
    assert "nothing to try again" in nothing.err
