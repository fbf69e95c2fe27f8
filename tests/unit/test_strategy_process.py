"""One process of a strategy in a thread: what it leaves in the list of the frontier's producers."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig.strategy_memory import fingerprint_of
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.strategy_process import SeedsStopped, StrategyRunner

from scrapyd_dist.batches import Crawl
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.strategy import BasicStrategy, States
from scrapyd_dist.strategy.terms import StrategyTerms

KEY = b"0" * 43 + b"="


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "store.sqlite")


@pytest.fixture
def store(where: str) -> Iterator[Store]:
    """A store with the frontier of a strategy that has ended; another process has not signed off yet."""
    opened = open_store(where, key=KEY)
    opened.add_crawl(Crawl(id="news", project="p", spider="page", created=1.0, kind="frontier"))
    opened.register_producer("news", "strategy@elsewhere.1", 60.0)
    yield opened
    opened.close()


@pytest.fixture
def runner(where: str) -> Callable[..., StrategyRunner]:
    def make(**options: object) -> StrategyRunner:
        return StrategyRunner(
            frontier="news", terms=StrategyTerms(path="shop:News", spider="page"), strategy=BasicStrategy(),
            fingerprint=fingerprint_of, where=where, key=KEY, size=10, **options,  # type: ignore[arg-type]  # the rig has the verbs that are used
        )  # fmt: skip

    return make


def test_seeds_are_added_and_the_rest_is_left_to_others(
    store: Store, runner: Callable[..., StrategyRunner]
) -> None:
    store.end_strategy("news")
    lines = [f"http://site{number}.example/" for number in range(20)]
    adds = runner(seeds=lambda: iter(lines), source="more.txt")
    adds.begin(store)
    assert store.backlog("news").producers == (
        f"seeds more.txt@{adds.process}", "strategy@elsewhere.1", f"strategy@{adds.process}",
    )  # fmt: skip
    assert adds.read() == 20
    assert store.backlog("news").producers == ("strategy@elsewhere.1",)
    backlog = store.strategy_backlog("news")
    assert (backlog.ended, backlog.states, backlog.processes) == (False, {States.QUEUED: 20}, [])


def test_seeds_that_were_not_read_to_their_end_are_still_owed(
    store: Store, runner: Callable[..., StrategyRunner]
) -> None:
    adds = runner(seeds=lambda: iter(["http://site.example/"]), source="more.txt")
    adds.begin(store)
    adds.stop.set()
    with pytest.raises(SeedsStopped):
        adds.read()
    assert store.backlog("news").producers == (
        f"seeds more.txt@{adds.process}",
        "strategy@elsewhere.1",
    )


def test_a_process_that_has_joined_signs_itself_off_alone(
    store: Store, runner: Callable[..., StrategyRunner]
) -> None:
    store.end_strategy("news")
    joined = runner()
    joined.begin(store)
    joined.run()
    assert joined.over
    assert store.backlog("news").producers == ("strategy@elsewhere.1",)


@pytest.mark.parametrize("lost", [False, True])
def test_the_first_process_waits_until_the_others_have_signed_off_or_are_lost(
    store: Store, runner: Callable[..., StrategyRunner], lost: bool
) -> None:
    class Pauses(threading.Event):
        left = 3

        def wait(self, timeout: float | None = None) -> bool:
            self.left -= 1
            if not self.left:
                if lost:
                    store.register_producer("news", "strategy@elsewhere.1", -1.0)
                else:
                    store.sign_off("news", "strategy@elsewhere.1")
            return self.left < -10

    first = runner(seeds=lambda: None, stop=(pauses := Pauses()))
    first.begin(store)
    store.end_strategy("news")
    first.run()
    assert pauses.left == 0
    backlog = store.backlog("news")
    assert (backlog.producers, backlog.lost) == ((), ())


@pytest.mark.parametrize("broken", ["spiders", "stats"])
def test_code_of_the_project_that_cannot_be_imported_is_named(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"shop_{broken}"
    (tmp_path / package / "spiders").mkdir(parents=True)
    (tmp_path / package / "stats.py").write_text("import no_such_library\n")
    first = "import no_such_library\n" if broken == "spiders" else ""
    source = f"{first}import scrapy\nclass Page(scrapy.Spider):\n    name = 'page'\n"
    (tmp_path / package / "spiders/page.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings({"SPIDER_MODULES": [f"{package}.spiders"]})
    if broken == "stats":
        settings.set("STATS_CLASS", f"{package}.stats.Stats")
    terms = StrategyTerms(path="scrapyd_dist.strategy:BasicStrategy", spider="page")
    with pytest.raises(
        ConfigError, match=r"cannot be loaded: .*no_such_library.*Nothing was started"
    ):
        StrategyRunner.make(settings, "news", terms)
