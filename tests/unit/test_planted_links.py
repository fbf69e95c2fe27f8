"""Links that another user has planted where files are written: none is followed; what they lead to stays as it is."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from rig.commands import run_here
from scrapyd_dist.cli.crawls.demo import MARK

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items.download import copy_home
from scrapyd_dist.items.json_lines import Items
from scrapyd_dist.items.merging import ItemOutput, OutputNotWritten, merge
from scrapyd_dist.items.sink import FolderSink
from scrapyd_dist.whole_files import open_growing, replacing

#: the user who plants
OTHER = 54321
SECRET = b"a file of the user who writes\n"
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user")


class Place:
    """A folder in which all may write, and a file of ours elsewhere that shall stay as it is."""

    def __init__(self, root: Path) -> None:
        self.folder, self.secret = root / "shared", root / "mine" / "secret"
        self.secret.parent.mkdir()
        self.secret.write_bytes(SECRET)
        self.folder.mkdir()
        self.folder.chmod(0o777)

    def plant(self, name: str, to: Path | None = None) -> None:
        (self.folder / name).symlink_to(to or self.secret)
        os.chown(self.folder / name, OTHER, OTHER, follow_symlinks=False)

    def assert_unharmed(self) -> None:
        assert self.secret.read_bytes() == SECRET
        assert [path.name for path in self.secret.parent.iterdir()] == ["secret"]
        told = [path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()]
        assert all(SECRET not in path.read_bytes() for path in told)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    it = Place(tmp_path)
    yield it
    it.assert_unharmed()


def write_merged(place: Place) -> None:
    part = place.secret.parent.parent / "part.jl"
    part.write_bytes(b'{"n": 1}\n')
    merge(Items([part]), [ItemOutput.named(place.folder / "out.jl")])


def add_merged(place: Place) -> None:
    part = place.secret.parent.parent / "part.jl"
    part.write_bytes(b'{"n": 1}\n')
    merge(Items([part]), [ItemOutput.named(place.folder / "out.jl", overwrite=False)])


def deliver(place: Place) -> None:
    FolderSink(place.folder).write("out.jl", b'{"n": 1}\n')


def bring_home(place: Place) -> None:
    part = place.secret.parent.parent / "part.jl"
    part.write_bytes(b'{"n": 1}\n')
    copy_home(part, place.folder / "out.jl")


def pull(place: Place) -> None:
    growing = place.folder / "out.jl.part"
    with open_growing(growing) as file:
        file.write(b'{"n": 1}\n')
    growing.replace(place.folder / "out.jl")


WRITERS: list[Callable[[Place], None]] = [write_merged, add_merged, deliver, bring_home, pull]


@two_users
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", [".out.jl.part", "out.jl.part", "out.jl"])
def test_no_planted_link_is_written_through(
    place: Place, writer: Callable[[Place], None], name: str
) -> None:
    place.plant(name)
    with suppress(OSError, OutputNotWritten):
        writer(place)
    if not (writer is add_merged and name == "out.jl"):  # what it should add to is not ours
        assert not (place.folder / "out.jl").is_symlink()
        assert (place.folder / "out.jl").read_bytes() == b'{"n": 1}\n'


@two_users
@pytest.mark.parametrize("deeper", ["inner", "inner/more/still"])
@pytest.mark.parametrize("writer", WRITERS)
def test_no_planted_folder_is_written_into(
    tmp_path: Path, writer: Callable[[Place], None], deeper: str
) -> None:
    place = Place(tmp_path)
    place.plant("inner", place.secret.parent)
    place.folder = place.folder / deeper
    with pytest.raises((OSError, OutputNotWritten), match="a link that another user has made"):
        writer(place)
    assert [path.name for path in place.secret.parent.iterdir()] == ["secret"]


@two_users
def test_a_file_of_ours_that_got_a_second_name_is_not_added_to(place: Place) -> None:
    os.link(place.secret, place.folder / "out.jl.part")
    pull(place)


@two_users
def test_a_link_of_another_user_in_a_folder_that_only_they_write_is_theirs_to_make(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home" / "out").symlink_to(tmp_path / "data")
    for path in (tmp_path / "home", tmp_path / "home" / "out"):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    FolderSink(tmp_path / "home" / "out").write("a", b"x")
    assert (tmp_path / "data" / "a").read_bytes() == b"x"


def test_a_link_of_one_s_own_is_followed_to_a_folder_and_added_to(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "out.jl").write_bytes(b'{"n": 0}\n')
    (tmp_path / "there").symlink_to(tmp_path / "data")
    (tmp_path / "part.jl").write_bytes(b'{"n": 1}\n')
    merge(
        Items([tmp_path / "part.jl"]),
        [ItemOutput.named(tmp_path / "there" / "out.jl", overwrite=False)],
    )
    assert (tmp_path / "data" / "out.jl").read_bytes() == b'{"n": 0}\n{"n": 1}\n'


@two_users
@pytest.mark.parametrize("name", ["sdist.prom", ".sdist.prom.part"])
def test_a_textfile_is_a_fresh_file(place: Place, tmp_path: Path, name: str) -> None:
    place.plant(name)
    project = tmp_path / "project"
    project.mkdir()
    (project / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    words = ("nodes", "metrics", "--textfile", str(place.folder / "sdist.prom"))
    run_here(words, cwd=project, home=tmp_path / "home").expect(0)
    assert (place.folder / "sdist.prom").stat().st_mode & 0o777 == 0o644


@two_users
def test_the_demo_runs_no_project_that_another_user_has_made(place: Place, tmp_path: Path) -> None:
    (place.folder / "sdist-demo").mkdir()
    (place.folder / "sdist-demo" / MARK).touch()
    os.chown(place.folder / "sdist-demo", OTHER, OTHER)
    done = run_here(
        ("demo", "--dir", str(place.folder / "sdist-demo")), cwd=tmp_path, home=tmp_path / "home"
    )
    done.expect(2, "belongs to 54321", "sdist demo --dir NAME")


def test_what_a_killed_process_left_is_removed_and_what_another_one_writes_is_left_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / ".a.part").write_bytes(b"left")
    with replacing(tmp_path / "a") as first:
        first.write(b"1")
        with replacing(tmp_path / "a") as second:
            second.write(b"2")
        assert (tmp_path / "a").read_bytes() == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"1"


def test_nothing_is_left_of_a_file_that_was_not_written_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ConfigError), replacing(tmp_path / "a") as file:
        file.write(b"1")
        raise ConfigError("")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]
