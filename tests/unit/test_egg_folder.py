"""The egg's folder on a node: code finds the files beside itself, and no half, foreign or hostile file is ever used."""

import errno
import fcntl
import importlib.util
import io
import logging
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from scrapy.settings import Settings
from scrapyd_dist.deploy import boot, egg_folder
from scrapyd_dist.deploy.egg import build
from scrapyd_dist.deploy.egg_folder import NotUnpacked, unpack_egg
from scrapyd_dist.middlewares.addon import Addon
from scrapyd_dist.middlewares.assignment import ZIPPED

DEPLOY = str(Path(egg_folder.__file__).parent)
HOME = f".sdist-{os.geteuid()}"
LONG_AGO = time.time() - 3600
MAGIC = importlib.util.MAGIC_NUMBER


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The temporary folder, for this process and those that it starts."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def eggs(tmp_path: Path) -> Path:
    """The folder of a project's eggs on a node."""
    folder = tmp_path / "eggs"
    folder.mkdir()
    return folder


def write_egg(
    path: Path, files: dict[str, bytes] | None = None, *, links: Iterable[str] = ()
) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (
            files or {"shop/__init__.py": b"", "shop/data.csv": b"a,b\n"}
        ).items():
            archive.writestr(name, content)
        for name in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
    return path


def home_of(parent: Path) -> list[str]:
    """What is in the folder of unpacked eggs below this one."""
    home = parent / HOME
    return sorted(path.name for path in home.iterdir()) if home.is_dir() else []


def age(folder: str | Path) -> None:
    os.utime(folder, (LONG_AGO, LONG_AGO))


