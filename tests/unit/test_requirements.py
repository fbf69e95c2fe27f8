"""Requirements and the Redis client in the egg, and a setup.py that builds it; pip runs, nothing is fetched."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rig.projects import wheel
from scrapyd_dist.deploy import egg, requirements
from scrapyd_dist.deploy.requirements import read_requirements, store_client

from scrapyd_dist.errors import ConfigError


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    root = tmp_path / "work"
    (root / "shop").mkdir(parents=True)
    (root / "shop/__init__.py").touch()
    (root / "shop/settings.py").write_text("BOT_NAME = 'shop'\n", "utf-8")
    return root


class TestRequirements:
    def test_what_is_pure_travels_and_what_nodes_have_does_not(self, shop: Path) -> None:
        (shop / "more.txt").write_text(f"{wheel(shop / 'wheels', 'other')}\n", "utf-8")
        there = [
            "Scrapy>=2.13  # there",
            "lxml ; python_version > '3'",
            "W3LIB[x]==99 \\\n  --hash=sha256:00",
        ]
        lines = ["# ours", *there, wheel(shop / "wheels", "tinydep"), "-r more.txt"]
        (shop / "requirements.txt").write_text("\n".join(lines), "utf-8")
        found = read_requirements(shop)
        assert sorted(found) == [
            "other-1.0.dist-info/METADATA", "other/__init__.py", "other/data.txt",
            "tinydep-1.0.dist-info/METADATA", "tinydep/__init__.py", "tinydep/data.txt",
        ]  # fmt: skip
        built = egg.build(shop, "shop.settings", requirements=found)
        with zipfile.ZipFile(io.BytesIO(built.data)) as archive:
            assert {*found, "shop/settings.py"} <= set(archive.namelist())
            assert {"tinydep", "other", "shop"} <= set(
                archive.read("EGG-INFO/top_level.txt").decode().split()
            )
        assert built.content_hash != egg.build(shop, "shop.settings").content_hash
        assert (
            built.data
            == egg.build(shop, "shop.settings", requirements=read_requirements(shop)).data
        )
        assert sorted(path.name for path in shop.iterdir()) == [
            "more.txt",
            "requirements.txt",
            "shop",
            "wheels",
        ]

    @pytest.mark.parametrize(
        "how", [{"pure": False}, {"extra": ("fastdep/core.cpython-311-x86_64-linux-gnu.so",)}]
    )
    def test_what_is_compiled_is_refused_by_name(self, shop: Path, how: dict[str, object]) -> None:
        # `how` is a row of the table above, with values of several types
        lines = [wheel(shop / "w", "tinydep"), wheel(shop / "w", "fastdep", **how)]  # type: ignore[arg-type]  # as parametrized
        (shop / "requirements.txt").write_text("\n".join(lines), "utf-8")
        with pytest.raises(ConfigError, match=r"travel in an egg: fastdep\. Take") as caught:
            read_requirements(shop)
        assert "tinydep" not in str(caught.value)

    def test_no_list_and_what_cannot_be_found(self, shop: Path) -> None:
        with pytest.raises(ConfigError, match=r"requirements\.txt, which is not there"):
            read_requirements(shop)
        (shop / "requirements.txt").write_text("nothing-of-that-name\n", "utf-8")
        with pytest.raises(ConfigError, match="nothing-of-that-name"):
            read_requirements(shop)


class TestSetupPy:
    SOURCE = (
        "from setuptools import setup\n"
        "setup(name='the-shop', version='7', packages=['shop'], package_data={'shop': ['*.txt']},\n"
        "      entry_points={'scrapy': ['settings = shop.settings'], 'shop.plugins': ['a = shop:a']})\n"
    )

    def test_it_decides_what_is_in_and_nothing_is_left_in_the_folder(self, shop: Path) -> None:
        (shop / "setup.py").write_text(self.SOURCE, "utf-8")
        (shop / "shop/words.txt").write_text("words", "utf-8")
        (shop / "shop/words.csv").write_text("not asked for", "utf-8")
        before = sorted(shop.rglob("*"))
        built = egg.build(shop, "ignored", use_setup_py=True)
        assert sorted(shop.rglob("*")) == before
        with zipfile.ZipFile(io.BytesIO(built.data)) as archive:
            names = set(archive.namelist())
            entries = archive.read("EGG-INFO/entry_points.txt").decode()
            about = archive.read("EGG-INFO/PKG-INFO").decode()
        assert {
            "shop/words.txt",
            "scrapyd_dist/__init__.py",
            f"_sdist_boot_{built.content_hash}/__init__.py",
        } <= names
        assert not {
            name for name in names if name.startswith("shop/") and name.endswith((".csv", ".pyc"))
        }
        assert f"settings = _sdist_boot_{built.content_hash}" in entries
        assert "[shop.plugins]\na = shop:a" in entries
        assert f"Version: 0+{built.content_hash}" in about
        assert egg.build(shop, "ignored", use_setup_py=True).data == built.data

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("raise SystemExit('no way')", "built no egg: no way"),
            (None, r"setup\.py, which is not there"),
        ],
    )
    def test_it_fails_or_is_not_there(self, shop: Path, source: str | None, said: str) -> None:
        if source is not None:
            (shop / "setup.py").write_text(source, "utf-8")
        with pytest.raises(ConfigError, match=said):
            egg.build(shop, "shop.settings", use_setup_py=True)


class TestRedisClient:
    URL = "redis://host/0"

    def test_it_is_whole_and_has_its_licence_and_a_store_in_a_file_needs_none(self) -> None:
        assert store_client("/folder/store.db") == {}
        files = store_client(self.URL)
        assert {"redis/__init__.py", "redis/retry.py", "redis/commands/core.py"} < files.keys()
        assert b"Permission is hereby granted" in files["redis/LICENSE"]
        assert {name.partition(".")[2] for name in files if "/" in name} == {"py", ""}

    def test_without_one_here_it_is_said_how_to_get_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(requirements, "find_spec", lambda _: None)
        with pytest.raises(ConfigError, match=r"scrapyd-dist\[redis\]"):
            store_client(self.URL)

    @pytest.mark.parametrize("spoil", [False, True])
    def test_a_python_without_one_imports_it(self, shop: Path, tmp_path: Path, spoil: bool) -> None:
        built, again = (
            egg.build(shop, "shop.settings", requirements=store_client(self.URL)) for _ in range(2)
        )
        assert built.data == again.data
        assert built.content_hash != egg.build(shop, "shop.settings").content_hash
        with (
            zipfile.ZipFile(io.BytesIO(built.data)) as read,
            zipfile.ZipFile(tmp_path / "x.egg", "w") as written,
        ):
            for name in read.namelist():
                other = spoil and name.endswith(".pyc")  # as the byte code of another Python
                written.writestr(
                    name, b"\0\0\0\0" + read.read(name)[4:] if other else read.read(name)
                )
        code = (
            "import sys\n"
            f"sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path / 'x.egg')!r}]\n"
            "import redis, redis.retry, redis.backoff, async_timeout\n"
            "print(redis.__file__.rpartition('.')[2], 'async' in async_timeout.__doc__)"
        )
        done = subprocess.run(
            [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == ["py" if spoil else "pyc", "True"], done.stderr
