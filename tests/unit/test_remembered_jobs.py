"""Jobs that the nodes have forgotten, as the store remembers them: under the project and the spider that they ran."""

import time
from contextlib import closing
from pathlib import Path

from scrapyd_dist.cli.context import Context
from scrapyd_dist.cli.jobs.job_list import remembered

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import state_dir
from scrapyd_dist.frontier.backlog import Lessee, NewBatch
from scrapyd_dist.nodes import Node
from scrapyd_dist.store import open_store


def test_the_log_of_a_worker_is_that_of_the_project_and_spider_that_it_worked_for(tmp_path: Path) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    node = Node.parse("http://web1:6800/", name="web1")
    with closing(open_store(state_dir(tmp_path) / "store.db")) as store:
        store.add_crawl(Crawl(id="c", project="shop", spider="links", created=1.0))
        slots = ("0", "@login", "@bank:login")
        payload = {"DISTRIBUTED_START_URLS": "[]"}
        store.add_batches("c", [NewBatch(payload=payload, size=1, slot=slot) for slot in slots], now=time.time())
        for number, slot in enumerate(slots, 1):
            lessee = Lessee(job=f"c.w{number}.a1", node=node.name, url=node.url)
            store.lease_next("c", lessee, slots=[slot], seconds=60.0, limit=1, now=time.time())
    with closing(Context(tmp_path)) as context:
        places = [row.place for row in remembered(context, ["c"], [node])["c"]]
    assert sorted(place.log for place in places) == [
        "logs/bank/login/c.w3.a1.log", "logs/shop/links/c.w1.a1.log", "logs/shop/login/c.w2.a1.log",
    ]  # fmt: skip
