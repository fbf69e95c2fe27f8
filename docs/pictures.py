"""Makes the pictures: a demo crawl on real nodes of this machine, its live view on the way, its report, a diagram."""
# ruff: noqa: INP001, E402 - a script of its own, and what it imports is found by what it does first

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from diagram import PICTURE, draw
from rich.console import Console
from rig.browser import browser
from scrapyd_dist.cli.crawls.crawl_picture import frame

from scrapyd_dist.progress.summary_document import summary_of
from scrapyd_dist.report.facts import gather
from scrapyd_dist.report.page import page
from scrapyd_dist.store import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rig.browser import Browser

    from scrapyd_dist.report.facts import Facts

#: part of the requests that are done when the live view is drawn
MOMENT = 0.55
#: seconds between two looks at the store
LOOK = 0.2
#: the section of the report with a picture of its own, and the last one on the picture of the report
GROWTH, LAST = "Found, sent, ended", "Batches on the nodes"


def main() -> int:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=8_000, help="properties on the demo site")
    parser.add_argument("--nodes", type=int, default=3, help="local Scrapyd nodes")
    parser.add_argument("--out", type=Path, default=HERE / "pictures", help="where the pictures go")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / PICTURE.name).write_text(draw(), encoding="utf-8")
    with TemporaryDirectory() as folder:
        live, facts = crawl(Path(folder), asked.items, asked.nodes)
        (asked.out / "watch.svg").write_text(svg(live), encoding="utf-8")
        report = Path(folder) / "report.html"
        report.write_text(page(facts), encoding="utf-8")
        take(report, Path(folder), asked.out)
    for path in sorted(asked.out.iterdir()):
        print(f"{path.stat().st_size:>8,} bytes  {path}")
    return 0


def crawl(folder: Path, items: int, nodes: int) -> tuple[dict[str, Any], Facts]:
    """One demo: what its live view showed on the way, and what the store knows of it in the end."""
    demo = [
        sys.executable,
        "-m",
        "scrapyd_dist",
        "demo",
        f"--items={items}",
        f"--nodes={nodes}",
        "--dir=demo",
    ]
    with subprocess.Popen(demo, cwd=folder, env={**os.environ, "HOME": str(folder)}) as process:
        store = folder / "demo" / ".sdist" / "store.db"
        live = watch(process, store, items)
        if process.wait() != 0:
            raise SystemExit("The demo did not work; its own words are above.")
    with closing(open_store(store)) as opened:
        row = opened.crawls()[0]
        facts = gather(opened, row.id, now=row.ended or time.time(), lives=False)
    shown = replace(facts.crawl, summary=without_folders(row.summary))
    return without_folders(live or summary_of(row)), replace(facts, crawl=shown)


def without_folders(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary whose files have only names: where the demo was on this machine is nothing to show."""
    return {**summary, "output": [Path(path).name for path in summary["output"]]}


def watch(process: subprocess.Popen[bytes], store: Path, items: int) -> dict[str, Any]:
    """The summary of the crawl when about so much of it was done."""
    while process.poll() is None:
        time.sleep(LOOK)
        if not store.exists():
            continue
        with closing(open_store(store)) as opened:
            rows = opened.crawls()
        done = (rows[0].summary.get("requests") or {}).get("done", 0) if rows else 0
        if done >= MOMENT * items:
            return summary_of(rows[0])
    return {}


def svg(document: Mapping[str, Any]) -> str:
    """The live view of a crawl as an SVG document. Its fonts are those of the reader's machine: it fetches nothing."""
    console = Console(
        record=True,
        width=110,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(frame(document))
    return re.sub(r"@font-face\s*{[^}]*}\s*", "", console.export_svg(title="sdist watch"))


def take(report: Path, folder: Path, out: Path) -> None:
    """The page on a wide screen, and on a telephone in the dark; and one of its sections."""
    with browser(folder) as opened:
        opened.open(report, width=1000)
        height = int(_edge(opened, LAST, "bottom")) + 12
        growth = int(_edge(opened, GROWTH, "bottom") - _edge(opened, GROWTH, "top"))
        opened.open(report, width=1000, height=height)
        (out / "report.png").write_bytes(opened.picture())
        opened.open(report, width=1000, height=growth)
        opened.run(f"scrollTo(0, {_edge(opened, GROWTH, 'top')})")
        (out / "burn-up.png").write_bytes(opened.picture())
        opened.open(report, width=360, height=height * 360 // 420, dark=True)
        (out / "report-phone.png").write_bytes(opened.picture())


def _edge(opened: Browser, title: str, edge: str) -> float:
    sections = "[...document.querySelectorAll('section')]"
    script = (
        f"{sections}.find(s => s.innerText.startsWith('{title}')).getBoundingClientRect().{edge}"
    )
    return float(opened.run(script))


if __name__ == "__main__":
    sys.exit(main())
