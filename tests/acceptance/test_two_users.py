"""A machine with two users: nothing that one of them has planted makes a command of the other one act."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rig.crawls import QUICK
from rig.fixtures import MakeProject, RunCommand, StartFleet, StartSite

from scrapyd_dist.batches import Crawl, CrawlState
from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import state_key
from scrapyd_dist.store import open_store

#: the other user
OTHER = 54321
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def give_away(folder: Path) -> None:
    """Make it the other user's, with all that is in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)


@two_users
@pytest.mark.promise("Files that another user can write are not used")
@pytest.mark.black_box
def test_a_planted_crawl_runs_no_command_and_a_planted_node_gets_no_code(
    project: MakeProject, run_cli: RunCommand, tmp_path: Path
) -> None:
    it = project()
    settings = {"DISTRIBUTED_ON_FINISH": f"touch {tmp_path / 'ran'}"}
    options = {"settings": settings, "args": {}, "spider_settings": {}, "cwd": str(it.path)}
    crawl = Crawl(
        id="c", project="demo", spider="s", state=CrawlState.STOPPED, created=1.0, options=options
    )
    with closing(
        open_store(it.path / ".sdist" / "store.db", key=state_key(state_dir(it.path)))
    ) as store:
        store.add_crawl(crawl)
        store.update_node("evil", url="http://127.0.0.1:1")
    give_away(it.path / ".sdist")
    for words in (("resume", "c"), ("deploy", "--all"), ("crawl", "easy"), ("doctor",)):
        done = run_cli(it, *words)
        done.expect(2, "belongs to 54321, and this is run by root", "chown root")
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder in which every user of the machine may write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def run_as_other(*words: str | Path) -> None:
    """Run a program as the other user."""
    subprocess.run(words, user=OTHER, group=OTHER, extra_groups=[], cwd="/", check=True)


@two_users
@pytest.mark.full
@pytest.mark.black_box
def test_links_that_another_user_plants_where_items_go_are_not_followed(
    project: MakeProject,
    run_cli: RunCommand,
    site: StartSite,
    fleet: StartFleet,
    shared_folder: Path,
    tmp_path: Path,
) -> None:
    settings = {**QUICK, "START_URL": site(12).start_url}
    it = project(nodes=fleet(1), settings=settings)
    secret = tmp_path / "secret"
    secret.write_text("a file of the user who crawls\n")
    merged, pulled, crawled = (shared_folder / name for name in ("merged.jl", "pulled", "new.jl"))
    pulled.mkdir()
    pulled.chmod(0o777)
    for output in (merged, crawled):
        run_as_other("ln", "-s", secret, output)
        run_as_other("ln", "-s", secret, output.with_name(f".{output.name}.part"))
    run_cli(it, "crawl", "easy", "--name", "c", "-O", crawled).expect(0)
    run_cli(it, "items", "merge", "c", "-O", merged).expect(0)
    for output in (merged, crawled):
        assert not output.is_symlink()
        assert len(output.read_text().splitlines()) == 12
    run_cli(it, "items", "pull", "c", "-d", tmp_path / "first").expect(0)
    files = [path for path in (tmp_path / "first").rglob("*.jl") if path.is_file()]
    assert files
    for file in files:
        again = pulled / file.relative_to(tmp_path / "first")
        run_as_other("mkdir", "-p", again.parent)
        run_as_other("ln", "-s", secret, again)
        run_as_other("ln", "-s", secret, again.with_name(f"{again.name}.part"))
    run_cli(it, "items", "pull", "c", "-d", pulled)
    assert secret.read_text() == "a file of the user who crawls\n"
