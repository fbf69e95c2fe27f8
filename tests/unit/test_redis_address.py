"""Which part of a Redis store's address is ours."""

import pytest

from scrapyd_dist.store.redis.redis_address import without_prefix


@pytest.mark.parametrize(
    ("url", "plain", "prefix"),
    [
        ("redis://h/0", "redis://h/0", None),
        ("redis://h/0?prefix=shop:", "redis://h/0", "shop:"),
        ("redis://:p%40@h/0?db=1&prefix=a%3A&x=%2F", "redis://:p%40@h/0?db=1&x=%2F", "a:"),
    ],
)
def test_the_prefix_is_ours_and_the_rest_the_client_librarys(
    url: str, plain: str, prefix: str | None
) -> None:
    assert without_prefix(url) == (plain, prefix)
