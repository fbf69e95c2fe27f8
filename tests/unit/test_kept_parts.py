"""A part that is not at home any more as its worker wrote it is never merged, copied or delivered in silence."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.nodemodel import model
from rig.scheduling import HOME, leasing, until
from rig.waiting import wait_for

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.config import PARTS
from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.items import part_fetch, publisher
from scrapyd_dist.items.delivery import Delivery, deliver
from scrapyd_dist.items.kept_parts import KeptParts
from scrapyd_dist.items.merging import ItemOutput
from scrapyd_dist.items.sink import open_sink
from scrapyd_dist.scheduling.scaling_policy import ScalingPolicy

TEXT = b'{"n": 1}\n{"n": 2}\n{"n": 3}\n'
#: what befalls a file of this text at home
DAMAGES = {
    "cut off": TEXT[:15],
    "a line less": TEXT[:18],
    "a line more": TEXT + b'{"n": 4}\n',
    "broken JSON": TEXT.replace(b'"n": 2}', b'"n": 2,'),
    "another value": TEXT.replace(b"2", b"7"),
    "empty": b"",
}


def accepted(folder: Path, batch: int, text: bytes = TEXT, **report: Any) -> Attempt:
    """An attempt whose part is at home, and is described as its worker wrote it."""
    (folder / PARTS).mkdir(exist_ok=True)
    name = f"c.b{batch}.a1.jl"
    (folder / PARTS / name).write_bytes(text)
    described = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    return Attempt(
        batch=batch, number=1, job=f"c.b{batch}.a1", node="n", url="http://n", state=AttemptState.ACCEPTED, part=name,
        report={"items": text.count(b"\n"), "part": described, **report},
    )  # fmt: skip


def delivered(
    folder: Path, *attempts: Attempt, own: tuple[Path, ...] = (), own_items: int = 0
) -> Delivery:
    outputs = [ItemOutput.named(folder / "items.jl")]
    return deliver(
        folder,
        own=own,
        own_items=own_items,
        attempts=attempts,
        misses=[],
        outputs=outputs,
        feed_url=None,
    )


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_left_out_and_told(tmp_path: Path, damage: str) -> None:
    bad, good = accepted(tmp_path, 1), accepted(tmp_path, 2, b'{"n": 9}\n')
    (tmp_path / PARTS / bad.part).write_bytes(DAMAGES[damage])
    made = delivered(tmp_path, bad, good)
    assert (made.items, made.lost) == (1, 3)
    assert (tmp_path / "items.jl").read_bytes() == b'{"n": 9}\n'
    (warning,) = made.warnings
    assert warning.startswith("3 items are lost: 1 part has changed in ")
    assert "`sdist items pull c`" in warning


def test_a_whole_part_with_fewer_items_than_its_worker_counted_is_told(tmp_path: Path) -> None:
    made = delivered(tmp_path, accepted(tmp_path, 1, items=5))
    assert (made.items, made.lost) == (3, 2)
    assert made.warnings == ("2 items are lost: 1 file has fewer of them than reported.",)


@pytest.mark.parametrize(
    "damage", [name for name in DAMAGES if name not in ("a line more", "another value")]
)
def test_lines_of_the_producers_own_items_that_are_no_items_are_left_out_and_told(
    tmp_path: Path, damage: str
) -> None:
    (tmp_path / PARTS).mkdir()
    own = tmp_path / PARTS / "own-0.jl"
    own.write_bytes(DAMAGES[damage])
    made = delivered(tmp_path, own=(own,), own_items=3)
    lines = (tmp_path / "items.jl").read_bytes().splitlines()
    assert all(line in TEXT.splitlines() for line in lines)
    assert made.lost == 3 - len(lines)
    assert made.warnings[0].startswith(
        f"{made.lost} items are lost: those of the crawl's own pages"
    )


@pytest.mark.parametrize("damage", [*DAMAGES, "gone"])
async def test_a_part_that_is_damaged_or_gone_at_home_is_fetched_again(
    tmp_path: Path, damage: str
) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2, 2)
        await until(o.workers, "its worker")
        o.workers()[0].begin().work_off()
        await o.over(whole=2)
        part = o.folder / "c.b1.a1.jl"
        if damage == "gone":
            part.unlink()
        else:
            part.write_bytes(DAMAGES[damage])
        await o.scheduler.make_parts_whole()
        o.whole(2)


async def test_a_part_that_its_node_has_no_more_stays_lost_and_its_neighbours_stay_whole(
    tmp_path: Path,
) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2, 2)
        await until(o.workers, "its worker")
        o.workers()[0].begin().work_off()
        await o.over(whole=2)
        (o.folder / "c.b1.a1.jl").unlink()
        (o.folder / "c.b2.a1.jl").unlink()
        del o.nodes[0].files[f"logs/_sdist/{HOME}/c.b1.a1.jl"]
        await o.scheduler.make_parts_whole()
        kept = KeptParts.found_in(o.folder, o.attempts())
        assert [one.batch for one in kept.whole] == [2]
        assert [one.batch for one in kept.gone] == [1]


async def test_a_batch_whose_part_is_nowhere_any_more_is_crawled_again_and_comes_once(
    tmp_path: Path,
) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2, 2)
        await until(o.workers, "its worker")
        worker = o.workers()[0].begin().work_off()
        await o.over(whole=2)
        (o.folder / "c.b1.a1.jl").write_bytes(TEXT[:-3])
        del o.nodes[0].files[f"logs/_sdist/{HOME}/c.b1.a1.jl"]
        lost = await o.scheduler.make_parts_whole()
        assert [one.job for one in lost] == [one.job for one in await o.scheduler.reopen(lost)]
        assert o.states() == ["failed", "done"]
        assert o.scheduler.state.counters.done == 1
        worker.work_off()
        await until(lambda: o.states() == ["done", "done"], "it is crawled again")
        assert await o.scheduler.make_parts_whole() == []
        states = [(one.batch, one.number, one.state.value) for one in o.attempts()]
        assert sorted(states) == [(1, 1, "failed"), (1, 2, "accepted"), (2, 1, "accepted")]


async def test_a_node_that_does_not_answer_has_not_lost_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_fetch, "RETRY_PAUSE", 0.01)
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2)
        await until(o.workers, "its worker")
        o.workers()[0].begin().work_off()
        await o.over(whole=1)
        (o.folder / "c.b1.a1.jl").unlink()
        o.nodes[0].down = ConnectionRefused
        assert await o.scheduler.make_parts_whole() == []
        o.nodes[0].down = None
        assert await o.scheduler.make_parts_whole() == []
        o.whole(1)


async def test_a_batch_that_cannot_be_opened_again_leaves_the_others_to_be_opened(
    tmp_path: Path,
) -> None:
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2, 2)
        await until(o.workers, "its worker")
        o.workers()[0].begin().work_off()
        await o.over(whole=2)
        first, second = sorted(o.attempts(), key=lambda attempt: attempt.batch)
        reopened = await o.scheduler.reopen([first, first, second])
        assert [attempt.batch for attempt in reopened] == [1, 2]


async def test_a_batch_of_which_a_request_was_retried_stays_as_it_is(tmp_path: Path) -> None:
    """Its page has come in another batch; it would come twice."""
    async with leasing(tmp_path, model("one"), scaling=ScalingPolicy(most=1), producer="me") as o:
        o.add(2)
        await until(o.workers, "its worker")
        o.workers()[0].begin().work_off()
        await o.over(whole=1)
        (attempt,) = o.attempts()
        retried = replace(attempt, report={**attempt.report, "missed": 1})
        assert await o.scheduler.reopen([retried]) == []
        assert o.states() == ["done"]


def test_a_damaged_part_is_delivered_when_it_was_fetched_again_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "PAUSE", 0.01)
    monkeypatch.setattr(publisher, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(publisher, "EVERY", 0.0)
    bad, good = accepted(tmp_path, 1), accepted(tmp_path, 2, b'{"n": 9}\n')
    part = tmp_path / PARTS / bad.part
    part.write_bytes(DAMAGES["another value"])
    said = list[str]()
    out = tmp_path / "out"
    made = publisher.PartPublisher(
        open_sink(str(out), tmp_path), home="c.0a1b2c3d", folder=tmp_path / PARTS
    )
    made.begin([bad, good])
    made.start(said.append)
    wait_for(
        lambda: (out / "c.0a1b2c3d.b2.a1.jl").exists() and said, 10, "the good part, and a word"
    )
    assert "is not what its worker wrote" in said[0]
    assert not (out / "c.0a1b2c3d.b1.a1.jl").exists()
    part.write_bytes(TEXT)
    assert made.finish([], 30) == ""
    made.close()
    assert (out / "c.0a1b2c3d.b1.a1.jl").read_bytes() == TEXT
