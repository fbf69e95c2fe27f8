"""Where people keep their packages, and what a node's refusal is about."""

import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from scrapyd_dist.deploy.egg import Egg, build
from scrapyd_dist.deploy.node_upload import why

from scrapyd_dist.errors import ApiRefused, ConfigError


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")


def names(egg: Egg) -> set[str]:
    with zipfile.ZipFile(BytesIO(egg.data)) as archive:
        return {name for name in archive.namelist() if name.startswith(("shop", "common", "src"))}


def test_packages_below_src(tmp_path: Path) -> None:
    write(tmp_path, "scrapy.cfg", "setup.py", "src/shop/__init__.py", "src/shop/settings.py", "src/shop/data/x.json")
    write(tmp_path, "src/common/__init__.py", "tests/__init__.py")
    files = {"shop/__init__.py", "shop/settings.py", "shop/data/x.json", "common/__init__.py"}
    assert names(build(tmp_path, "shop.settings")) == files | {"shop/", "shop/data/", "common/"}


def test_what_stands_beside_goes_before_src(tmp_path: Path) -> None:
    write(tmp_path, "shop/__init__.py", "shop/settings.py", "src/shop/__init__.py", "src/shop/settings.py")
    assert names(build(tmp_path, "shop.settings")) == {"shop/", "shop/__init__.py", "shop/settings.py"}


def test_a_src_without_the_settings_is_none(tmp_path: Path) -> None:
    write(tmp_path, "src/other/__init__.py")
    with pytest.raises(ConfigError, match="nothing to deploy"):
        build(tmp_path, "shop.settings")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("No module named 'helper'", "helper.py lies beside the packages"),
        ("No module named 'helper.sub'", "helper.py lies beside the packages"),
        ("No module named 'numpy'", "Install what is missing on the node"),
        ("No module named 'pkg_resources'", "the setuptools on the node is too new"),
        ("SyntaxError: invalid syntax", "Correct the project"),
    ],
)
def test_what_to_do_about_a_refusal(tmp_path: Path, said: str, text: str) -> None:
    write(tmp_path, "shop/__init__.py", "shop/settings.py", "helper.py")
    error = ApiRefused("node: refused")
    error.said = said
    told = why(error, build(tmp_path, "shop.settings"))
    assert text in told
    assert said in told
