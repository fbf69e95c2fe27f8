"""A worker's part and report: whole under their final names, and never half of one to be seen."""

import hashlib
import json
import os
import time
from pathlib import Path, PurePosixPath
from threading import Event, Thread
from typing import Any

import pytest
from rig.waiting import wait_for
from scrapyd_dist.middlewares.producer.discovery import OwnItems
from scrapyd_dist.middlewares.worker import files as part_module
from scrapyd_dist.middlewares.worker.files import PartFile, ReportFile, crawl_folder, remove_old

from scrapyd_dist.joblogs.worker_report import FOLDER, part_path

ITEMS: list[dict[str, Any]] = [{"a": "ü\u2028", "b": [1, None]}, {"a": "\n"}, {}]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_both_ends_mean_the_same_folder(tmp_path: Path) -> None:
    folder = crawl_folder(str(tmp_path / "logs/p/s/c.b1.a1.log"), "c.0")
    assert folder == tmp_path / "logs/_sdist/c.0"
    assert str(folder / "j.jl").endswith(part_path("c.0", "j"))
    assert FOLDER.endswith(part_module.FOLDER)
    assert [crawl_folder(none, "c") for none in (None, "")] == [None, None]


def test_a_part_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "new", "j")
    for item in ITEMS:
        part.add(item)
    part.flush()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["j.jl.part"]
    assert lines(tmp_path / "new/j.jl.part") == ITEMS
    told = part.close()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["j.jl"]
    content = (tmp_path / "new/j.jl").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert told == {
        "file": "j.jl",
        "items": 3,
        "bytes": len(content),
        "sha256": digest,
        "fields": [],
        "as_text": [],
    }
    assert lines(tmp_path / "new/j.jl") == ITEMS


def test_an_attempt_that_begins_again_begins_with_nothing(tmp_path: Path) -> None:
    first = PartFile(tmp_path, "j")
    first.add({"a": 1})
    first.flush()
    second = PartFile(tmp_path, "j")
    second.add({"a": 2})
    second.close()
    first._file.close()
    assert lines(tmp_path / "j.jl") == [{"a": 2}]


@pytest.mark.parametrize("bad", [{"a": {(1, 2): 3}}, {1: "a"}])
def test_an_item_that_cannot_be_written_leaves_no_trace(
    tmp_path: Path, bad: dict[Any, Any]
) -> None:
    part = PartFile(tmp_path, "j")
    part.add({"a": 1})
    with pytest.raises((TypeError, ValueError)):
        part.add(bad)
    part.add({"a": 2})
    assert part.close()["items"] == 2
    assert lines(tmp_path / "j.jl") == [{"a": 1}, {"a": 2}]


class Silent:
    def __str__(self) -> str:
        raise ValueError("it has no text")


@pytest.mark.parametrize(
    ("value", "text", "name"),
    [
        (PurePosixPath("a/b"), "a/b", "PurePosixPath"),
        ([{"b": b"caf\xc3\xa9 \xff"}], [{"b": "caf\u00e9 \\xff"}], "bytes"),
        (1 + 2j, "(1+2j)", "complex"),
    ],
)
def test_a_value_that_json_lacks_becomes_its_text_and_its_type_is_told(
    tmp_path: Path, value: object, text: object, name: str
) -> None:
    part = PartFile(tmp_path, "j")
    part.add({"a": value})
    assert part.close()["as_text"] == [name]
    assert lines(tmp_path / "j.jl") == [{"a": text}]


def test_a_value_without_a_text_is_written_by_its_type(tmp_path: Path) -> None:
    part = PartFile(tmp_path, "j")
    part.add({"a": Silent()})
    assert part.close()["as_text"] == ["Silent"]
    (line,) = lines(tmp_path / "j.jl")
    assert "Silent object at" in line["a"]


def test_with_types_only_what_cannot_come_back_is_told(tmp_path: Path) -> None:
    part = PartFile(tmp_path, "j", typed=True)
    part.add({"a": b"x", "b": {1, 2}})
    part.add({"a": PurePosixPath("a/b"), "b": b"x"})
    assert part.close()["as_text"] == ["PurePosixPath"]


def test_a_report_is_renewed_by_itself_also_when_the_disk_was_full_for_a_moment_and_is_always_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(part_module, "TICK", 0.001)
    full, looks, seen = Event(), iter(range(10**9)), set()

    def look() -> dict[str, Any]:
        if full.is_set():
            raise OSError(28, "no space")
        return {"look": next(looks), "pad": "x" * 50_000}

    def renewed() -> bool:
        seen.add(json.loads((tmp_path / "j.json").read_text())["look"])
        return len(seen) > 5

    report = ReportFile(tmp_path, "j", look)
    full.set()
    wait_for(lambda: "no space" in caplog.text, what="the warning")
    full.clear()
    wait_for(renewed, what="renewals")
    report.finish({"end": True})
    assert json.loads((tmp_path / "j.json").read_text()) == {"end": True}
    assert next(looks) == next(looks) - 1  # no thread looks any more
    assert [path.name for path in tmp_path.iterdir()] == ["j.json"]


def test_old_folders_beside_its_own_go_and_others_stay(tmp_path: Path) -> None:
    ours = tmp_path / "logs/_sdist"
    for name, age in (("mine", 99), ("home", 0), ("young", 1), ("old", 20), ("../project", 99)):
        folder = ours / name
        folder.mkdir(parents=True)
        (folder / "j.jl").touch()
        moment = time.time() - age * 86_400
        os.utime(folder, (moment, moment))
    (ours / "file").touch()
    remove_old(ours / "mine", ["home", "../project", "project", "/", "..", ""], keep_days=14)
    assert sorted(path.name for path in ours.iterdir()) == ["file", "mine", "young"]
    assert (tmp_path / "logs/project").is_dir()
    remove_old(tmp_path / "nowhere/mine", ["x"], keep_days=14)  # not made yet: nothing happens


# part 0: the producer's own items


def test_own_items_are_kept_by_shard_and_come_in_the_order_of_shards(tmp_path: Path) -> None:
    own = OwnItems(tmp_path / "parts")
    for shard in (10, 2, 10):
        own.add({"shard": shard}, shard)
    own.flush()
    assert [lines(path) for path in own.parts()] == [[{"shard": 2}], [{"shard": 10}] * 2]
    own.close()
    assert own.count == 3
    assert OwnItems(tmp_path / "none").parts() == []


def test_a_shard_that_is_walked_again_replaces_only_its_own_items(tmp_path: Path) -> None:
    for run, shards in ((1, (0, 1)), (2, (1,))):
        own = OwnItems(tmp_path)
        for shard in shards:
            own.add({"run": run}, shard)
        own.close()
    assert [lines(path) for path in own.parts()] == [[{"run": 1}], [{"run": 2}]]


def test_a_part_is_written_while_its_report_looks(tmp_path: Path) -> None:
    part = PartFile(tmp_path, "j")

    def look() -> None:
        for _ in range(2000):
            part.flush()

    thread = Thread(target=look)
    thread.start()
    for number in range(2000):
        part.add({"n": number})
    thread.join()
    told = part.close()
    part.flush()  # a last look after the end does no harm
    assert hashlib.sha256((tmp_path / "j.jl").read_bytes()).hexdigest() == told["sha256"]
