"""`sdist items` on a store and files made here: what counts, what is checked, and what is said about the rest."""

import csv
import hashlib
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapyd_dist.cli.jobs import item_commands, item_pull
from scrapyd_dist.cli.options import as_typer_command

from scrapyd_dist.batches import Attempt, Crawl, CrawlState, job_id
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.crawl_files import crawl_folder
from scrapyd_dist.frontier.backlog import NewBatch
from scrapyd_dist.jobs.item_puller import file_name
from scrapyd_dist.keys import state_key
from scrapyd_dist.store import Store, open_store

Captured = pytest.CaptureFixture[str]
CRAWL = "shop-20260102T030405Z"
URL = "http://web1:6800"


class Shop:
    """A project with one crawl: the producer's own items, and batches of attempts."""

    def __init__(self, root: Path) -> None:
        self.root, self.parts = root, crawl_folder(root, CRAWL) / "parts"
        self.parts.mkdir(parents=True)
        with self.opened() as store:
            store.add_crawl(
                Crawl(
                    id=CRAWL, project="shop", spider="shop", created=1.0, state=CrawlState.FINDING
                )
            )
        self._batches = 0

    def own(self, shard: int, text: str) -> None:
        (self.parts / f"own-{shard}.jl").write_text(text)

    def opened(self) -> closing[Store]:
        return closing(
            open_store(self.root / ".sdist" / "store.db", key=state_key(self.root / ".sdist"))
        )

    def batch(
        self, text: str | None, *, items: int | None = None, feeds: list[str] | None = None
    ) -> str:
        """A batch with an accepted attempt whose part has this text; None: it is out on a node."""
        self._batches += 1
        job = job_id(CRAWL, self._batches, 1)
        with self.opened() as store:
            batch = store.seal(CRAWL, NewBatch(payload={"x": "y"}, size=1), [], {"sealed": 1})
            store.open_attempt(
                CRAWL, Attempt(batch=batch.number, number=1, job=job, node="web1", url=URL)
            )
            store.sent(CRAWL, batch.number, 1)
            if text is not None:
                (self.parts / f"{job}.jl").write_text(text)
                described = {
                    "bytes": len(text),
                    "sha256": hashlib.sha256(text.encode()).hexdigest(),
                }
                counts = {
                    "items": text.count("\n") if items is None else items,
                    "feeds": feeds or [],
                }
                report = {**counts, "part": described}
                part = "" if feeds else f"{job}.jl"
                store.accept(
                    CRAWL,
                    batch.number,
                    1,
                    report=report,
                    part=part,
                    misses=[],
                    now=float(self._batches),
                )
        return job

    def change(self, **fields: Any) -> None:
        with self.opened() as store:
            store.update_crawl(CRAWL, **fields)


@pytest.fixture
def shop(root: Path) -> Shop:
    return Shop(root)


def merged(*names: str, out: str = "all.jl", key: list[str] | None = None) -> int | None:
    return as_typer_command(item_commands.merge)(
        name=list(names), output=[out], overwrite=None, key=key, as_json=True
    )


def pulled(*, as_json: bool) -> int | None:
    return as_typer_command(item_pull.pull)(
        name=[CRAWL], folder=Path("items"), node=None, timeout=1, as_json=as_json
    )


def rows(name: str = "all.jl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_a_crawls_items_are_its_own_and_those_of_accepted_attempts(
    shop: Shop, capsys: Captured
) -> None:
    shop.own(0, '{"n": 0}\n{"n": 1}\n')
    shop.own(10, '{"n": 3}\n')
    shop.own(2, '{"n": 2}\n{"n": 99')
    shop.batch('{"n": 4}\n{"n": 5}\n')
    shop.batch(None)
    (shop.parts / "stray.jl").write_text('{"n": "no part of the crawl"}\n')
    code = merged(CRAWL)
    said = capsys.readouterr()
    assert (code, [row["n"] for row in rows()]) == (0, [0, 1, 2, 3, 4, 5])
    assert "is not finished (finding): these are the items of 1 batch so far" in said.err
    assert "own-2.jl: a torn last line of 8 bytes was left out" in said.err
    document = json.loads(said.out)
    assert (document["schema"], document["items"], document["files"], document["problems"]) == (
        1,
        6,
        4,
        [],
    )
    assert document["torn"] == [str(shop.parts / "own-2.jl")]


