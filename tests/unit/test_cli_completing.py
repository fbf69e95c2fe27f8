"""What a press of TAB offers: from the code and from this machine."""

from contextlib import closing
from pathlib import Path

import pytest
from scrapyd_dist.cli.completing import choices

from scrapyd_dist.batches import Crawl
from scrapyd_dist.store import open_store

CFG = """
[settings]
default = shop.settings
[deploy:web1]
url = http://web1:6800/
[deploy:web2]
url = http://web2:6800/
"""
SPIDER = 'class One(Spider):\n    name = "{}"\n'


@pytest.fixture
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop" / "spiders").mkdir(parents=True)
    (tmp_path / "scrapy.cfg").write_text(CFG, "utf-8")
    (tmp_path / "shop" / "spiders" / "one.py").write_text(SPIDER.format("books"), "utf-8")
    (tmp_path / "shop" / "spiders" / "two.py").write_text(SPIDER.format("shoes"), "utf-8")
    (tmp_path / "shop" / "other.py").write_text(SPIDER.format("no_spider"), "utf-8")
    monkeypatch.chdir(tmp_path)


def offered(line: str) -> list[str]:
    *words, typed = line.split(" ")
    return [choice.value for choice in choices(words, typed).of]


@pytest.mark.usefixtures("_project")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deploy-", ["deploy-all"]),
        ("nodes dr", ["drain"]),
        ("nodes --node web3 dr", ["drain"]),
        ("crawl ", ["books", "shoes"]),
        ("crawl s", ["shoes"]),
        ("crawl books s", []),
        ("crawl books --shar", ["--shards"]),
        ("crawl --node ", ["web1", "web2"]),
        ("crawl --node=web2", ["web2"]),
        ("crawl --placement le", ["least-loaded"]),
        ("deploy ", ["web1", "web2"]),
        ("deploy web1 ", ["web1", "web2"]),
        ("jobs --state k", ["killed"]),
        ("logs --level W", ["WARNING"]),
        ("api web1 listj", ["listjobs"]),
        ("completion ", ["bash", "zsh", "fish"]),
        ("frontier mo", ["move"]),
        ("consume ", ["books", "shoes"]),
        ("bogus ", []),
        ("crawl --shards ", []),
    ],
)
def test_what_is_offered(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.usefixtures("_project")
def test_frontiers_are_offered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDIST_STORE", raising=False)
    Path(".sdist").mkdir()
    with closing(open_store(Path(".sdist/store.db"))) as store:
        store.add_crawl(Crawl(id="shop", project="p", spider="", created=1.0, kind="frontier"))
        store.add_crawl(Crawl(id="easy-1", project="p", spider="easy", created=2.0))
    assert offered("frontier count ") == ["shop"]
    assert offered("consume books ") == ["shop"]
    assert offered("batches ") == ["easy-1", "shop"]


@pytest.mark.usefixtures("_project")
def test_files_are_offered_where_a_file_is_wanted() -> None:
    assert choices(["crawl", "books", "-o"], "it").files
    assert not choices(["crawl", "books", "--shards"], "").files


def test_without_a_project_there_is_nothing_to_offer_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert offered("crawl ") == []
    assert "crawl" in offered("cr")


@pytest.mark.usefixtures("_project")
def test_a_broken_configuration_is_no_error() -> None:
    Path("scrapy.cfg").write_text("[deploy:web1]\n", "utf-8")
    assert offered("deploy ") == []
