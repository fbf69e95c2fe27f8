"""robots.txt binds every request of a batch, also those that are under way before it has come."""

from collections.abc import Callable

import pytest
from rig.consumers import ConsumerBench


@pytest.mark.black_box
def test_no_page_that_robots_txt_disallows_is_fetched(bench: Callable[..., ConsumerBench]) -> None:
    it = bench(items=40, slots=1, size=40, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS_PER_DOMAIN=16)
    rules = f"User-agent: *\nDisallow: {it.site.site.detail_path(0).rpartition('/')[0]}/\n"
    it.site.behave({"/robots.txt": f"says:{rules}"})
    it.consume(code=None)
    assert set(it.site.hits()) == {"/robots.txt"}
