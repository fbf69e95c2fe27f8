"""The egg without a node: what goes in, what stays out, and that the same content gives the same bytes."""

import ast
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from scrapyd_dist.deploy import boot
from scrapyd_dist.deploy import egg as egg_module
from scrapyd_dist.deploy.egg import WORKER_MODULES, Egg, build, worker_files
from scrapyd_dist.deploy.egg_refusal import explain_refusal

import scrapyd_dist.store
from scrapyd_dist.errors import ApiRefused, ConfigError
from scrapyd_dist.keys import EGG_FILE
from scrapyd_dist.scrapyd.versions import hash_in

ROOT = Path(__file__).parents[2]
HASH = "0123456789ab"
Run = Callable[..., list[str]]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    write(
        root,
        {
            "scrapy.cfg": "[settings]\ndefault = shop.settings\n",
            "shop/__init__.py": "",
            "shop/settings.py": "",
        },
    )
    write(root, {"shop/spiders/__init__.py": "", "shop/spiders/one.py": "class One: ...\n"})
    return root


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def contents(egg: Egg) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(egg.data)) as archive:
        return {
            info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()
        }


def carried(egg: Egg) -> set[str]:
    """What of the project is in it."""
    return {
        name
        for name in contents(egg)
        if not name.startswith(("EGG-INFO/", "scrapyd_dist/", "_sdist_boot_"))
    }


SHOP = {"shop/__init__.py", "shop/settings.py", "shop/spiders/__init__.py", "shop/spiders/one.py"}


class TestContents:
    @pytest.mark.parametrize(
        ("files", "settings", "inside", "left_out"),
        [
            (
                {*SHOP, "shop/data/words.txt", "shop/data/deep/x.json", "shop/dist/__init__.py", "helper/__init__.py",
                 "helper/plain/script.py"},
                "shop.settings", ..., (),
            ),
            ({*SHOP, "loose.py", "setup.py", "conftest.py", "docs/index.md"}, "shop.settings", SHOP, ("loose.py",)),
            # Loose modules travel where the settings are one of them.
            ({"conf.py", "spider.py", "setup.py", "lib/__init__.py"}, "conf",
             {"conf.py", "spider.py", "lib/__init__.py"}, ()),
            ({"shop/settings.py", "shop/spiders/one.py"}, "shop.settings", ..., ()),
            ({*(f"src/{name}" for name in SHOP), "setup.py", "tests/__init__.py"}, "shop.settings", SHOP, ()),
            # What stands beside scrapy.cfg goes before src.
            ({*SHOP, "src/shop/__init__.py", "src/shop/settings.py"}, "shop.settings", SHOP, ()),
        ],
    )  # fmt: skip
    def test_packages_with_their_data(
        self, tmp_path: Path, files: set[str], settings: str, inside: Any, left_out: tuple[str, ...]
    ) -> None:
        write(tmp_path, dict.fromkeys([*files, "scrapy.cfg", "README.md"], ""))
        egg = build(tmp_path, settings)
        assert carried(egg) == (files if inside is ... else inside)
        assert egg.left_out == left_out

    def test_hidden_files_travel_and_what_tools_keep_stays(self, shop: Path) -> None:
        hidden = [
            ".git/config",
            ".sdist/eggs/x.egg",
            "build/__init__.py",
            "dist/__init__.py",
            "shop.egg-info/PKG-INFO",
        ]
        hidden += [
            "shop/__pycache__/a.pyc",
            "shop/old.pyc",
            "shop/node_modules/x/index.js",
            "shop/CVS/Root",
            "shop/a~",
        ]
        hidden += [
            "shop/.git/config",
            "shop/.gitignore",
            "shop/.mypy_cache/x",
            "shop/.cache/x",
            "shop/.words.txt.swp",
        ]
        told = ["shop/env/pyvenv.cfg", "shop/env/lib/x.py", "shop/.venv/pyvenv.cfg"]
        theirs = {"shop/.env", "shop/.data/words.txt", "shop/price_cache/a.csv", "shop/words.swp"}
        write(
            shop,
            dict.fromkeys(
                [*hidden, *told, *theirs, "venv/pyvenv.cfg", "venv/__init__.py", ".env"], ""
            ),
        )
        egg = build(shop, "shop.settings")
        assert carried(egg) == SHOP | theirs
        assert egg.left_out == ("shop/.venv", "shop/env", "venv")

    def test_links(self, shop: Path, tmp_path: Path) -> None:
        write(tmp_path, {"elsewhere/shared/__init__.py": "x = 1\n", "elsewhere/word.txt": "w"})
        (shop / "shared").symlink_to(tmp_path / "elsewhere/shared")
        (shop / "shop/word.txt").symlink_to(tmp_path / "elsewhere/word.txt")
        loops = {"me": ".", "up": "..", "root": "/", "broken": "nowhere", "itself": "itself"}
        for name, target in loops.items():
            (shop / "shop" / name).symlink_to(target)
        (shop / "shop/spiders/again").symlink_to(shop / "shop")
        os.mkfifo(shop / "shop/pipe")
        egg = build(shop, "shop.settings")
        assert carried(egg) == SHOP | {"shared/__init__.py", "shop/word.txt"}
        assert set(egg.left_out) == {
            "shop/pipe",
            "shop/spiders/again",
            *(f"shop/{name}" for name in loops),
        }

    def test_a_name_that_is_no_text(self, shop: Path) -> None:
        Path(os.fsdecode(os.fsencode(shop / "shop") + b"/\xff.txt")).touch()
        egg = build(shop, "shop.settings")
        assert carried(egg) == SHOP
        (name,) = egg.left_out
        name.encode()

    def test_a_copy_of_us_in_the_project_gives_way(self, shop: Path) -> None:
        write(shop, {"scrapyd_dist/__init__.py": "raise RuntimeError", "scrapyd_dist/mine.py": ""})
        egg = build(shop, "shop.settings")
        assert egg.left_out == ("scrapyd_dist",)
        assert (
            contents(egg)["scrapyd_dist/__init__.py"] == worker_files()["scrapyd_dist/__init__.py"]
        )
        assert "scrapyd_dist/mine.py" not in contents(egg)


