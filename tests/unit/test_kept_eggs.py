"""The eggs in the state folder, the one that a rollback means, and the commit in a version's name."""

import os
import stat
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from rig.fixtures import MakeProject
from scrapyd_dist.cli.crawls.producer_process import KeptCode, kept_code
from scrapyd_dist.cli.nodes import version_list
from scrapyd_dist.deploy import kept_eggs as eggs
from scrapyd_dist.deploy.egg import Egg, build, pack, unpack, unpack_to
from scrapyd_dist.deploy.node_versions import NodeVersions
from scrapyd_dist.deploy.project_files import ProjectFiles, describe, is_dirty
from scrapyd_dist.middlewares.producer.crawl_code import TODAYS
from scrapyd_dist.middlewares.producer.preflight import notes_on

from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.code_versions import VersionSurvey
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.versions import version_name

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone.utc)
HASH = "0123456789ab"


def some_egg(word: str) -> Egg:
    return pack(shop_files({"shop/__init__.py": b"", "shop/settings.py": word.encode()}))


def shop_files(files: dict[str, bytes], key: bytes | None = None) -> ProjectFiles:
    info = {"EGG-INFO/PKG-INFO": b"Name: shop\nVersion: 0\n"}
    return ProjectFiles(settings_module="shop.settings", files=files, info=info, key=key)


def keep(state: Path, word: str, *, hour: int = 0, name: str = "") -> str:
    egg = some_egg(word)
    version = name or version_name(egg.content_hash, NOON + timedelta(hours=hour))
    eggs.save_egg(state, "shop", version, egg.data)
    return version


def test_a_crawl_finds_the_egg_that_was_deployed_under_another_name_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = (
        "[settings]\ndefault = shop.settings\n[deploy:n1]\nurl = http://n1/\nproject = shop_prod\n"
    )
    (tmp_path / "scrapy.cfg").write_text(text, "utf-8")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/settings.py").write_text("BOT_NAME = 'shop'\n", "utf-8")
    egg = some_egg("x")
    version = version_name(egg.content_hash, NOON)
    path = eggs.save_egg(tmp_path / ".sdist", "shop_prod", version, egg.data)
    assert kept_code(tmp_path, version) == KeptCode(version=version, egg=path)


def test_code_that_came_again_is_said_to_be_that_of_the_egg_with_its_first_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, word in (("r1", "a"), ("r2", "b")):
        keep(tmp_path, word, name=name)
        os.utime(eggs.folder_of(tmp_path, "shop") / f"{name}.egg", (1.0, 1.0))
    again = keep(tmp_path, "a", name=f"r2-z{version_name(some_egg('a').content_hash, NOON)}")
    entry = NodeVersions(node=Node.parse("web1"), project="shop", versions=("r1", "r2", again))
    kept = eggs.kept_eggs(tmp_path, "shop")
    survey = VersionSurvey(project="shop", entries=[entry], known={}, kept=kept)
    assert survey.first_names == {again: "r1"}
    version_list._show_versions(survey)
    assert f"{again} has the code of r1." in capsys.readouterr().err
    os.utime(eggs.folder_of(tmp_path, "shop") / "r1.egg")
    assert survey.first_names == {}, "r1 was sent after it, and may be other code on the nodes"


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (["{same}"], []),
        (["{same}", "{older}"], []),  # one node lags behind, and the code is what was deployed last
        (["r7"], []),
        (["{other}"], ["{other}", "a crawl runs that with --version {other}"]),
        (["{other}", "{same}"], ["{other}", "a crawl runs that with --version {other}"]),
        (
            ["1795871562-016771385889378"],
            ["1795871562-016771385889378", "its egg is not kept here"],
        ),
    ],
)
def test_what_was_deployed_last_is_told_where_it_is_other_code(
    tmp_path: Path, there: list[str], words: list[str]
) -> None:
    names = {
        "older": keep(tmp_path, "y"),
        "same": keep(tmp_path, "x", hour=1),
        "other": keep(tmp_path, "z", hour=2),
        "r7": keep(tmp_path, "x", name="r7"),
    }
    mine = version_name(some_egg("x").content_hash, NOON, for_crawl=True)
    on = {f"n{number}": (mine, name.format(**names)) for number, name in enumerate(there)}
    notes = notes_on(TODAYS, mine, on, eggs.all_eggs(tmp_path, "no", "shop"))
    assert len(notes) == bool(words)
    assert [word for word in words if word.format(**names) not in "".join(notes)] == []


def git(root: Path, *arguments: str) -> None:
    author = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "-c",
        "init.defaultBranch=main",
    ]
    subprocess.run(["git", *author, *arguments], cwd=root, check=True, capture_output=True)


