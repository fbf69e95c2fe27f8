"""The line of an item is the one that Scrapy's own exporter writes of it."""

import json
from datetime import datetime, timezone
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from scrapy import Field, Item
from scrapy.exporters import JsonLinesItemExporter
from scrapyd_dist.middlewares.item_lines import line_writer

from scrapyd_dist.typed_lines import plain_line


class Name(str):
    """A text that is more than one."""

    __slots__ = ()


class Piece(Item):
    """Has a field that is written in another form."""

    size = Field(serializer=lambda value: f"{value} cm")
    name = Field()


ITEMS: list[Any] = [
    {},
    {"name": "vase", "tags": ["old", None], "size": {"cm": 1.5, "in": 0.6}},
    {"name": "Krüge \u2028 \\ud83c", "none": None, "is": True},
    {"price": Decimal("1.20"), "seen": datetime(2026, 1, 2, tzinfo=timezone.utc), "set": {1}},
    {Name("name"): Name("vase")},
    {("name", "as"): "vase"},
    {1: "vase"},
    {"sizes": {1: "vase"}},
    Piece(name="vase", size=3),
]


def lines_of(add: Any, file: BytesIO, item: Any) -> bytes | str:
    """What is written of an item, or the name of the error."""
    try:
        add(item)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return file.getvalue()


@pytest.mark.parametrize("item", ITEMS, ids=range(len(ITEMS)))
def test_a_line_is_that_of_scrapys_exporter(item: Any) -> None:
    ours, scrapys = BytesIO(), BytesIO()
    exporter = JsonLinesItemExporter(scrapys, encoding="utf-8")
    expected = lines_of(exporter.export_item, scrapys, item)
    assert lines_of(line_writer(ours, typed=False).add, ours, item) == expected


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize(
    "item",
    [
        {"name": "\ud83d x", "\udc80": ["\ude00", {"é": "\ud800"}]},
        {"name": "\ud83d", "seen": datetime(2026, 1, 2, tzinfo=timezone.utc), "pair": "\U0001f600"},
        Piece(name="\udcff", size="\ud83d"),
    ],
    ids=["plain", "with a value that JSON lacks", "of a class"],
)
def test_half_of_a_surrogate_pair_is_escaped_as_scrapys_exporter_does_by_default(
    item: Any, typed: bool
) -> None:
    ours, scrapys = BytesIO(), BytesIO()
    JsonLinesItemExporter(scrapys).export_item(item)
    line_writer(ours, typed=typed).add(item)
    assert json.loads(plain_line(ours.getvalue().rstrip(b"\n"))) == json.loads(scrapys.getvalue())
    ours.getvalue().decode("utf-8")