class TestInfo:
    def test_boot_module_is_the_entry(self, shop: Path) -> None:
        egg = build(shop, "shop.settings")
        files = contents(egg)
        boot = f"_sdist_boot_{egg.content_hash}"
        assert files["EGG-INFO/entry_points.txt"].decode() == f"[scrapy]\nsettings = {boot}\n"
        assert files["EGG-INFO/top_level.txt"].decode().split() == [boot, "scrapyd_dist", "shop"]
        assert "Name: shop\n" in files["EGG-INFO/PKG-INFO"].decode()

    def test_key(self, shop: Path) -> None:
        eggs = [build(shop, "shop.settings", key=key) for key in (None, b"k1", b"k2")]
        assert [contents(egg).get(f"scrapyd_dist/{EGG_FILE}") for egg in eggs] == [
            None,
            b"k1",
            b"k2",
        ]
        assert len({egg.content_hash for egg in eggs}) == 3

    def test_hash_is_in_no_danger_of_a_shifted_border(self, tmp_path: Path) -> None:
        hashes = set()
        for number, files in enumerate(
            ({"s/a": "bc", "s/d": ""}, {"s/a": "b", "s/cd": ""}, {"s/ab": "c", "s/d": ""})
        ):
            write(tmp_path / str(number), {"scrapy.cfg": "", "s/settings.py": "", **files})
            hashes.add(build(tmp_path / str(number), "s.settings").content_hash)
        assert len(hashes) == 3