def test_a_part_with_another_number_of_items_than_reported_is_named(
    shop: Shop, capsys: Captured
) -> None:
    good, bad = shop.batch('{"n": 1}\n'), shop.batch('{"n": 2}\n', items=3)
    gone = shop.batch('{"n": 3}\n')
    (shop.parts / f"{gone}.jl").unlink()
    assert merged(CRAWL) == 3
    assert [row["n"] for row in rows()] == [1, 2]
    said = capsys.readouterr()
    assert f"{bad}: its worker reported 3 items, and its part has 1" in said.err
    assert f"{gone}: its part {shop.parts / gone}.jl is not there any more (1 item)" in said.err
    assert good not in said.err
    assert len(json.loads(said.out)["problems"]) == 2


def test_a_part_that_is_not_what_its_worker_wrote_is_left_out_and_named(
    shop: Shop, capsys: Captured
) -> None:
    shop.own(0, '{"n": 0}\n{"n": 1,\n')
    bad = shop.batch('{"n": 2}\n')
    shop.batch('{"n": 3}\n')
    (shop.parts / f"{bad}.jl").write_text('{"n": 7}\n')
    assert merged(CRAWL) == 3
    assert [row["n"] for row in rows()] == [0, 3]
    said = capsys.readouterr().err
    assert (
        f"{bad}: its part {shop.parts / bad}.jl is not what its worker wrote, and was left out (1 item)"
        in said
    )
    assert "own-0.jl: 1 line is no item and was left out" in said


def test_a_finished_crawl_has_as_many_items_as_it_ended_with(shop: Shop, capsys: Captured) -> None:
    shop.batch('{"n": 1}\n{"n": 1}\n')
    shop.own(0, '{"n": 2}\n')
    shop.change(state=CrawlState.FINISHED, summary={"items": 3}, exit_code=0)
    assert merged(CRAWL, key=["n"]) == 0  # duplicates that were asked to go are not missing
    assert len(rows()) == 2
    shop.change(summary={"items": 4}, exit_code=3)
    assert merged(CRAWL, out="again.jl") == 3
    said = capsys.readouterr().err
    assert f"{CRAWL}: it ended with 4 items, and its files have 3" in said
    assert f"{CRAWL} ended with exit code 3; `sdist status {CRAWL}` says what it lacks." in said


