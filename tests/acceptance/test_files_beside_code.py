"""A project that reads files beside its code crawls on nodes as at home, in each way in which batches travel."""

import sqlite3
from pathlib import Path

import pytest
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartSite
from rig.nodes import ScrapydNode
from rig.projects import Project

pytestmark = pytest.mark.black_box

SPIDER = """
from pathlib import Path

import scrapy

HERE = Path(__file__).parent
CITIES = dict(line.split(",") for line in open(HERE / "cities.csv").read().split())


class Files(scrapy.Spider):
    name = "files"

    async def start(self):
        yield scrapy.Request(self.settings["START_URL"])

    def parse(self, response):
        for link in response.css('a[itemprop="url"]::attr(href)').getall():
            yield response.follow(link, self.parse_article)

    def parse_article(self, response):
        yield {"url": response.url, "city": CITIES["NY"], "rate": self.settings["RATE"]}
"""
SETTINGS_END = """
from pathlib import Path
RATE = Path(__file__).with_name(".rates").read_text()
"""
PIPELINE = """
import sqlite3
from pathlib import Path

HERE = Path(__file__).parent


class Enrich:
    def __init__(self):
        (template,) = (HERE / "templates").iterdir()
        self.template = template.read_text()
        self.database = sqlite3.connect(f"file:{HERE / 'shop.db'}?mode=ro", uri=True)

    def process_item(self, item):
        (country,) = self.database.execute("SELECT country FROM cities WHERE name = ?", (item["city"],)).fetchone()
        return {**item, "text": self.template.format(country=country)}
"""


def add_files(it: Project) -> None:
    it.write("small/spiders/cities.csv", "NY,New_York\n")
    it.write("small/.rates", "seven")
    it.write("small/templates/text.txt", "in {country}")
    it.write("small/pipelines.py", PIPELINE)
    settings = it.package / "settings.py"
    settings.write_text(settings.read_text("utf-8") + SETTINGS_END, "utf-8")
    database = sqlite3.connect(Path(it.package, "shop.db"))
    database.execute("CREATE TABLE cities (name, country)")
    database.execute("INSERT INTO cities VALUES ('New_York', 'USA')")
    database.commit()
    database.close()


@pytest.mark.promise("Code on a node finds the files beside it")
@pytest.mark.parametrize("way", ["--pull", pytest.param("--push", marks=pytest.mark.full)])
def test_settings_spider_pipeline_templates_and_a_database(
    project: MakeProject, pair: list[ScrapydNode], site: StartSite, run_cli: RunCommand, way: str
) -> None:
    the_site = site(30)
    settings = {
        **QUICK,
        "START_URL": the_site.start_url,
        "ITEM_PIPELINES": {"small.pipelines.Enrich": 100},
    }
    it = project(nodes=pair, spiders={"files": SPIDER}, settings=settings)
    add_files(it)
    run_cli(
        it,
        "crawl",
        "files",
        "--callback",
        "parse_article",
        way,
        "-o",
        "items.jl",
        timeout=120,
        code=0,
    )
    items = list(it.items("items.jl"))
    assert len({item.pop("url") for item in items}) == len(items) == 30
    assert all(item == {"city": "New_York", "rate": "seven", "text": "in USA"} for item in items)