class TestSameBytes:
    def test_times_modes_and_order_do_not_matter(self, shop: Path, tmp_path: Path) -> None:
        first = build(shop, "shop.settings", key=b"k")
        copy = tmp_path / "copy"
        files = {
            path.relative_to(shop).as_posix(): path for path in shop.rglob("*") if path.is_file()
        }
        write(
            copy,
            {name: files[name].read_text(encoding="utf-8") for name in sorted(files, reverse=True)},
        )
        for path in copy.rglob("*.py"):
            os.utime(path, (0, 0))
            path.chmod(0o755)
        again = build(copy, "shop.settings", key=b"k")
        assert again == first
        assert again.data == first.data

    def test_nothing_is_compiled_for_an_egg_that_stays_here(
        self, shop: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(egg_module, "_compiled", lambda *_: pytest.fail("compiled"))
        build(shop, "shop.settings")

    def test_any_content_does_and_so_does_our_half(
        self, shop: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hashes = {build(shop, "shop.settings").content_hash}
        changes = {
            "shop/settings.py": "A = 1\n",
            "shop/spiders/two.py": "",
            "shop/data.txt": "x",
            "more/__init__.py": "",
        }
        for name, text in changes.items():
            write(shop, {name: text})
            hashes.add(build(shop, "shop.settings").content_hash)
        monkeypatch.setattr(
            egg_module, "WORKER_MODULES", {"scrapyd_dist": WORKER_MODULES["scrapyd_dist"]}
        )
        hashes.add(build(shop, "shop.settings").content_hash)
        assert len(hashes) == len(changes) + 2


class TestRefused:
    @pytest.mark.parametrize(
        ("files", "settings", "words"),
        [
            ({"notes.txt": ""}, "shop.settings", "no folder beside scrapy.cfg is a Python package"),
            ({"other/__init__.py": ""}, "shop.settings", "hold no shop/settings.py"),
            ({"shop/__init__.py": ""}, "shop.settings", "hold no shop/settings.py"),
            ({"src/other/__init__.py": ""}, "shop.settings", "nothing to deploy"),
            ({"shop/__init__.py": ""}, "../shop", "no dotted Python name"),
            ({"shop/__init__.py": ""}, "", "no dotted Python name"),
        ],
    )
    def test_no_project(
        self, tmp_path: Path, files: dict[str, str], settings: str, words: str
    ) -> None:
        write(tmp_path, {"scrapy.cfg": "", **files})
        with pytest.raises(ConfigError, match=words):
            build(tmp_path, settings)

    def test_unreadable_file(self, shop: Path) -> None:
        (shop / "shop/data.bin").symlink_to(
            "/proc/self/mem"
        )  # a file that not even root can read from its beginning
        with pytest.raises(ConfigError, match="Input/output error"):
            build(shop, "shop.settings")

    def test_incomplete_installation(self, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(egg_module, "WORKER_MODULES", {"scrapyd_dist.none": ("such",)})
        with pytest.raises(ConfigError, match=r"lacks the module scrapyd_dist\.none\.such"):
            build(shop, "shop.settings")


def imports_of(path: str, source: bytes) -> set[str]:
    """All modules that a file may import at run time, at whatever depth, by dotted name."""
    package = path.removesuffix(".py").removesuffix("/__init__").split("/")
    if not path.endswith("/__init__.py"):
        package = package[:-1]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.update({base, *(f"{base}.{alias.name}" for alias in node.names)})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


def exists(module: str) -> bool:
    """Whether it is a module, not a name in one; nothing is imported for that."""
    parts = module.split(".")[1:]
    base = (
        ROOT
        if parts and parts[0] in {"cli", "middlewares", "deploy", "examples"}
        else ROOT / "scrapyd_dist"
    )
    path = base.joinpath(*parts)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


#: what only the producer's process imports, behind a question that a worker answers with no
PRODUCER_ONLY = {
    "scrapyd_dist.middlewares.producer.crawl_start",
    "scrapyd_dist.middlewares.producer.filler",
    "scrapyd_dist.middlewares.producer.feed_outputs",
    "scrapyd_dist.middlewares.producer.producer",
    "scrapyd_dist.middlewares.producer.probe",
    "scrapyd_dist.middlewares.producer.scrapy_parts",
    "scrapyd_dist.middlewares.producer.early_capture",
    "scrapyd_dist.middlewares.producer.set_aside",
}


class TestWorkerHalf:
    def test_list_has_all_that_it_imports_which_is_scrapy_and_the_standard_library(self) -> None:
        modules = {path: source for path, source in worker_files().items() if path.endswith(".py")}
        wanted = {name for path, source in modules.items() for name in imports_of(path, source)}
        ours = {name for name in wanted if name.split(".")[0] == "scrapyd_dist" and exists(name)}
        assert ours >= PRODUCER_ONLY  # what is imported relatively and inside functions is seen
        dotted = {
            path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in modules
        }
        assert ours - dotted - PRODUCER_ONLY == set()
        brought_by_scrapy = {
            "cryptography",
            "itemadapter",
            "protego",
            "pydispatch",
            "tldextract",
            "twisted",
            "w3lib",
        }
        # redis travels along where the store is a Redis server
        allowed = {"scrapyd_dist", "scrapy", "redis", *brought_by_scrapy, *sys.stdlib_module_names}
        assert {name.partition(".")[0] for name in wanted} <= allowed

    def test_is_taken_by_import_spec(self, tmp_path: Path) -> None:
        # From a zip there is no folder that could be walked.
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for path in [
                file
                for part in ("scrapyd_dist", "middlewares", "deploy")
                for file in ROOT.glob(f"{part}/**/*.*")
            ]:
                name = path.relative_to(ROOT)
                archive.write(
                    path, name if name.parts[0] == "scrapyd_dist" else Path("scrapyd_dist", name)
                )
        code = "from scrapyd_dist.deploy import egg; print(egg.__file__); print(*sorted(egg.worker_files()))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "all.zip")}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        file, *names = done.stdout.split()
        assert file.startswith(str(tmp_path))
        assert names == sorted(worker_files())

    def test_brings_byte_code_of_its_own_half_only(self, shop: Path) -> None:
        files = contents(build(shop, "shop.settings"))
        compiled = {name for name in files if name.endswith(".pyc")}
        assert {name for name in compiled if not name.startswith("_sdist_boot_")} == {
            f"{name}c" for name in worker_files() if name.endswith(".py")
        }
        assert "scrapyd_dist/payload.pyc" in compiled

    def test_has_the_whole_store(self) -> None:
        store = Path(scrapyd_dist.store.__file__).parent
        there = {
            f"scrapyd_dist/store/{path.relative_to(store).as_posix()}"
            for path in store.rglob("*.*")
        }
        ours = {name for name in worker_files() if name.startswith("scrapyd_dist/store/")}
        assert "scrapyd_dist/store/sqlite/schema/1.sql" in ours
        assert {name for name in there if not name.endswith(".pyc")} == ours


class TestBoot:
    """The boot module in a process of its own, with an egg in front of it and, at times, another copy of us."""

    @pytest.fixture
    def run(self, shop: Path, tmp_path: Path) -> Run:
        def run(
            settings: str,
            code: str,
            *,
            installed: str | None = None,
            preload: str = "",
            beside: Mapping[str, str] = MappingProxyType({}),
        ) -> list[str]:
            write(shop, {"shop/settings.py": settings})
            egg = build(shop, "shop.settings", key=b"the key")
            (tmp_path / "x.egg").write_bytes(egg.data)
            folder = tmp_path / "site"
            folder.mkdir()
            write(folder, beside)
            if installed is not None:
                write(folder, {"scrapyd_dist/__init__.py": installed, "scrapyd_dist/extra.py": ""})
            boot = f"_sdist_boot_{egg.content_hash}"
            lines = [
                "import importlib, os, sys",
                f"sys.path.insert(0, {str(folder)!r}); sys.path.append({str(tmp_path / 'x.egg')!r})",
                preload,
                f"os.environ['SCRAPY_SETTINGS_MODULE'] = {boot!r}",
                f"settings = importlib.import_module({boot!r})",
                code,
            ]
            # -I: neither the environment nor the folder of this test is to lend a copy of us
            command = [sys.executable, "-I", "-c", "\n".join(lines)]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()

        return run

    def test_takes_the_place_of_the_users_settings(self, run: Run) -> None:
        code = "print(settings.__name__, settings.A, settings is sys.modules['shop.settings'])\n"
        code += "print(os.environ['SCRAPY_SETTINGS_MODULE'], settings.ADDONS)"
        assert run("A = 1\n", code) == [
            "shop.settings 1 True",
            "shop.settings {'scrapyd_dist.Addon': 500}",
        ]

    def test_what_a_project_prints_is_no_spider(self, run: Run, shop: Path) -> None:
        spider = (
            "import os, scrapy\nprint('at import')\nclass One(scrapy.Spider):\n    name = '%s'\n"
        )
        write(
            shop,
            {
                "shop/b.py": spider % "b\u00fc",
                "shop/a.py": spider % "a" + "os.system('echo of a program')\n",
            },
        )
        settings = "import atexit\nprint('of settings')\natexit.register(print, 'at the end')\n"
        listed = "sys.argv = ['scrapy', 'list', '-s', 'LOG_STDOUT=0']; from scrapy.cmdline import execute; execute()"
        said = run(
            settings + "SPIDER_MODULES = ['shop']\n",
            listed,
            preload="sys.argv = ['runner', 'list']",
        )
        assert said == ["a", "b\u00fc"]

    def test_what_other_commands_print_is_printed(self, run: Run) -> None:
        assert run(
            "print('x')\n", "print('y')", preload="sys.argv = ['runner', 'crawl', 'list']"
        ) == ["x", "y"]

    def test_a_python_that_is_too_old_is_named(
        self, shop: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = contents(build(shop, "shop.settings"))
        for name, text in files.items():
            if name.startswith("_sdist_boot_") and name.endswith(".py"):
                ast.parse(text, feature_version=(3, 9))  # so that it can say why it does not work
        monkeypatch.setattr(sys, "version_info", (3, 9, 2))
        with pytest.raises(
            ImportError, match=r"Python 3\.9 is too old for scrapyd-dist; it needs 3\.10"
        ):
            boot.start(settings_module="shop.settings", boot="x", egg="x.egg")

    @pytest.mark.parametrize(
        ("found", "words"),
        [
            ({"scrapy": "2.11.2"}, r"Scrapy 2\.11 is too old for scrapyd-dist; it needs 2\.13"),
            ({"scrapyd": "1.3.0"}, r"Scrapyd 1\.3 is too old for scrapyd-dist; it needs 1\.4"),
        ],
    )
    def test_packages_that_are_too_old_are_named(
        self, monkeypatch: pytest.MonkeyPatch, found: dict[str, str], words: str
    ) -> None:
        versions = {"scrapy": "2.13.0", "scrapyd": "1.4.3", **found}
        monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
        with pytest.raises(ImportError, match=words):
            boot.start(settings_module="shop.settings", boot="x", egg="x.egg")

    def test_key_and_folders_without_init_are_found(self, run: Run, shop: Path) -> None:
        write(shop, {"shop/plain/script.py": "WORD = 'found'\n"})
        code = "from importlib.resources import files\nfrom shop.plain.script import WORD\n"
        code += f"print(WORD, files('scrapyd_dist').joinpath({EGG_FILE!r}).read_text())"
        assert run("", code) == ["found the key"]

    @pytest.mark.parametrize(
        ("settings", "name", "value"),
        [
            # A job without a batch is no producer.
            ("DISTRIBUTED_ENABLED = True", "DISTRIBUTED_ENABLED", "False"),
            ("ADDONS = {}", "ADDONS", "{'scrapyd_dist.Addon': 500}"),
            ("ADDONS = None", "ADDONS", "{'scrapyd_dist.Addon': 500}"),
            ("ADDONS = '{\"other.Addon\": 1}'", "ADDONS", "{'other.Addon': 1, 'scrapyd_dist.Addon': 500}"),
            ("ADDONS = {'scrapyd_dist.Addon': None}", "ADDONS", "{'scrapyd_dist.Addon': None}"),
            ("ADDONS = {'scrapyd_dist.middlewares.addon.Addon': 7}", "ADDONS",
             "{'scrapyd_dist.middlewares.addon.Addon': 7}"),
            ("SPIDER_MIDDLEWARES = {'scrapyd_dist.Distributed': 100}", "ADDONS", "None"),
            ("SPIDER_MIDDLEWARES = {'other.Distributed': 100}", "ADDONS", "{'scrapyd_dist.Addon': 500}"),
            ("ADDONS = {'scrapyd_distant.Addon': 7}", "ADDONS",
             "{'scrapyd_distant.Addon': 7, 'scrapyd_dist.Addon': 500}"),
            ("from scrapyd_dist import Addon\nclass Mine: ...\nADDONS = {Mine: 1, Addon: 2}", "ADDONS",
             "{<class 'shop.settings.Mine'>: 1, <class 'scrapyd_dist.middlewares.addon.Addon'>: 2}"),
            # The user's own dictionary stays as it is.
            ("BASE = {'other.Addon': 1}\nADDONS = BASE", "BASE", "{'other.Addon': 1}"),
        ],
    )  # fmt: skip
    def test_adds_the_addon_only_once(self, run: Run, settings: str, name: str, value: str) -> None:
        assert run(settings, f"print(getattr(settings, {name!r}, None))") == [value]

    @pytest.mark.parametrize(
        ("installed", "preload"),
        [("raise RuntimeError('an old copy')", ""), ("OLD = True", "import scrapyd_dist.extra")],
    )
    def test_the_eggs_copy_wins_even_over_one_already_imported(
        self, run: Run, installed: str, preload: str
    ) -> None:
        code = "import scrapyd_dist.payload; print(scrapyd_dist.payload.__file__, scrapyd_dist.__file__)\n"
        code += "print('scrapyd_dist.extra' in sys.modules)"
        files, extra = run("", code, installed=installed, preload=preload)
        assert all(f"/.sdist-{os.geteuid()}/x-" in file for file in files.split())
        assert extra == "False"

    def test_what_the_egg_lacks_is_not_taken_elsewhere(self, run: Run) -> None:
        code = "try:\n import scrapyd_dist.extra\nexcept ModuleNotFoundError as error:\n print(error.name)"
        assert run("", code, installed="__path__ = __path__") == ["scrapyd_dist.extra"]

    @pytest.mark.parametrize("preload", ["", "import shop.settings, tools"])
    def test_the_projects_packages_are_the_eggs_and_not_those_of_an_old_checkout(
        self, run: Run, shop: Path, preload: str
    ) -> None:
        write(shop, {"tools/__init__.py": "WORD = 'new'\n", "json/__init__.py": ""})
        old = {
            "shop/__init__.py": "",
            "shop/settings.py": "WORD = 'old'\n",
            "tools/__init__.py": "WORD = 'old'\n",
            "other.py": "WORD = 'other'\n",
        }
        code = "import json, other, shop.settings; print(shop.settings.WORD, other.WORD, json.dumps(1))\n"
        code += "" if preload else "import tools; print(tools.WORD)"
        expected = ["new other 1"] if preload else ["new other 1", "new"]
        assert run("WORD = 'new'\n", code, beside=old, preload=preload) == expected

    def test_an_error_in_the_settings_is_the_users_own(self, run: Run) -> None:
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            run("1 / 0\n", "")


@pytest.mark.parametrize(
    "name",
    ["", "1.0", HASH, f"20261120T120000Z-{HASH}", "r1-master", "1795176000-999999999999999",
     "1795176000-00125099989649", "x1795176000-001250999896491", "1795176000-001250999896491-dev2",
     "1795176000-001250999896491\n"],
)  # fmt: skip
def test_names_that_are_not_ours_have_no_content_hash(name: str) -> None:
    assert hash_in(name) is None


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("No module named 'helper'", "helper.py lies beside the packages"),
        ("No module named 'helper.sub'", "helper.py lies beside the packages"),
        (
            "No module named 'common'",
            "The folder common has no __init__.py, and only packages travel: add one",
        ),
        ("No module named 'numpy'", "Install what is missing on the node"),
        ("No module named 'pkg_resources'", "the setuptools on the node is too new"),
        ("SyntaxError: invalid syntax", "the node has an older Python"),
        ("ImportError: cannot import name 'Self' from 'typing'", "the node has an older Python"),
        (
            "ImportError: Python 3.9 is too old for scrapyd-dist; it needs 3.10",
            "Install Scrapy and Scrapyd for Python",
        ),
        (
            "ImportError: Scrapyd 1.3 is too old for scrapyd-dist; it needs 1.4",
            "On the node: pip install --upgrade 'scrapyd>=1.4'; restart its Scrapyd, and deploy again",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'urls/a.txt'",
            "Path(__file__).parent",
        ),
        ("ValueError: no", "Correct the project, and deploy again"),
    ],
)
def test_what_to_do_about_a_refusal(shop: Path, said: str, text: str) -> None:
    write(shop, {"helper.py": "", "common/words.py": ""})
    error = ApiRefused("node: refused")
    error.scrapyd_message = said
    told = explain_refusal(error, build(shop, "shop.settings"))
    assert text in told
    assert said.removeprefix("ImportError: ") in told
    assert ".." not in told
