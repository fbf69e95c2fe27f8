"""Scrapy projects for tests: a copy of the demo project, or a small one written on the spot, and their targets."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import as_file, files
from pathlib import Path
from textwrap import dedent
from typing import Any

from .nodes import ScrapydNode


class Project:
    """A Scrapy project in a folder of its own; `name` is that of its package, and its name as a Scrapyd project."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.package = path / name
        #: HOME of all commands that are run in it
        self.home = path.parent / f"{path.name}-home"
        #: where the output of such commands is kept
        self.output = path.parent / f"{path.name}-output"
        self.output.mkdir()

    @classmethod
    def demo(cls, path: Path) -> Project:
        """A copy of the demo project."""
        with as_file(files("scrapyd_dist.examples").joinpath("properties_project")) as source:
            shutil.copytree(source, path, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        return cls(path, "properties")

    @classmethod
    def small(
        cls, path: Path, name: str, spiders: Mapping[str, str], settings: Mapping[str, Any]
    ) -> Project:
        """A project of these spider modules (module name -> source) and settings."""
        project_settings = {
            "BOT_NAME": name,
            "SPIDER_MODULES": [f"{name}.spiders"],
            "ROBOTSTXT_OBEY": False,
        }
        (path / name / "spiders").mkdir(parents=True)
        project = cls(path, name)
        for empty in ("__init__.py", "spiders/__init__.py", "settings.py"):
            (project.package / empty).touch()
        project.settings(**{**project_settings, **settings})
        for module, source in spiders.items():
            project.spider(module, source)
        project.targets([])
        return project

    def plain_egg(self) -> bytes:
        """The egg that another tool would upload: the package alone, without a worker half."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in self.package.rglob("*"):
                if "__pycache__" not in path.parts:
                    archive.write(path, path.relative_to(self.path))
            archive.writestr(
                "EGG-INFO/PKG-INFO", f"Metadata-Version: 1.1\nName: {self.name}\nVersion: 0\n"
            )
            archive.writestr(
                "EGG-INFO/entry_points.txt", f"[scrapy]\nsettings = {self.name}.settings\n"
            )
        return buffer.getvalue()

    def targets(self, nodes: Iterable[ScrapydNode], extra: str = "") -> None:
        """Write scrapy.cfg anew, with one [deploy:NAME] section per node and `extra` behind it."""
        lines = [f"[settings]\ndefault = {self.name}.settings\n"]
        for node in nodes:
            login = (
                f"username = {node.username}\npassword = {node.password}\n" if node.username else ""
            )
            lines.append(f"[deploy:{node.name}]\nurl = {node.url}\nproject = {self.name}\n{login}")
        (self.path / "scrapy.cfg").write_text("\n".join([*lines, dedent(extra)]), encoding="utf-8")

    def settings(self, **values: Any) -> None:
        """Append settings to settings.py; the last one wins."""
        with (self.package / "settings.py").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value!r}\n" for name, value in values.items())

    def write(self, name: str, text: str) -> Path:
        """Write a file of the project, by its path from the project's folder; indentation is taken off."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def spider(self, module: str, source: str) -> None:
        self.write(f"{self.name}/spiders/{module}.py", source)

    def items(self, name: str) -> Iterator[dict[str, Any]]:
        """The items of a JSON lines file, by its path from the project's folder."""
        with (self.path / name).open(encoding="utf-8") as file:
            yield from map(json.loads, file)


def wheel(folder: Path, name: str, *, pure: bool = True, extra: tuple[str, ...] = ()) -> str:
    """A wheel made by hand; gives the line for requirements.txt."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}/__init__.py": "WORD = 'tiny'\n",
        f"{name}/data.txt": "data",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: {str(pure).lower()}\nTag: py3-none-any\n",
        **dict.fromkeys(extra, ""),
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(
            f"{info}/RECORD", "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
        )
    return f"./{folder.name}/{path.name}"
