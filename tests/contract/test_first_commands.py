"""The first command of a project on a store: what it writes is signed with the key that the project keeps."""

from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import Result, run_here
from scrapyd_dist.cli.context import Context

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import state_dir
from scrapyd_dist.keys import known_key, state_key
from scrapyd_dist.nodes import Node, NodeRecord
from scrapyd_dist.store import open_store

CFG = "[settings]\ndefault = shop.settings\n[deploy]\nproject = shop\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "scrapy.cfg").write_text(CFG)
    (folder / "shop").mkdir()
    for name, text in (("__init__", ""), ("settings", "BOT_NAME = 'shop'\n")):
        (folder / "shop" / f"{name}.py").write_text(text)
    (folder / "urls.txt").write_text("http://a/1\n")
    return folder


def run(project: Path, where: str, *words: str) -> Result:
    return run_here(words, cwd=project, home=project.parent / "home", env={"SDIST_STORE": where})


def test_a_node_that_is_added_first_of_all_is_believed_afterwards(
    project: Path, where: str
) -> None:
    run(project, where, "nodes", "add", "127.0.0.1:1", "--name", "spare").expect(
        5, "It is added all the same"
    )
    seen = run(project, where, "nodes", "--json").expect(5)
    assert "not believed" not in seen.err
    assert [(node["name"], node["url"]) for node in seen.json()["nodes"]] == [
        ("spare", "http://127.0.0.1:1")
    ]
    run(project, where, "nodes", "remove", "spare").expect(0)


@pytest.mark.parametrize(
    "words",
    [
        ("frontier", "add", "shop", "urls.txt"), ("nodes", "drain", "web1:1", "--no-wait"),
        ("throttle", "set", "a.com", "--hits", "5", "--window", "5"),
    ],
)  # fmt: skip
def test_what_any_first_command_keeps_is_believed_afterwards(
    project: Path, where: str, words: tuple[str, ...]
) -> None:
    run(project, where, *words).expect(None)
    key = known_key(project / ".sdist")
    assert key is not None
    with closing(open_store(where, key=key)) as store:
        found: list[Crawl | NodeRecord] = [*store.crawls(), *store.nodes()]
        assert found or store.rules().rules
        assert [crawl.foreign for crawl in store.crawls()] == ["" for _ in store.crawls()]


def test_a_store_that_was_looked_at_first_is_written_with_the_project_s_key(
    project: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDIST_STORE", where)
    context = Context(project)
    assert context.added == ()
    context.new_store.update_node("spare", url="http://spare:6800")
    added: tuple[Node, ...] = context.added
    assert [one.name for one in added] == ["spare"]
    context.close()
    with closing(open_store(where, key=state_key(state_dir(project)))) as store:
        assert [node.url for node in store.nodes()] == ["http://spare:6800"]


def test_a_removed_node_that_is_put_back_gets_nothing(project: Path, where: str) -> None:
    run(project, where, "nodes", "add", "127.0.0.1:1", "--name", "spare").expect(5)
    key = known_key(project / ".sdist")
    with closing(open_store(where, key=key)) as store:
        (old,) = store.nodes()
        run(project, where, "nodes", "remove", "spare").expect(0)
        store.update_node("spare", url=old.url, changed=old.changed)  # as it was signed
        assert store.nodes() == [old]
    seen = run(project, where, "nodes", "--json", "--node", "127.0.0.1:2").expect(5)
    assert [node["name"] for node in seen.json()["nodes"]] == ["127.0.0.1:2"]
    run(project, where, "nodes", "remove", "spare").expect(
        4, "There is no node 'spare' that was added"
    )
    # The person who adds it again is believed, also where the clock was put back.
    run(project, where, "nodes", "add", "127.0.0.1:1", "--name", "spare").expect(5)
    run(project, where, "nodes", "remove", "spare").expect(0)
