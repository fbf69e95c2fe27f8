"""Files that another user could write are not believed: a store, a key, the state folder."""

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rig.commands import run_here

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.config import state_dir, state_folder
from scrapyd_dist.errors import ConfigError, NoPlaceForStore
from scrapyd_dist.keys import known_key, state_key
from scrapyd_dist.ownership import fault_of_file, fault_of_folder
from scrapyd_dist.store import open_store

#: a user who owns nothing here
OTHER = 54321
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def test_what_this_user_made_is_believed(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "store.db"
    open_store(store).close()
    open_store(store).close()
    key = state_key(state_dir(tmp_path))
    assert known_key(state_folder(tmp_path)) == key
    assert (fault_of_file(store), fault_of_folder(tmp_path)) == ("", "")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_what_is_made_here_is_for_its_owner_only_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        open_store(tmp_path / "one" / "store.db").close()
        state_key(state_dir(tmp_path))
        open_store(tmp_path / ".sdist" / "store.db").close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("one", ".sdist")] == [
        0o700,
        0o700,
    ]
    assert known_key(state_folder(tmp_path))


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o722])
def test_a_folder_that_all_may_write_holds_no_store(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(NoPlaceForStore, match=r"others may write to the folder .*shared") as caught:
        open_store(folder / "store.db")
    assert not [*folder.iterdir()]
    # No user is told to forbid /tmp to all others.
    assert ("chmod go-w" in str(caught.value)) is not bool(mode & stat.S_ISVTX)


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_a_file_that_all_may_write_is_no_store(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "store.db"
    open_store(path).close()
    beside = tmp_path / f"store.db{suffix}"
    beside.touch()
    beside.chmod(0o666)
    with pytest.raises(NoPlaceForStore, match=r"others may write to the file .*chmod go-w"):
        open_store(path)


@two_users
@pytest.mark.parametrize("whose", ["store.db", "store.db-wal", "."])
def test_a_store_of_another_user_is_refused_with_the_remedy(tmp_path: Path, whose: str) -> None:
    folder = tmp_path / "place"
    open_store(folder / "store.db").close()
    (folder / "store.db-wal").touch()
    os.chown(folder / whose, OTHER, OTHER)
    with pytest.raises(
        NoPlaceForStore, match=rf"belongs to {OTHER}, and this is run by root.*chown root"
    ):
        open_store(folder / "store.db")
    # The jobs of a Scrapyd that root runs reach the store of the user who started the crawl.
    open_store(folder / "store.db", durable=False, owned=False).close()


@two_users
def test_links_that_another_user_has_planted_are_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "mine" / "store.db").close()
    (tmp_path / "store.db").symlink_to(tmp_path / "mine" / "store.db")
    open_store(tmp_path / "store.db").close()
    os.chown(tmp_path / "store.db", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(NoPlaceForStore, match=r"the link .* belongs to 54321"):
        open_store(tmp_path / "store.db")


@two_users
def test_a_link_to_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path / "theirs" / "store.db").close()
    os.chown(tmp_path / "theirs", OTHER, OTHER)
    (tmp_path / "store.db").symlink_to(tmp_path / "theirs" / "store.db")
    with pytest.raises(NoPlaceForStore, match=r"the folder .*theirs belongs to 54321"):
        open_store(tmp_path / "store.db")


@two_users
def test_the_group_of_this_user_alone_may_write_and_no_other_group(tmp_path: Path) -> None:
    folder = tmp_path / "place"
    open_store(folder / "store.db").close()
    folder.chmod(0o770)
    os.chown(folder, 0, OTHER)  # no user is in it
    open_store(folder / "store.db").close()
    os.chown(folder, 0, 1)
    with pytest.raises(NoPlaceForStore, match=r"others may write to the folder .*chmod go-w"):
        open_store(folder / "store.db")


@two_users
def test_root_s_files_are_believed_by_all_and_another_user_s_by_nobody_else() -> None:
    with TemporaryDirectory() as folder:  # pytest's own folders are for root only
        Path(folder).chmod(0o755)
        store = Path(folder) / "store.db"
        open_store(store).close()
        assert fault_as(OTHER, store) == ""
        os.chown(store, OTHER, OTHER)
        assert fault_as(OTHER, store) == ""
        assert f"belongs to {OTHER}, and this is run by {OTHER + 1}" in fault_as(OTHER + 1, store)


def fault_as(user: int, path: Path) -> str:
    """What a process of this user finds."""
    program = (
        "import os, sys; from pathlib import Path; from scrapyd_dist.ownership import fault_of_file\n"
        f"os.seteuid({user})\n"
        "print(fault_of_file(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@two_users
@pytest.mark.parametrize("whose", [".sdist", ".sdist/key"])
def test_a_state_folder_of_another_user_is_refused(tmp_path: Path, whose: str) -> None:
    state_key(state_dir(tmp_path))
    os.chown(tmp_path / whose, OTHER, OTHER)
    with pytest.raises(ConfigError, match="belongs to 54321, and this is run by root"):
        state_key(state_dir(tmp_path))
    with pytest.raises(ConfigError, match="belongs to 54321"):
        known_key(tmp_path / ".sdist")


@two_users
def test_a_crawl_that_another_user_put_there_runs_no_command(tmp_path: Path) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    settings = {"DISTRIBUTED_ON_FINISH": f"touch {tmp_path / 'ran'}"}
    options = {"settings": settings, "args": {}, "spider_settings": {}, "cwd": str(tmp_path)}
    crawl = Crawl(
        id="c", project="p", spider="s", state=CrawlState.STOPPED, created=1.0, options=options
    )
    with closing(
        open_store(tmp_path / ".sdist" / "store.db", key=state_key(state_dir(tmp_path)))
    ) as store:
        store.add_crawl(crawl)
    for path in (tmp_path / ".sdist", *(tmp_path / ".sdist").iterdir()):
        os.chown(path, OTHER, OTHER)
    run_here(["resume", "c"], cwd=tmp_path, home=tmp_path / "home").expect(2, "belongs to 54321")
    assert not (tmp_path / "ran").exists()


@two_users
@pytest.mark.parametrize(
    "words",
    [
        ("resume",), ("crawls",), ("nodes",), ("nodes", "down"), ("jobs",), ("deploy", "--all"), ("code", "rollback"),
        ("config",), ("throttle", "show"), ("frontier", "list"), ("nodes", "add", "web1"), ("crawls", "clean", "c"),
        ("crawl", "easy"), ("report",), ("watch",), ("doctor",),
    ],
)  # fmt: skip
def test_no_command_uses_a_state_folder_of_another_user(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    open_store(tmp_path / ".sdist" / "store.db").close()
    state_key(tmp_path / ".sdist")
    os.chown(tmp_path / ".sdist", OTHER, OTHER)
    done = run_here(words, cwd=tmp_path, home=tmp_path / "home")
    done.expect(2, "belongs to 54321")


def test_doctor_says_what_others_can_do_here(tmp_path: Path) -> None:
    (tmp_path / "scrapy.cfg").write_text(
        "[settings]\ndefault = shop.settings\n[deploy]\nurl = http://127.0.0.1:1\n"
    )
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    state_dir(tmp_path).chmod(0o755)
    home, env = tmp_path / "home", {"SDIST_STORE": str(tmp_path / "shared" / "store.db")}
    done = run_here(["doctor"], cwd=tmp_path, home=home, env=env).expect(1)
    assert (
        f"danger: this machine: store: others could write the store {env['SDIST_STORE']}"
        in done.out
    )
    assert f"chmod go-w {tmp_path / 'shared'}" in done.out
    assert f"chmod 700 {tmp_path / '.sdist'}" in done.out
    state_dir(tmp_path).chmod(0o700)
    assert "this machine" not in run_here(["doctor"], cwd=tmp_path, home=home).out
