"""What a worker of another project says first: the public half of its key, and whether it could work for the crawl."""

from typing import Any

import pytest
from cryptography.fernet import Fernet
from scrapy import Spider
from scrapy.utils.test import get_crawler
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.worker import lease_session
from scrapyd_dist.middlewares.worker.lease_session import introduce

from scrapyd_dist.keys import public_half

KEY = Fernet.generate_key()


class Plain(Spider):
    name = "plain"


class Hiding(Spider):
    name = "hiding"
    custom_settings = {"ADDONS": {}}  # noqa: RUF012 - as projects write it


class Naming(Spider):
    name = "naming"
    custom_settings = {"ADDONS": {"scrapyd_dist.Addon": 500}}  # noqa: RUF012 - as projects write it


def said(
    spider: type[Spider] = Plain, *, key: bytes | None = KEY, uploads: tuple[str, ...] = (), **fields: Any
) -> tuple[str, str]:
    job = Assignment(leases=True, crawl="c", worker=1, home="c.0", node="here", introduce=True, **fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_session, "egg_key", lambda: key)
        return introduce(get_crawler(spider), job, uploads)


@pytest.mark.parametrize("spider", [Plain, Naming])
def test_code_that_can_work_gives_its_public_half(spider: type[Spider]) -> None:
    assert said(spider) == (public_half(KEY), "")


def test_what_stands_in_the_way_is_said_with_what_to_do() -> None:
    assert 'add "scrapyd_dist.Addon": 500' in said(Hiding)[1]
    assert said(uploads=("ftp://host/items.jl",))[1].startswith("its setting FEEDS has ftp://host/items.jl, ")
    public, why = said(key=None)
    assert (public, "sdist deploy-all" in why) == ("", True)


def test_only_a_crawl_whose_store_is_a_server_asks_for_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_session, "find_spec", lambda name: None)
    assert said()[1] == ""
    assert "has the client" in said(needs_client=True)[1]