def run(code: str) -> str:
    """What a process prints that has only this module."""
    lines = [
        f"import sys; sys.path.insert(0, {DEPLOY!r})",
        "import egg_folder, os",
        "from pathlib import Path, PosixPath",
        code,
    ]
    command = [sys.executable, "-I", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class TestFilesBesideCode:
    SETTINGS = """
import os
from pathlib import Path
WORDS = open(Path(__file__).parent / "words.txt").read()
HIDDEN = Path(__file__).with_name("plain").joinpath("list.csv").read_text()
"""
    CODE = """
import pkgutil, sqlite3, importlib.resources
from pathlib import Path
import shop
from jinja2 import Environment, FileSystemLoader, PackageLoader
here = Path(shop.__file__).parent
print(settings.WORDS, settings.HIDDEN, pkgutil.get_data("shop", "words.txt").decode())
print(importlib.resources.files("shop").joinpath("words.txt").read_text(), os.listdir(here / "plain"))
print(importlib.resources.files("shop.plain").joinpath("list.csv").read_text())
for loader in (FileSystemLoader(here / "templates"), PackageLoader("shop")):
    print(Environment(loader=loader).get_template("page.txt").render(word="w"))
print(sqlite3.connect(f"file:{here / 'shop.db'}?mode=ro", uri=True).execute("SELECT a FROM t").fetchone())
print(Path(sys.modules["scrapyd_dist"].__file__).parents[1] == here.parent)
print(sys.modules["scrapyd_dist.payload"].__cached__, sys.modules["scrapyd_dist.payload"].__loader__.__class__)
"""

    @pytest.fixture
    def job(self, tmp_path: Path, eggs: Path) -> list[str]:
        """The command line of a job of a project that has files of all kinds."""
        root = tmp_path / "project"
        (root / "shop/plain").mkdir(parents=True)
        (root / "shop/templates").mkdir()
        (root / "scrapy.cfg").touch()
        (root / "shop/__init__.py").touch()
        (root / "shop/settings.py").write_text(self.SETTINGS)
        (root / "shop/words.txt").write_text("words")
        (root / "shop/plain/list.csv").write_text("list")
        (root / "shop/templates/page.txt").write_text("a {{ word }}")
        with sqlite3.connect(root / "shop/shop.db") as connection:
            connection.execute("CREATE TABLE t (a)")
            connection.execute("INSERT INTO t VALUES (7)")
        connection.close()
        egg = build(root, "shop.settings", key=b"the key")
        (eggs / "v1.egg").write_bytes(egg.data)
        lines = [
            "import importlib, os, sys",
            f"sys.path.append({str(eggs / 'v1.egg')!r})",
            f"settings = importlib.import_module('_sdist_boot_{egg.content_hash}')",
            "import scrapyd_dist.payload",
        ]
        return [sys.executable, "-I", "-c", "\n".join(lines)]

    def test_are_found_as_at_home(self, job: list[str], eggs: Path) -> None:
        job[-1] += self.CODE
        done = subprocess.run(job, capture_output=True, text=True, check=False, cwd="/")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[:3] == ["words list words", "words ['list.csv']", "list"]
        assert lines[3:7] == ["a w", "a w", "(7,)", "True"]
        (name,) = home_of(eggs)
        cached, loader = lines[7].split(" ", 1)
        assert cached.startswith(str(eggs / HOME / name / "scrapyd_dist/__pycache__"))
        assert Path(cached).is_file()
        assert "SourceFileLoader" in loader

    def test_where_nothing_can_be_unpacked_the_zip_is_used(
        self, job: list[str], eggs: Path, temporary: Path
    ) -> None:
        for parent in (eggs, temporary):
            (parent / HOME).touch()
        # This project's settings need the folder.
        done = subprocess.run(job, capture_output=True, text=True, check=False)
        assert "NotADirectoryError" in done.stderr
        root = eggs.parent / "project"
        (root / "shop/settings.py").write_text("")
        egg = build(root, "shop.settings")
        (eggs / "v1.egg").write_bytes(egg.data)
        job[-1] = job[-1].replace(job[-1].partition("_sdist_boot_")[2][:12], egg.content_hash)
        job[-1] += f"\nprint(scrapyd_dist.payload.__file__)\nprint(settings.{ZIPPED})"
        done = subprocess.run(job, capture_output=True, text=True, check=True)
        file, problem = done.stdout.splitlines()
        assert file.startswith(str(eggs / "v1.egg/"))
        assert problem.count(f"{HOME} is no folder that this user alone can use") == 2

    def test_that_is_written_to_the_log_once(self, caplog: pytest.LogCaptureFixture) -> None:
        assert boot.ZIPPED == ZIPPED
        with caplog.at_level(logging.WARNING):
            Addon().update_settings(
                Settings({ZIPPED: "the disk is full", "DISTRIBUTED_ENABLED": False})
            )
        (record,) = caplog.records
        assert record.getMessage().startswith("The egg of this job could not be unpacked")
        assert record.getMessage().endswith("finds none: the disk is full.")


class TestSharedFolder:
    def test_is_the_same_for_all_jobs_of_a_version_and_only_its_owners(self, eggs: Path) -> None:
        egg = write_egg(eggs / "v1.egg")
        folders = {run(f"print(egg_folder.unpack_egg({egg!r}))") for _ in range(2)} | {
            str(unpack_egg(egg))
        }
        assert len(folders) == 1
        folder = Path(folders.pop())
        assert folder.parent == eggs / HOME
        assert folder.name.startswith("v1-")
        assert (folder / "shop/data.csv").read_bytes() == b"a,b\n"
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700

    def test_jobs_that_start_at_once(self, eggs: Path) -> None:
        egg = write_egg(
            eggs / "v1.egg", {f"shop/{number}.txt": b"x" * 1000 for number in range(200)}
        )
        code = f"import sys; sys.path.insert(0, {DEPLOY!r})\nimport egg_folder, os; from pathlib import PosixPath\n"
        code += f"input(); print(len(list((egg_folder.unpack_egg({egg!r}) / 'shop').iterdir())))"
        command = [sys.executable, "-I", "-c", code]
        jobs = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(5)]
        for job in jobs:
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
        assert {job.communicate()[0] for job in jobs} == {"200\n"}
        assert len(home_of(eggs)) == 1

    def test_a_job_that_is_killed_in_the_middle_leaves_nothing_that_is_used(
        self, eggs: Path
    ) -> None:
        egg = write_egg(eggs / "v1.egg")
        code = "write = egg_folder._write\n"
        code += "egg_folder._write = lambda *a: (write(*a), os.kill(os.getpid(), 9))\n"
        with pytest.raises(subprocess.CalledProcessError) as error:
            run(f"{code}egg_folder.unpack_egg({egg!r})")
        assert error.value.returncode == -signal.SIGKILL
        (half,) = home_of(eggs)
        age(eggs / HOME / half)
        folder = unpack_egg(egg)
        assert (folder / "shop/data.csv").is_file()
        assert home_of(eggs) == [folder.name]

    def test_after_an_error_nothing_is_left(
        self, eggs: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        egg = write_egg(eggs / "v1.egg")

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(egg_folder, "_write", full)
        with pytest.raises(NotUnpacked, match="No space left"):
            unpack_egg(egg)
        assert home_of(eggs) == home_of(temporary) == []

    def test_an_egg_that_is_replaced_meanwhile(
        self, eggs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        egg = write_egg(eggs / "v1.egg")
        names = iter(["first", "second", "third"])
        monkeypatch.setattr(egg_folder, "_name_of", lambda _: next(names))
        assert "temporary" in str(unpack_egg(egg))
        assert home_of(eggs) == []

    def test_an_unpacked_egg_stays_where_it_is(self, eggs: Path) -> None:
        assert unpack_egg(eggs) == eggs


class TestRemoval:
    @pytest.mark.parametrize("change", ["deleted", "replaced", "machine started again"])
    def test_the_next_start_removes_what_no_egg_has(
        self, eggs: Path, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other, egg = write_egg(eggs / "v1.egg"), write_egg(eggs / "v2.egg")
        folder = Path(run(f"print(egg_folder.unpack_egg({other!r}))"))
        age(folder)
        run(f"print(egg_folder.unpack_egg({egg!r}))")
        assert folder.is_dir()
        if change == "deleted":
            other.unlink()
        elif change == "replaced":
            write_egg(eggs / "v1.egg", {"shop/__init__.py": b"new = True\n"})
        else:
            (tmp_path / "boot_id").write_text("another")
            monkeypatch.setattr(egg_folder, "BOOT_ID", tmp_path / "boot_id")
        unpack_egg(egg)
        assert not folder.is_dir()

    def test_not_while_a_job_runs_from_it(self, eggs: Path) -> None:
        old, egg = write_egg(eggs / "v1.egg"), write_egg(eggs / "v2.egg")
        code = f"import sys; sys.path.insert(0, {DEPLOY!r})\nimport egg_folder; from pathlib import PosixPath\n"
        code += f"print(egg_folder.unpack_egg({old!r}), flush=True); input()"
        job = subprocess.Popen([sys.executable, "-I", "-c", code], stdin=-1, stdout=-1, text=True)
        assert job.stdout is not None
        folder = Path(job.stdout.readline().strip())
        old.unlink()
        age(folder)
        run(f"egg_folder.unpack_egg({egg!r})")
        assert folder.is_dir()
        job.communicate("\n")
        age(folder)
        run(f"egg_folder.unpack_egg({egg!r})")
        assert not folder.is_dir()

    def test_not_while_it_may_be_in_the_making(self, eggs: Path) -> None:
        egg = write_egg(eggs / "v1.egg")
        (eggs / HOME).mkdir(0o700)
        for name in ("new-made", "new-killed"):
            (eggs / HOME / name).mkdir()
        age(eggs / HOME / "new-killed")
        unpack_egg(egg)
        assert [name for name in home_of(eggs) if name.startswith("new-")] == ["new-made"]

    def test_a_folder_that_is_being_removed_is_not_used(self, eggs: Path) -> None:
        egg = write_egg(eggs / "v1.egg")
        folder = Path(run(f"print(egg_folder.unpack_egg({egg!r}))"))
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert "temporary" in run(f"print(egg_folder.unpack_egg({egg!r}))")
        os.close(descriptor)


class TestUntrustedPlaces:
    """What another user can have put there is not used; the temporary folder is next."""

    def plant(self, home: Path, kind: str, tmp_path: Path) -> None:
        (tmp_path / "theirs").mkdir(0o700, exist_ok=True)
        if kind == "link":
            home.symlink_to(tmp_path / "theirs")
        elif kind == "file":
            home.touch()
        else:
            home.mkdir(0o777)
            home.chmod(0o777 if kind == "open to all" else 0o700)
        if kind == "another user's":
            os.chown(home, 12345, 12345)

    @pytest.mark.parametrize("kind", ["link", "file", "open to all", "another user's"])
    def test_planted_folders(self, eggs: Path, temporary: Path, tmp_path: Path, kind: str) -> None:
        if kind == "another user's" and os.geteuid() != 0:
            pytest.skip("only root can give a folder to another user")
        egg = write_egg(eggs / "v1.egg")
        self.plant(eggs / HOME, kind, tmp_path)
        code = f"folder = egg_folder.unpack_egg({egg!r}); print(folder, list((folder / 'shop').iterdir()))"
        assert run(code).startswith(f"{temporary / HOME}/new-")
        assert home_of(temporary) == []  # a process removes its own folder
        shutil.rmtree(temporary / HOME)
        self.plant(temporary / HOME, kind, tmp_path)
        with pytest.raises(NotUnpacked, match="this user alone"):
            unpack_egg(egg)
        assert list((tmp_path / "theirs").iterdir()) == []

    def test_a_folder_above_in_which_anyone_can_rename(self, eggs: Path, temporary: Path) -> None:
        egg = write_egg(eggs / "v1.egg")
        for folder in (eggs, temporary):
            folder.chmod(0o777)
        with pytest.raises(NotUnpacked, match="every user can replace"):
            unpack_egg(egg)
        temporary.chmod(0o1777)
        assert temporary in unpack_egg(egg).parents


class TestHostileEggs:
    @pytest.mark.parametrize(
        "name",
        ["../x", "shop/../../x", "/x", "shop//x", "./x", "..\\x", "shop/..", "shop/../", "a/./b"],
    )
    def test_names_that_lead_out(self, eggs: Path, temporary: Path, name: str) -> None:
        egg = write_egg(eggs / "v1.egg", {"shop/__init__.py": b"", name: b"evil"})
        with pytest.raises(NotUnpacked, match="may lead out of it"):
            unpack_egg(egg)
        assert home_of(eggs) == home_of(temporary) == []
        assert sorted(path.name for path in eggs.iterdir()) == [HOME, "v1.egg"]

    def test_links(self, eggs: Path) -> None:
        egg = write_egg(eggs / "v1.egg", links=["shop/link"])
        with pytest.raises(NotUnpacked, match="shop/link"):
            unpack_egg(egg)

    def test_two_entries_of_one_name(self, eggs: Path) -> None:
        egg = write_egg(eggs / "v1.egg")
        with zipfile.ZipFile(egg, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("shop/data.csv", b"other")
        with pytest.raises(NotUnpacked, match="File exists"):
            unpack_egg(egg)

    def test_damaged_files(self, eggs: Path) -> None:
        content = write_egg(eggs / "v1.egg").read_bytes()
        for damaged in (b"", content[: len(content) // 2], content.replace(b"a,b", b"a;b")):
            (eggs / "v1.egg").write_bytes(damaged)
            with pytest.raises(NotUnpacked):
                unpack_egg(eggs / "v1.egg")

    def test_byte_code(self, eggs: Path) -> None:
        files = {
            "a.py": b"",
            "a.pyc": MAGIC + b"a",
            "b.py": b"",
            "b.pyc": b"none",
            "only.pyc": b"c",
        }
        folder = unpack_egg(write_egg(eggs / "v1.egg", files))
        cached = f"__pycache__/a.{sys.implementation.cache_tag}.pyc"
        there = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        assert there == {"a.py", "b.py", cached, "only.pyc"}


def test_the_folder_that_is_there_costs_a_start_little(eggs: Path) -> None:
    egg = io.BytesIO()
    with zipfile.ZipFile(egg, "w") as archive:
        for number in range(300):
            archive.writestr(f"shop/{number}.py", b"")
    (eggs / "v1.egg").write_bytes(egg.getvalue())
    unpack_egg(eggs / "v1.egg")
    start = time.process_time()
    for _ in range(20):
        unpack_egg(eggs / "v1.egg")
    assert (time.process_time() - start) / 20 < 0.02