class TestCommit:
    def test_number_of_commits_then_tag(self, tmp_path: Path) -> None:
        git(tmp_path, "init")
        for word in ("one", "two"):
            git(tmp_path, "commit", "--allow-empty", "-m", word)
        assert describe(tmp_path, "GIT") == "git-r2-main"
        git(tmp_path, "tag", "-m", "x", "v1.2")
        assert describe(tmp_path, "GIT") == "git-v1_2-main"

    def test_without_a_repository_or_git(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        for path in (os.environ["PATH"], str(tmp_path)):
            monkeypatch.setenv("PATH", path)
            assert not is_dirty(tmp_path)
            for kind in ("GIT", "HG"):
                with pytest.raises(ConfigError, match="knows no commit"):
                    describe(tmp_path, kind)

    def test_follows_the_work_tree(self, tmp_path: Path) -> None:
        shop = tmp_path / "shop"
        shop.mkdir()
        (shop / "settings.py").touch()
        git(tmp_path, "init")
        assert is_dirty(shop)
        git(shop, "add", ".")
        git(shop, "commit", "-m", "all")
        assert not is_dirty(shop)
        (tmp_path / "beside.txt").touch()
        assert not is_dirty(shop)
        (shop / "settings.py").write_text("A = 1\n")
        assert is_dirty(shop)


class TestKept:
    def test_newest_first_whatever_they_are_called(self, tmp_path: Path) -> None:
        first, last = keep(tmp_path, "a", hour=0), keep(tmp_path, "c", hour=2)
        keep(tmp_path, "b", name="1.10")
        moment = (NOON + timedelta(hours=1)).timestamp()
        os.utime(tmp_path / "eggs/shop/1_10.egg", (moment, moment))
        assert [egg.version for egg in eggs.kept_eggs(tmp_path, "shop")] == [last, "1_10", first]

    def test_the_content_of_a_given_name_is_read_from_the_egg(self, tmp_path: Path) -> None:
        keep(tmp_path, "a", name="1.10")
        (saved,), egg = eggs.kept_eggs(tmp_path, "shop"), some_egg("a")
        assert (saved.content_hash, saved.read().data) == (egg.content_hash, egg.data)
        # Under such a name a node may have other code by now.
        assert eggs.find_egg(tmp_path, "shop", egg.content_hash) is None

    def test_what_is_no_egg_of_ours_is_not_sent(self, tmp_path: Path) -> None:
        eggs.save_egg(tmp_path, "shop", "old", b"no zip")
        with pytest.raises(NothingMatched, match="no egg that this program has built"):
            eggs.kept_eggs(tmp_path, "shop")[0].read()

    def test_newest_with_this_content(self, tmp_path: Path) -> None:
        for hour, content in enumerate([HASH, "ff" * 6, HASH]):
            path = eggs.save_egg(
                tmp_path, "shop", version_name(content, NOON + timedelta(hours=hour)), b""
            )
        assert eggs.find_egg(tmp_path, "shop", HASH) == eggs.SavedEgg(version=path.stem, path=path)
        assert eggs.find_egg(tmp_path, "shop", "00" * 6) is None
        assert eggs.find_egg(tmp_path, "other", HASH) is None

    def test_only_the_last_ones_are_kept_and_only_the_owner_can_read_them(
        self, tmp_path: Path
    ) -> None:
        names = [
            version_name(HASH, NOON + timedelta(hours=hour)) for hour in range(eggs.KEPT_EGGS + 3)
        ]
        for name in names:
            path = eggs.save_egg(tmp_path, "shop", name, b"")
        assert sorted(path.stem for path in (tmp_path / "eggs/shop").iterdir()) == names[3:]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    @pytest.mark.parametrize("project", ["..", ".", "a/b", "../../x"])
    def test_a_projects_name_is_no_path(self, tmp_path: Path, project: str) -> None:
        path = eggs.save_egg(tmp_path, project, version_name(HASH, NOON), b"x")
        assert path.resolve().parent.parent == (tmp_path / "eggs").resolve()
        assert eggs.find_egg(tmp_path, project, HASH)


class TestChoose:
    @pytest.mark.parametrize(
        ("words", "current", "chosen"),
        # The second is the code of the last one again, and a rollback twice in a row comes back.
        [("abb", 2, 0), ("aba", 2, 1)],
    )
    def test_the_one_before_the_current(
        self, tmp_path: Path, words: str, current: int, chosen: int
    ) -> None:
        names = [keep(tmp_path, word, hour=hour) for hour, word in enumerate(words)]
        found = eggs.choose(eggs.kept_eggs(tmp_path, "shop"), None, names[current], folder=tmp_path)
        assert found.version == names[chosen]

    def test_versions_with_the_code_of_the_current_one_are_named(self, tmp_path: Path) -> None:
        names = [keep(tmp_path, word, hour=hour) for hour, word in enumerate("abb")]
        kept = eggs.kept_eggs(tmp_path, "shop")
        chosen = eggs.choose(kept, None, names[2], folder=tmp_path)
        assert chosen.version == names[0]
        assert eggs.list_same_code(kept, chosen, names[2]) == [names[1]]
        assert eggs.list_same_code(kept, kept[1], names[2]) == []

    def test_by_name_its_beginning_or_its_hash(self, tmp_path: Path) -> None:
        old = keep(tmp_path, "a", hour=0)
        keep(tmp_path, "b", hour=1)
        kept = eggs.kept_eggs(tmp_path, "shop")
        for wanted in (old, old[:14], some_egg("a").content_hash[:7]):
            assert eggs.choose(kept, wanted, None, folder=tmp_path).version == old

    def test_what_is_not_kept_or_not_clear(self, tmp_path: Path) -> None:
        for wanted in (None, "1.0"):
            with pytest.raises(NothingMatched, match="deploy --all"):
                eggs.choose([], wanted, None, folder=tmp_path)
        old = keep(tmp_path, "a", hour=0)
        with pytest.raises(NothingMatched, match=f"Kept are {old}"):
            eggs.choose(eggs.kept_eggs(tmp_path, "shop"), "1.0", None, folder=tmp_path)
        keep(tmp_path, "b", hour=1)
        with pytest.raises(NothingMatched, match="Give more of the name"):
            eggs.choose(eggs.kept_eggs(tmp_path, "shop"), "17951", None, folder=tmp_path)


class TestUnpacked:
    def test_what_was_packed_comes_out_again(self, tmp_path: Path) -> None:
        files = {
            "shop/__init__.py": b"",
            "shop/settings.py": b"a",
            "shop/data/x.csv": b"1",
            "redis/__init__.py": b"",
        }
        egg = pack(shop_files(files, key=b"k"))
        found = unpack(egg.data)
        assert (found.files, found.settings_module, found.key) == (files, "shop.settings", b"k")
        assert (pack(found), pack(found).data) == (egg, egg.data)
        unpack_to(found, tmp_path)
        del files["redis/__init__.py"]
        assert {
            str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
        } == files.keys()
        # The egg of what came out is the one that was packed.
        assert build(tmp_path, "shop.settings").content_hash == pack(shop_files(files)).content_hash

    def test_another_egg_is_refused(self, project: MakeProject) -> None:
        with pytest.raises(ConfigError, match="no worker half"):
            unpack(project(spiders={}).plain_egg())


def test_the_eggs_of_crawls_are_found_but_never_rolled_back_to(tmp_path: Path) -> None:
    deployed = keep(tmp_path, "a")
    crawls = version_name(some_egg("b").content_hash, NOON, for_crawl=True)
    eggs.write_egg(tmp_path / "crawls" / "easy-1", crawls, some_egg("b").data)
    assert [egg.version for egg in eggs.kept_eggs(tmp_path, "shop")] == [deployed]
    assert {egg.version for egg in eggs.all_eggs(tmp_path, "shop")} == {deployed, crawls}


class TestGivenEgg:
    """An egg from a file, of this program or of another."""

    def test_ours_keeps_its_hash(self, tmp_path: Path) -> None:
        egg = some_egg("word")
        (tmp_path / "x.egg").write_bytes(egg.data)
        given = eggs.read_egg(tmp_path / "x.egg")
        assert (given.data, given.content_hash) == (egg.data, egg.content_hash)

    def test_another_programs_gets_one_of_its_bytes(
        self, tmp_path: Path, project: MakeProject
    ) -> None:
        made = project()
        first = made.plain_egg()
        (made.package / "more.txt").touch()
        hashes = set()
        for content in (first, first, made.plain_egg()):
            (tmp_path / "x.egg").write_bytes(content)
            hashes.add(eggs.read_egg(tmp_path / "x.egg").content_hash)
        assert {len(one) for one in hashes} == {12}
        assert len(hashes) == 2

    @pytest.mark.parametrize("content", [b"", b"text", b"PK\5\6" + bytes(18)])
    def test_what_is_none(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.egg").write_bytes(content)
        with pytest.raises(ConfigError, match="is no egg"):
            eggs.read_egg(tmp_path / "x.egg")
