"""What is named and not there is exit code 4, wherever it is typed; lists have their names, and lines, for scripts."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from rig.commands import Result

from scrapyd_dist.batches import Crawl
from scrapyd_dist.store import open_store

Run = Callable[..., Result]
CFG = "[settings]\ndefault = shop.settings\n[deploy:web1]\nurl = http://127.0.0.1:1/\nproject = shop\n"
UNKNOWN = """
watch nosuch | status nosuch | resume nosuch | report nosuch | pause nosuch
retry nosuch | crawls show nosuch | crawls show nosuch --batches | crawls show nosuch --misses | crawls clean nosuch -y
frontier count nosuch | frontier consume easy nosuch | frontier dump nosuch p
strategy status nosuch | items merge nosuch -o x.jl | items tail nosuch | nodes --node nosuch | nodes drain nosuch
nodes resume nosuch | nodes remove nosuch | nodes api nosuch listjobs | doctor nosuch | deploy nosuch | jobs -t nosuch
jobs schedule easy -t nosuch | stop nosuch | code versions -t nosuch | code versions --projects -t nosuch
"""


@pytest.fixture
def _stored(root: Path) -> None:
    (root / "scrapy.cfg").write_text(CFG, "utf-8")
    (root / ".sdist").mkdir()
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.add_crawl(Crawl(id="easy-1", project="shop", spider="easy", created=1.0))
        store.add_crawl(Crawl(id="easy-2", project="shop", spider="easy", created=2.0))


@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize(
    "line", [line.strip() for line in UNKNOWN.replace("\n", "|").split("|") if line.strip()]
)
def test_what_is_not_there_is_exit_code_4(sdist: Run, line: str) -> None:
    done = sdist(*line.split()).expect(4)
    assert (done.out, done.err.count("\n")) == ("", 1)


@pytest.fixture
def _more(_stored: None, root: Path) -> None:
    """A frontier besides."""
    with closing(open_store(root / ".sdist" / "store.db")) as store:
        store.add_crawl(Crawl(id="shop", project="shop", spider="", created=0.0, kind="frontier"))


#: what is typed -> what was meant
MEANT = {
    "watch esay-1": "easy-1",
    "status easy": "easy-2",
    "pause esay-1": "easy-1",
    "stop esay-1": "easy-1",
    "crawls clean esay-1 -y": "easy-1",
    "status web1": "`sdist nodes --node web1`",
    "nodes drain wbe1": "web1",
    "crawls rm": "'crawls clean'",
    "crawls easy-1": "'crawls show easy-1'",
    "nodes stop": "'nodes down' or 'nodes drain'",
    "nodes stop local3": "'nodes down' or 'nodes drain'",
    "nodes web1": "'nodes --node web1'",
    "nodes drian": "'nodes drain'",
    "nodes undrain web1": "'nodes resume'",
    "cancel.json": "'jobs cancel'",
    "daemonstatus": "'nodes'",
    "listjobs": "'jobs'",
    "code delversion": "'nodes api NODE delversion project=NAME version=NAME'",
    "items easy-1": "'items pull easy-1'",
    "items export x": "'items pull' or 'items merge'",
    "jobs drain web1": "'nodes drain'",
    "frontier shop": "'frontier count shop'",
    "easy-1": "'status easy-1'",
    "kill x": "'stop'",
    "rm x": "'crawls clean', 'nodes remove', 'code prune' or 'frontier delete'",
    "wtach": "'watch'",
    "crawls --lable x": "--label",
    "jobs --state faild": "failed",
    "completion bsh": "bash",
}


@pytest.mark.usefixtures("_more")
@pytest.mark.parametrize("line", MEANT)
def test_a_wrong_word_is_answered_with_what_was_meant(sdist: Run, line: str) -> None:
    done = sdist(*line.split()).expect(None, f" Did you mean {MEANT[line]}?")
    assert done.code in {2, 4}
    assert (done.out, done.err.count("\n"), done.err.count("?")) == ("", 1, 1)


@pytest.mark.usefixtures("_stored")
def test_local_nodes_are_stopped_all_at_once(sdist: Run) -> None:
    refused = sdist("nodes", "down", "local3").expect(2, "stops all local nodes")
    assert "sdist nodes drain" in refused.err
    sdist("nodes", "up", "3", "4").expect(2, "unexpected extra argument")


@pytest.mark.usefixtures("_stored")
def test_a_wrong_name_of_a_node_that_was_added(sdist: Run) -> None:
    sdist("nodes", "add", "127.0.0.1:2", "--name", "spare").expect(5)
    sdist("nodes", "remove", "spra").expect(4, "Did you mean spare?")


@pytest.mark.usefixtures("_stored")
@pytest.mark.parametrize("line", ["nosuch", "crawls nosuch", "crawls --zzz", "status zzz"])
def test_a_word_that_is_like_none_has_no_question(sdist: Run, line: str) -> None:
    assert "?" not in sdist(*line.split()).expect(None, "There is no ").err


@pytest.mark.usefixtures("_stored")
def test_the_environment_names_nodes_and_the_option_goes_before_it(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDIST_NODES", "127.0.0.1:2 web1")
    named = sdist("nodes", "-o", "names").expect(5).out.split()
    assert named == ["web1", "127.0.0.1:2"]
    assert sdist("nodes", "-o", "names", "-t", "127.0.0.1:3").expect(5).out.split() == [
        "127.0.0.1:3"
    ]
    monkeypatch.setenv("SDIST_NODES", "nosuch")
    for words in (["nodes"], ["deploy", "--all"], ["code", "rollback"], ["jobs"]):
        sdist(*words).expect(4, "nosuch")


@pytest.mark.usefixtures("_stored")
def test_configured_nodes_are_listed_without_asking_them(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = sdist("nodes", "--offline", "--json").expect(0).json()["nodes"]
    assert [sorted(row) for row in listed] == [["name", "project", "url"]] * len(listed)
    shown = sdist("targets").expect(0).out.splitlines()
    assert [line.split() for line in shown] == [[row["name"], row["url"]] for row in listed]
    assert sdist("nodes", "--offline", "-t", "web*", "-o", "names") == (0, "web1\n", "")
    sdist("nodes", "--offline", "-t", "nosuch").expect(4, "nosuch")
    monkeypatch.setenv("SDIST_NODES", "127.0.0.1:2")
    assert sdist("nodes", "--offline", "-o", "names") == (0, "127.0.0.1:2\n", "")


@pytest.mark.usefixtures("_stored")
def test_a_list_for_a_script_has_a_line_for_each(sdist: Run) -> None:
    assert sdist("crawls", "-o", "names") == (0, "easy-2\neasy-1\n", "")
    lines = sdist("crawls", "-o", "lines").expect(0).out.splitlines()
    assert [json.loads(line)["crawl"] for line in lines] == ["easy-2", "easy-1"]
    assert sdist("crawls", "-o", "json") == sdist("crawls", "--json")
    for name in ("frontier", "strategy"):
        assert sdist(name, "-o", "names") == sdist(name, "-o", "lines") == (0, "", "")


@pytest.mark.usefixtures("_stored")
def test_colours_come_where_they_are_forced_and_go_where_they_are_not_wanted(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b" not in sdist("nodes").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31mdown" in sdist("nodes").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in sdist("nodes").out
