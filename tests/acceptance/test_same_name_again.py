"""A crawl of a name that was used before: nodes remember the jobs of the earlier one, which had the same ids."""

from collections import Counter
from collections.abc import Callable

import pytest
from rig.crawls import ADDON, QUICK, said
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode

pytestmark = pytest.mark.black_box


def test_the_jobs_of_a_removed_crawl_are_not_taken_for_those_of_the_next_one(
    project: MakeProject, scrapyd_node: Callable[..., ScrapydNode], site: StartSite, run_cli: RunCommand
) -> None:
    there = site(6)
    settings = {**QUICK, "ADDONS": ADDON, "START_URL": there.start_url}
    node = scrapyd_node(max_proc=1, poll_interval=0.2)
    it = project(nodes=[node], settings=settings)
    for _ in range(2):
        done = run_cli(it, "crawl", "plain", "--callback", "parse_article", "--name", "again")
        assert done.code == 0, said(done)
        assert run_cli(it, "clean", "again", "--yes").code == 0
    assert list(Counter(job["id"] for job in node.jobs()).values()) == [2], node.jobs()
    assert set(there.item_hits().values()) == {2}
