"""Made-up crawls for the tests of the report: as many nodes and batches as wanted, with their samples and reports."""

import random
from typing import Any

from scrapyd_dist.batches import (
    Attempt,
    AttemptState,
    Batch,
    BatchState,
    Crawl,
    CrawlState,
    Miss,
    job_id,
)
from scrapyd_dist.report.facts import Facts

BEGUN = 1_770_000_000.0
VERSION = "1767323045-001250999896491"


def made_up(
    *, nodes: int = 2, batches: int = 3, seconds: float = 120.0, size: int = 40, shards: int = 8, runs: int = 5,
    lives: bool = False,
) -> Facts:  # fmt: skip
    """A crawl that went well but for a few failed jobs; the same for the same arguments."""
    dice = random.Random(nodes * 1_000_003 + batches)
    attempts = _attempts(dice, [f"web{n + 1}" for n in range(nodes)], batches, seconds, size)
    samples = _samples(attempts, seconds, size * batches, shards)
    now = BEGUN + seconds * (0.6 if lives else 1.0)
    if lives:
        attempts = [attempt for attempt in attempts if attempt.sent_at < now]
        samples = [sample for sample in samples if sample[0] <= now]
    state = CrawlState.FINDING if lives else CrawlState.FINISHED
    crawl = Crawl(
        id="shop-20260102T030405Z", project="shop", spider="shop", state=state, created=BEGUN, version=VERSION,
        ended=None if lives else now, exit_code=None if lives else 0, summary=_summary(samples[-1][1], nodes, batches),
    )  # fmt: skip
    before = [
        Crawl(id=f"shop-{n}", project="shop", spider="shop", state=CrawlState.FINISHED, created=BEGUN - 1000 + n,
              summary={"items": int(size * batches * dice.uniform(0.85, 1.1))})
        for n in range(runs)
    ]  # fmt: skip
    rows = [
        Batch(number=n, size=size, state=BatchState.DONE, attempts=1) for n in range(1, batches + 1)
    ]
    return Facts(
        crawl=crawl, now=now, lives=lives, batches=rows, attempts=attempts, samples=samples,
        misses=[Miss(url=f"http://shop/{n}", kind="gone", reason="HTTP 404", batch=1) for n in range(7)],
        runs=[*before, crawl],
    )  # fmt: skip


def _attempts(
    dice: random.Random, names: list[str], batches: int, seconds: float, size: int
) -> list[Attempt]:
    """As a fleet would take them: each job on the slot that is free first, of four on each node."""
    free = {(name, slot): 0.02 * seconds + dice.random() for name in names for slot in range(4)}
    usual = 0.85 * seconds * len(free) / max(batches, len(free))
    attempts: list[Attempt] = []
    waiting = [(number, 1) for number in range(1, batches + 1)]
    while waiting:
        batch, number = waiting.pop(0)
        place = min(free, key=free.__getitem__)
        begin, ran = (
            free[place] + 0.01 * usual,
            usual * dice.uniform(0.6, 1.1) * (1 + 0.5 * (place[0] == names[-1])),
        )
        failed = number == 1 and dice.random() < 0.04
        free[place] = begin + ran
        if failed:
            waiting.append((batch, 2))
        attempts.append(
            _attempt(dice, place[0], batch, number, BEGUN + begin, ran, size, failed=failed)
        )
    return attempts


def _attempt(
    dice: random.Random,
    node: str,
    batch: int,
    number: int,
    begin: float,
    ran: float,
    size: int,
    *,
    failed: bool,
) -> Attempt:
    report: dict[str, Any] = {}
    if not failed:
        bad, again = dice.randrange(0, 1 + size // 12), dice.randrange(0, 1 + size // 20)
        report = {
            "done": size, "missed": 0, "pages": size, "items": size, "started": begin + 0.4, "updated": begin + ran,
            "code": {"version": "0.3.0", "file": "x", "egg": VERSION},
            "stats": {
                "downloader/request_count": size + again, "downloader/response_status_count/200": size - bad,
                "downloader/response_status_count/404": bad, "downloader/response_status_count/503": again,
                "downloader/response_status_count/429": again if node.endswith("2") else 0, "retry/count": again,
                "downloader/exception_count": again // 2,
            },
        }  # fmt: skip
    return Attempt(
        batch=batch, number=number, job=job_id("shop", batch, number), node=node, url=f"http://{node}:6800",
        state=AttemptState.FAILED if failed else AttemptState.ACCEPTED, sent_at=begin, ended_at=begin + ran + 0.3,
        reason="its worker died: no report for 60 s" if failed else "", report=report,
    )  # fmt: skip


def _samples(
    attempts: list[Attempt], seconds: float, total: int, shards: int
) -> list[tuple[float, dict[str, Any]]]:
    samples = []
    count = min(400, max(3, int(seconds)))
    for i in range(count + 1):
        at = BEGUN + seconds * i / count
        share = min(1.0, 1.8 * i / count)
        nodes: dict[str, list[Any]] = {}
        done = 0.0
        for attempt in attempts:
            row = nodes.setdefault(attempt.node, [0, 0, 0, "up"])
            if not attempt.report or at <= attempt.sent_at:
                continue
            part = min(1.0, (at - attempt.sent_at) / ((attempt.ended_at or at) - attempt.sent_at))
            row[0] += attempt.report["pages"] * part
            done += attempt.report["done"] * part
        found = int(total * share)
        samples.append((at, {
            "state": "finding", "found": found, "sealed": found, "sent": int(found * 0.95) if i < count else found,
            "done": int(done) if i < count else total, "pages": int(done), "items": int(done),
            "index": [int(50 * share), 50], "nodes": nodes,
            "shards": {
                str(n): [i, int(found / (shards + n)), BEGUN, at] for n in range(shards) if i < count // (1 + n % 3)
            },
        }))  # fmt: skip
    return samples


def _summary(last: dict[str, Any], nodes: int, batches: int) -> dict[str, Any]:
    done = last["done"]
    return {
        "schema": 1, "items": done, "pages": done + 50, "gone_urls": 7, "failed_urls": 0, "dead_urls": 0, "refused": 0,
        "requests": {"total": last["sealed"], "done": done, "sent": last["sent"]},
        "index": {"pages": 50, "total": 50, "failed": 0},
        "batches": {"total": batches, "done": batches, "sent": batches, "failed": 0, "dead": 0}, "index_failed": 0,
        "nodes": [{"name": f"web{n + 1}", "state": "up"} for n in range(nodes)], "output": ["/data/items.jl"],
        "misses": "/data/misses.jsonl", "warnings": ["DEPTH_LIMIT counts per job."],
    }  # fmt: skip
