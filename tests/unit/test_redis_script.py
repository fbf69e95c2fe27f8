"""The script of the Redis store has its constants from Python, and no more of them than it uses."""

import re
from importlib.resources import files

from scrapyd_dist.store import redis
from scrapyd_dist.store.ports.throttle_rows import CHANGES
from scrapyd_dist.store.redis.redis_script import SHARED, script_text
from scrapyd_dist.throttle.domain_status import SLOWEST


def test_what_the_pieces_share_with_python_is_there_and_is_used() -> None:
    assert set(re.findall(r"\bshared\.(\w+)", script_text())) == set(SHARED)


def test_the_constants_stand_before_all_pieces_as_numbers() -> None:
    first, _, rest = script_text().partition("\n")
    assert f"{{CHANGES = {CHANGES}," in first
    assert f" SLOWEST = {SLOWEST}}}" in first
    names = sorted(piece.name for piece in files(redis).joinpath("script").iterdir())
    texts = [files(redis).joinpath("script", name).read_text("utf-8") for name in names]
    assert rest == "\n".join(texts)
