"""The project's FEED_EXPORT_… settings and exporters in merged files; without any, lines are copied."""

import json
from pathlib import Path
from typing import IO, Any

import pytest
from scrapy.exporters import BaseItemExporter
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.item_exporters import exporter_for, take_outputs

from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.merging import ItemOutput, merge

LINES = '{"name": "ü", "price": 2, "tags": ["a", "b"]}\n{"name": "b", "more": {"x": "ü"}}\n'


class Shouting(BaseItemExporter):
    """An exporter of a project."""

    def __init__(self, file: IO[bytes], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._file = file

    def export_item(self, item: Any) -> None:
        self._file.write(str(item["name"]).upper().encode() + b"!")


def merged(folder: Path, name: str, settings: dict[str, Any], **output: Any) -> bytes:
    """What becomes of LINES in a file of this name."""
    part, path = folder / "part.jl", folder / name
    part.write_text(LINES, "utf-8")
    output.setdefault("format", {"jl": "jsonlines"}.get(path.suffix[1:], path.suffix[1:]))
    overwrite = output.setdefault("overwrite", True)
    make = exporter_for(output, Settings(settings), None)
    merge(Items([part]), [ItemOutput.named(path, overwrite=overwrite, format=output["format"], exporter=make)])
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["jsonlines", "json", "csv"])
@pytest.mark.parametrize("settings", [{}, {"FEED_EXPORT_ENCODING": "utf-8"}])
def test_without_a_wish_the_lines_of_the_parts_are_taken_as_they_are(kind: str, settings: dict[str, Any]) -> None:
    assert exporter_for({"format": kind}, Settings(settings), None) is None


def test_fields_encoding_and_indent(tmp_path: Path) -> None:
    assert merged(tmp_path, "a.jl", {"FEED_EXPORT_FIELDS": ["name"]}) == b'{"name": "\\u00fc"}\n{"name": "b"}\n'
    renamed = merged(tmp_path, "a.csv", {"FEED_EXPORT_FIELDS": {"price": "Price", "name": "Name"}})
    assert renamed.decode() == "Price,Name\r\n2,ü\r\n,b\r\n"
    latin = merged(tmp_path, "b.csv", {"FEED_EXPORT_ENCODING": "latin-1"}).decode("latin-1")
    assert latin == 'name,price,tags,more\r\nü,2,"a,b",\r\nb,,,"{""x"": ""ü""}"\r\n'
    text = merged(tmp_path, "a.json", {"FEED_EXPORT_INDENT": 2, "FEED_EXPORT_ENCODING": "utf-8"}).decode()
    assert json.loads(text) == [json.loads(line) for line in LINES.splitlines()]
    assert '\n  "name": "ü",\n' in text


def test_what_one_feed_says_counts_before_the_settings(tmp_path: Path) -> None:
    assert (
        merged(tmp_path, "a.csv", {"FEED_EXPORT_FIELDS": ["price"]}, fields=["name"]).decode() == "name\r\nü\r\nb\r\n"
    )
    semicolons = merged(tmp_path, "b.csv", {}, item_export_kwargs={"delimiter": ";"}).decode()
    assert semicolons.startswith("name;price;tags;more\r\nü;2;a,b;\r\n")


def test_rows_that_are_added_get_no_second_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name\r\nx\r\n")
    settings = {"FEED_EXPORT_FIELDS": ["name"]}
    assert merged(tmp_path, "a.csv", settings, overwrite=False).decode() == "name\r\nx\r\nü\r\nb\r\n"


def test_an_exporter_of_the_project(tmp_path: Path) -> None:
    settings = {"FEED_EXPORTERS": {"loud": f"{__name__}.Shouting", "csv": Shouting}}
    assert merged(tmp_path, "a.loud", settings).decode() == merged(tmp_path, "a.csv", settings).decode() == "Ü!B!"
    assert merged(tmp_path, "a.xml", {}).startswith(b"<?xml")


def test_feeds_in_any_format_of_the_project_become_merged_files() -> None:
    feeds = {"a.xml": {"format": "xml", "fields": ["name"]}, "b.loud": {"format": "loud"}, "c.no": {"format": "no"}}
    settings = Settings({"FEEDS": feeds, "FEED_EXPORTERS": {"loud": Shouting}})
    take_outputs(settings, None)
    outputs = settings.getlist("DISTRIBUTED_OUTPUTS")
    assert [(output["format"], output.get("fields")) for output in outputs] == [("xml", ["name"]), ("loud", None)]
    assert settings.getdict("FEEDS") == {"c.no": {"format": "no"}}
    lost = Settings({"FEEDS": {"b.loud": {"format": "loud"}}, "FEED_EXPORTERS": {"loud": "no.such.Exporter"}})
    with pytest.raises(ImportError):
        take_outputs(lost, None)
