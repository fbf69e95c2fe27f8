"""Names of versions that somebody chose, and which kept egg a roll-back means."""

import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from scrapyd_dist.deploy.egg import Egg, build, pack
from scrapyd_dist.deploy.kept_eggs import all_eggs, describe, find_egg, kept_eggs, save_egg, write_egg
from scrapyd_dist.deploy.repacking import unpack
from scrapyd_dist.deploy.rollback import choose, egg_of

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.scrapyd.versions import hash_in, sanitised, version_name

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)


def some_egg(word: str) -> Egg:
    info = {"EGG-INFO/PKG-INFO": b"Name: shop\nVersion: 0\n"}
    return pack({"shop/__init__.py": b"", "shop/settings.py": word.encode()}, info, "shop.settings")


def keep(state: Path, word: str, *, hour: int = 0, name: str = "") -> str:
    egg = some_egg(word)
    version = name or version_name(egg.content_hash, NOON + timedelta(hours=hour))
    save_egg(state, "shop", version, egg.data)
    return version


@pytest.mark.parametrize(("name", "kept"), [("1.10", "1_10"), ("r9-master", "r9-master"), ("v 1/é", "v_1__")])
def test_scrapyd_lists_a_name_in_another_form(name: str, kept: str) -> None:
    assert sanitised(name) == kept


def test_a_label_stands_behind_the_hash_and_does_not_hide_it() -> None:
    name = version_name("0123456789ab", NOON, label="git-r10-main", dirty=True)
    assert name == "1795176000-001250999896491-git-r10-main-dev"
    assert hash_in(name) == "0123456789ab"
    assert sanitised(name) == name


class TestDescribe:
    @staticmethod
    def git(root: Path, *arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)

    def test_number_of_commits_then_tag(self, tmp_path: Path) -> None:
        self.git(tmp_path, "init")
        self.git(tmp_path, "commit", "--allow-empty", "-m", "one")
        self.git(tmp_path, "commit", "--allow-empty", "-m", "two")
        assert describe(tmp_path, "GIT") == "git-r2-main"
        self.git(tmp_path, "tag", "-m", "x", "v1.2")
        assert describe(tmp_path, "GIT") == "git-v1_2-main"

    @pytest.mark.parametrize("kind", ["GIT", "HG"])
    def test_without_a_commit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        with pytest.raises(ConfigError, match="knows no commit"):
            describe(tmp_path, kind)


class TestKept:
    def test_newest_first_whatever_they_are_called(self, tmp_path: Path) -> None:
        first, last = keep(tmp_path, "a", hour=0), keep(tmp_path, "c", hour=2)
        between = keep(tmp_path, "b", name="1.10")
        moment = (NOON + timedelta(hours=1)).timestamp()
        os.utime(tmp_path / "eggs/shop/1_10.egg", (moment, moment))
        assert between == "1.10"
        assert [egg.version for egg in kept_eggs(tmp_path, "shop")] == [last, "1_10", first]

    def test_the_content_of_a_given_name_is_read_from_the_egg(self, tmp_path: Path) -> None:
        keep(tmp_path, "a", name="1.10")
        (saved,) = kept_eggs(tmp_path, "shop")
        assert saved.content_hash == some_egg("a").content_hash
        assert egg_of(saved).data == some_egg("a").data
        # Under such a name a node may have other code by now.
        assert find_egg(tmp_path, "shop", some_egg("a").content_hash) is None

    def test_what_is_no_egg_of_ours_is_not_sent(self, tmp_path: Path) -> None:
        save_egg(tmp_path, "shop", "old", b"no zip")
        (saved,) = kept_eggs(tmp_path, "shop")
        with pytest.raises(NothingMatched, match="no egg that this program has built"):
            egg_of(saved)

    def test_pack_gives_what_build_gives(self, tmp_path: Path) -> None:
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop/__init__.py").write_bytes(b"")
        (tmp_path / "shop/settings.py").write_bytes(b"a")
        assert build(tmp_path, "shop.settings").content_hash == some_egg("a").content_hash


class TestChoose:
    def test_the_one_before_the_current(self, tmp_path: Path) -> None:
        old, _, new = keep(tmp_path, "a", hour=0), keep(tmp_path, "b", hour=1), keep(tmp_path, "b", hour=2)
        assert choose(kept_eggs(tmp_path, "shop"), None, new, folder=tmp_path).version == old

    def test_twice_comes_back(self, tmp_path: Path) -> None:
        keep(tmp_path, "a", hour=0)
        newer, again = keep(tmp_path, "b", hour=1), keep(tmp_path, "a", hour=2)
        assert choose(kept_eggs(tmp_path, "shop"), None, again, folder=tmp_path).version == newer

    def test_by_name_its_beginning_or_its_hash(self, tmp_path: Path) -> None:
        old = keep(tmp_path, "a", hour=0)
        keep(tmp_path, "b", hour=1)
        kept = kept_eggs(tmp_path, "shop")
        for wanted in (old, old[:14], some_egg("a").content_hash[:7]):
            assert choose(kept, wanted, None, folder=tmp_path).version == old

    @pytest.mark.parametrize("wanted", [None, "1.0"])
    def test_nothing_kept(self, tmp_path: Path, wanted: str | None) -> None:
        with pytest.raises(NothingMatched, match="deploy-all"):
            choose([], wanted, None, folder=tmp_path)

    def test_the_error_names_what_is_kept(self, tmp_path: Path) -> None:
        old = keep(tmp_path, "a")
        with pytest.raises(NothingMatched, match=f"Kept are {old}"):
            choose(kept_eggs(tmp_path, "shop"), "1.0", None, folder=tmp_path)

    def test_ambiguous(self, tmp_path: Path) -> None:
        keep(tmp_path, "a", hour=0)
        keep(tmp_path, "b", hour=1)
        with pytest.raises(NothingMatched, match="Give more of the name"):
            choose(kept_eggs(tmp_path, "shop"), "17951", None, folder=tmp_path)


class TestTakenApart:
    def test_what_was_packed_comes_out_again(self, tmp_path: Path) -> None:
        info = {"EGG-INFO/PKG-INFO": b"Name: shop\nVersion: 0\n"}
        files = {"shop/__init__.py": b"", "shop/settings.py": b"a", "shop/data/x.csv": b"1", "redis/__init__.py": b""}
        egg = pack(files, info, "shop.settings", key=b"k")
        taken = unpack(egg.data)
        assert (taken.files, taken.settings_module, taken.key) == (files, "shop.settings", b"k")
        assert taken.pack() == egg
        assert taken.pack().data == egg.data
        taken.write(tmp_path)
        names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
        assert names == {"shop/__init__.py", "shop/settings.py", "shop/data/x.csv"}

    def test_another_egg_is_refused(self) -> None:
        plain = pack({"shop/settings.py": b""}, {"EGG-INFO/PKG-INFO": b"Name: s\n"}, "shop.settings", worker_half=False)
        with pytest.raises(ConfigError, match="no worker half"):
            unpack(plain.data)


def test_the_eggs_of_crawls_are_found_but_never_rolled_back_to(tmp_path: Path) -> None:
    deployed = keep(tmp_path, "a")
    crawls = version_name(some_egg("b").content_hash, NOON, for_crawl=True)
    write_egg(tmp_path / "crawls" / "easy-1", crawls, some_egg("b").data)
    assert [egg.version for egg in kept_eggs(tmp_path, "shop")] == [deployed]
    assert {egg.version for egg in all_eggs(tmp_path, "shop")} == {deployed, crawls}
