"""What a press of TAB offers: from the code and from this machine."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import Result

from scrapyd_dist.batches import Crawl
from scrapyd_dist.store import open_store

Run = Callable[..., Result]
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
def _project(root: Path) -> None:
    (root / "shop" / "spiders").mkdir(parents=True)
    (root / "scrapy.cfg").write_text(CFG, "utf-8")
    for name, spider in (
        ("spiders/one", "books"),
        ("spiders/two", "shoes"),
        ("other", "no_spider"),
    ):
        (root / "shop" / f"{name}.py").write_text(SPIDER.format(spider), "utf-8")


@pytest.fixture
def offered(sdist: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """What bash is told for a line that ends where TAB is pressed."""

    def ask(line: str) -> list[str]:
        words = ["sdist", *line.split(" ")]
        monkeypatch.setenv("_SDIST_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        _, out, err = sdist().expect(0)
        assert err == ""
        return out.split()

    return ask


@pytest.mark.usefixtures("_project")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dep", ["deploy"]),
        ("nodes dr", ["drain"]),
        ("nodes --node ", ["web1", "web2"]),
        ("crawl ", ["books", "shoes"]),
        ("crawl s", ["shoes"]),
        ("crawl books s", []),
        ("crawl books --shar", ["--shards"]),
        ("crawl --node ", ["web1", "web2"]),
        ("crawl --node=web2", ["web2"]),
        ("deploy ", ["web1", "web2"]),
        ("deploy web1 ", ["web1", "web2"]),
        ("jobs --state k", ["killed"]),
        ("logs --level W", ["WARNING"]),
        ("nodes api web1 listj", ["listjobs"]),
        ("api web1 listj", ["listjobs"]),
        ("sto", ["stop"]),
        ("dra", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("frontier mo", ["move"]),
        ("frontier consume ", ["books", "shoes"]),
        ("crawl --shards ", []),
    ],
)
def test_what_is_offered(
    offered: Callable[[str], list[str]], line: str, expected: list[str]
) -> None:
    assert offered(line) == expected


@pytest.mark.usefixtures("_project")
def test_frontiers_are_offered_by_name(offered: Callable[[str], list[str]]) -> None:
    Path(".sdist").mkdir()
    with closing(open_store(Path(".sdist/store.db"))) as store:
        store.add_crawl(Crawl(id="shop", project="p", spider="", created=1.0, kind="frontier"))
        store.add_crawl(Crawl(id="easy-1", project="p", spider="easy", created=2.0))
    assert offered("frontier count ") == ["shop"]
    assert offered("frontier consume books ") == ["shop"]
    assert offered("crawls show ") == ["easy-1", "shop"]


def test_without_a_project_or_with_a_broken_one_nothing_is_offered_and_it_is_no_error(
    offered: Callable[[str], list[str]], root: Path
) -> None:
    (root / "scrapy.cfg").unlink()
    assert offered("crawl ") == []
    assert "crawl" in offered("cr")
    Path("scrapy.cfg").write_text("[deploy:web1]\n", "utf-8")
    assert offered("deploy ") == []
