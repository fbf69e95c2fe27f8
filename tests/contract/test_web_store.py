"""The pages of `sdist web` while a real Redis server that has the store goes away and comes back."""

from contextlib import closing
from pathlib import Path

import pytest
from rig.fleet_sender import FleetSender, loaded
from rig.redis import RedisServer
from rig.waiting import wait_for
from rig.web_pages import fill_store, served, write_targets


def test_a_page_says_that_the_store_is_away_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(tmp_path, ["web1"])
    with closing(RedisServer(tmp_path / "redis")) as server:
        monkeypatch.setenv("SDIST_STORE", server.url)
        monkeypatch.setattr("scrapyd_dist.store.redis.redis_link.PATIENCE", 1.0)
        crawl = fill_store(tmp_path)
        now = [0.0]
        with served(tmp_path, FleetSender(web1=loaded()), clock=lambda: now[0]) as client:

            def page(path: str) -> tuple[int, str]:
                now[0] += 10.0
                answer = client.get(path)
                return answer.status_code, answer.text

            paths = ["/", "/crawls", "/jobs", f"/crawls/{crawl.id}", f"/crawls/{crawl.id}/batches"]
            assert [page(path)[0] for path in paths] == [200] * len(paths)
            server.kill()
            for path in paths:
                status, text = page(path)
                assert status == 503, path
                assert "redis" in text.lower()
                assert server.password is not None
                assert server.password not in text
            server.start()
            for path in paths:
                wait_for(lambda path=path: page(path)[0] == 200, 20, path)  # type: ignore[misc]