def test_files_are_looked_into_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)  # which is no project
    Path("a.jl").write_text('{"id": 1, "tags": ["x", "y"]}\nnonsense\n[]\n{"id": 2}\n')
    Path("b.jl.part").write_text('{"id": 1, "more": {"a": 1}}\n{"id": 3')
    assert merged("a.jl", "b.jl.part", out="all.csv", key=["id"]) == 3
    with Path("all.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"id": "1", "tags": "x,y"}, {"id": "2", "tags": ""}]
    said = capsys.readouterr()
    assert "a.jl: 2 lines are no items and were left out, the first is line 2" in said.err
    assert json.loads(said.out)["duplicates"] == 1


def test_half_of_a_surrogate_pair_stays_in_json_and_is_told_of_csv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    line = '{"id": "\\ud83d"}'
    Path("a.jl").write_text(f"{line}\n")
    assert merged("a.jl", out="all.jl") == 0
    assert Path("all.jl").read_text("utf-8") == f"{line}\n"
    assert merged("a.jl", out="all.csv") == 3
    assert "all.csv: '\\ud83d' is half of" in capsys.readouterr().err


def test_the_read_back_feeds_of_a_crawl_are_its_items(shop: Shop, tmp_path: Path) -> None:
    feeds = tmp_path / "feeds"
    feeds.mkdir()
    (feeds / "1.jl").write_text('{"n": 1}\n')
    shop.batch("", feeds=[f"file://{feeds}/1.jl"])
    shop.change(
        options={"settings": {"DISTRIBUTED_TARGET_FEED_URL": f"file://{feeds}/%(batch)s.jl"}}
    )
    assert merged(CRAWL) == 0
    assert rows() == [{"n": 1}]
    (feeds / "1.jl").unlink()
    assert merged(CRAWL, out="again.jl") == 3


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"name": ["x"]}, NothingMatched, "neither a file 'x' nor a crawl"),
        ({"name": [CRAWL]}, NothingMatched, "no items have come home yet"),
        ({"name": [CRAWL], "output": None}, ConfigError, "-o items.jl"),
        ({"name": [CRAWL], "output": ["all.xml"]}, ConfigError, "merged into"),
        (
            {"name": [CRAWL], "output": ["scrapy.cfg:json"]},
            ConfigError,
            "nothing can be added to a JSON list",
        ),
        ({"name": [".sdist"]}, ConfigError, "is a folder"),
        ({"name": ["scrapy.cfg"]}, ConfigError, "no file of JSON lines"),
    ],
)
def test_what_makes_no_sense_is_one_paragraph(
    shop: Shop, arguments: dict[str, Any], kind: type[Exception], said: str
) -> None:
    asked: dict[str, Any] = {
        "output": ["all.jl"],
        "overwrite": None,
        "key": None,
        "as_json": False,
        **arguments,
    }
    with pytest.raises(kind, match=said):
        as_typer_command(item_commands.merge)(**asked)
    assert not Path("all.jl").exists()


def test_a_pull_of_what_is_home_needs_no_node(shop: Shop, capsys: Captured) -> None:
    shop.own(0, '{"n": 0}\n{"n"')
    job = shop.batch('{"n": 1}\n')
    for states in (["whole", "whole"], ["whole", "present"]):
        code = pulled(as_json=True)
        document = json.loads(capsys.readouterr().out)
        assert (code, document["items"], document["schema"]) == (0, 2, 1)
        assert [row["state"] for row in document["files"]] == states
    assert Path(f"items/{CRAWL}/{job}.jl").read_text() == '{"n": 1}\n'
    assert Path(f"items/{CRAWL}/own-0.jl").read_text() == '{"n": 0}\n'
    out = shop.batch(None)
    assert pulled(as_json=False) == 3
    said = capsys.readouterr()
    assert f"{out}  web1" in said.out
    assert "its node is none of those that were chosen, or of scrapy.cfg" in said.out


def test_the_newest_items_come_last(shop: Shop, capsys: Captured) -> None:
    def tailed(count: int, **more: Any) -> list[Any]:
        asked = {
            "crawl": None,
            "follow": False,
            "items": count,
            "with_node": False,
            "timeout": 1,
            **more,
        }
        assert as_typer_command(item_commands.tail)(**asked) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert tailed(5) == []
    first, second = shop.batch('{"n": 1}\n{"n": 2}\n'), shop.batch('{"n": 3}\n{"n": 4}\n')
    assert [item["n"] for item in tailed(3)] == [2, 3, 4]
    shop.own(0, '{"n": 0}\n')
    assert [item["n"] for item in tailed(3)] == [3, 4, 0]
    assert tailed(0) == []
    assert [(item["_node"], item["_job"]) for item in tailed(4, with_node=True)] == [
        ("web1", first), ("web1", second), ("web1", second), ("producer", "own-0"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("c.b1.a1", "c.b1.a1"),
        ("../../etc/x", "..%2F..%2Fetc%2Fx"),
        ("..", "%2E%2E"),
        (".", "%2E"),
        ("a b", "a b"),
    ],
)
def test_a_foreign_name_never_leads_out_of_the_folder(text: str, name: str) -> None:
    assert file_name(text) == name
