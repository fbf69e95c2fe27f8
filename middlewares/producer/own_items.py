"""Part 0: the items of the producer's own pages, a file for each shard; a shard walked again replaces its own."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, cast

from scrapy.exporters import JsonLinesItemExporter

from scrapyd_dist.items.delivery import OWN, own_parts

if TYPE_CHECKING:
    from io import BytesIO
    from pathlib import Path


class OwnItems:
    """Writes the producer's items below the folder of parts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, tuple[IO[bytes], JsonLinesItemExporter]] = {}
        self.count = 0

    def recall(self, *, keep: bool) -> None:
        """Take up what an earlier process wrote, or remove it because its pages are walked again."""
        for path in self.parts():
            if keep:
                with path.open("rb") as file:
                    self.count += sum(1 for _ in file)
            else:
                path.unlink()

    def add(self, item: Any, shard: int) -> None:
        if shard not in self._files:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / f"{OWN}{shard}.jl").open("wb")
            self._files[shard] = (file, JsonLinesItemExporter(cast("BytesIO", file), encoding="utf-8"))
        self._files[shard][1].export_item(item)
        self.count += 1

    def flush(self) -> None:
        for file, _ in self._files.values():
            file.flush()

    def close(self) -> None:
        for file, _ in self._files.values():
            file.close()
        self._files.clear()

    def parts(self) -> list[Path]:
        """All files of part 0, those of earlier processes too, in the order of their shards."""
        return own_parts(self._folder)
