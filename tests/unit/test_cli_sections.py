"""What `sdist init` writes, readable by us; no secret is shown; which store a command opens."""

import configparser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapyd_dist.cli.config_command import (
    ConfigFiles,
    invalid,
    masked,
    of_project,
    without_commands,
)
from scrapyd_dist.cli.init import appended, free_name, named_nodes, sort_out, variable

from scrapyd_dist.config import load, targets_of
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.nodes import Node


def parsed(text: str) -> tuple[Node, ...]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    return targets_of(parser, Path("/nowhere"))


@pytest.mark.parametrize(
    "before",
    [
        "[settings]\ndefault = a.settings\n",
        "# a comment\n[settings]\ndefault = a.settings",
        "",
        "[deploy]\r\n# x\r\n",
    ],
    ids=["usual", "no line end", "empty", "windows"],
)
def test_what_is_there_stays_and_what_is_added_is_read_back(before: str) -> None:
    wanted = named_nodes(["web1.example.com:6800", "https://me@web2/scrapyd/"], [], [])
    after = appended(before, wanted)
    assert after.startswith(before)
    assert ("\r\n" in after) == ("\r\n" in before)
    assert after.count("\n") == after.count("\r\n") or "\r\n" not in before
    first, second = parsed(after)
    assert (first.name, first.url, first.username) == ("web1", "http://web1.example.com:6800", None)
    assert (second.name, second.url, second.username) == ("web2", "https://web2/scrapyd", "me")
    assert second.password == "$SDIST_WEB2_PASSWORD"


def test_the_password_of_a_node_is_not_that_of_the_page() -> None:
    """SDIST_WEB_PASSWORD is what `sdist web` asks its visitors for."""
    names = ("web", "Web", "web1", "node-web")
    nodes = [Node.parse("http://me@web1:6800", name=name) for name in names]
    assert list(map(variable, nodes)) == [
        "SDIST_NODE_WEB_PASSWORD",
        "SDIST_NODE_WEB_PASSWORD",
        "SDIST_WEB1_PASSWORD",
        "SDIST_NODE_WEB_PASSWORD",
    ]


def test_signs_that_a_configuration_file_takes_for_its_own_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME_OF", "wrong")
    wanted = [replace(Node.parse("http://h:1/p%20q/$HOME_OF", name="a"), username="50%")]
    (node,) = parsed(appended("", wanted))
    assert node.url == "http://h:1/p%20q/%24HOME_OF"
    assert node.username == "50%"


def test_a_node_is_called_after_its_host_where_that_says_something_else_by_a_free_number() -> None:
    names = {"web1.example.com": "web1", "10.0.0.1": "node1", "http://[::1]:6800": "node1", "localhost": "node1",
             "taken.example.com": "node1"}  # fmt: skip
    assert {text: free_name(Node.parse(text), ["taken"]) for text in names} == names
    assert [one.name for one in named_nodes(["10.0.0.1", "10.0.0.2"], [], ["node1", "node3"])] == [
        "node2",
        "node4",
    ]


@pytest.mark.parametrize(
    ("texts", "names", "said"),
    [
        (["http://me:hush@web1"], [], "password"),
        (["web1"], ["a b"], "cannot name"),
        (["web1"], ["a]"], "cannot name"),
        (["web1", "web2"], ["same", "same"], "same name"),
        (["web1"], ["a", "b"], "--name"),
        (["ftp://web1"], [], "http"),
    ],
)
def test_what_cannot_be_a_target_is_refused(texts: list[str], names: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        named_nodes(texts, names, [])
    assert "hush" not in str(caught.value)


def test_a_node_that_is_there_is_left_out_and_a_name_is_not_given_twice() -> None:
    there = [Node.parse("http://web1:6800", name="old")]
    new, known = sort_out(named_nodes(["web1:6800", "web2:6800"], [], []), there)
    assert ([one.name for one in new], [one.name for one in known]) == (["web2"], ["web1"])
    with pytest.raises(ConfigError, match="another url"):
        sort_out(named_nodes(["web3:6800"], ["old"], []), there)
    with pytest.raises(ConfigError, match=r"already, as \[deploy:old\]"):
        sort_out(named_nodes(["web1:6800"], ["new"], []), there, ["new"])
    assert sort_out(named_nodes(["web1:6800"], ["old"], []), there, ["old"]) == ([], there)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("ftp://me:hush@host/a", "ftp://me:***@host/a"),
        ("redis://:hush@host:1/0", "redis://:***@host:1/0"),
        (["me:hush@host:6800", "web1"], ["me:***@host:6800", "web1"]),
        ("curl https://me:hush@h/ -H 'X: Bearer hush'", "curl https://me:***@h/ -H 'X: Bearer ***"),
        ("https://h/?token=hush&page=1", "https://h/?token=***&page=1"),
        ({"password": "hush", "category": "books"}, {"password": "***", "category": "books"}),
        (30, 30),
        (None, None),
        ("http://h/a@b", "http://h/a@b"),
    ],
)  # fmt: skip
def test_secrets_are_replaced(value: Any, shown: Any) -> None:
    assert masked(value) == shown


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="@"), min_size=3))
def test_no_password_of_a_url_is_ever_shown(password: str) -> None:
    assert f":{password}@" not in masked(f"ftp://me:{password}@host/") or password == "***"


def test_a_setting_that_no_crawl_would_take_is_named_and_one_that_may_hold_a_password_is_not_shown() -> (
    None
):
    settings: dict[str, list[Any]] = {
        "DISTRIBUTED_LEASE": [float("inf"), "project"], "DISTRIBUTED_NODES": [{"me:hush@web1": 1}, "project"],
        "DISTRIBUTED_SHARDS": ["20", "cmdline"], "DISTRIBUTED_STORE": ["", ""], "BOT_NAME": [5, "project"],
    }  # fmt: skip
    assert sorted(invalid(settings)) == [
        "DISTRIBUTED_LEASE is inf, and must be a number of seconds, or a time such as 30m, 2h or 7d.",
        "DISTRIBUTED_NODES must be a list of texts.",
    ]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("ON_FINISH", "curl -H 'X: hush' https://web/", "***"), ("ON_FINISH", "https://hooks/T0/hush", "***"),
        ("ON_FINISH", None, None), ("ON_FINISH", "", ""), ("NODES", ["web1", "cmd:list hush"], ["web1", "cmd:***"]),
        ("NODES", "cmd:list --with hush", "cmd:***"), ("NODES", ["file:list.txt"], ["file:list.txt"]), ("LEASE", 5, 5),
    ],
)  # fmt: skip
def test_no_word_of_a_command_is_shown(name: str, value: Any, shown: Any) -> None:
    assert without_commands(f"DISTRIBUTED_{name}", value) == shown


@pytest.mark.parametrize(
    ("deploy", "first", "second", "name", "origin"),
    [
        ("", "project = shop\n", "project = shop\n", "shop", "scrapy.cfg [deploy:a]"),
        ("", "project = shop\n", "", "shopbot", "BOT_NAME of the settings"),
        ("", "", "", "shopbot", "BOT_NAME of the settings"),
        ("[deploy]\nproject = all\n", "", "", "all", "scrapy.cfg [deploy]"),
    ],
)
def test_the_projects_name_is_the_one_that_deployments_and_jobs_use(
    tmp_path: Path, deploy: str, first: str, second: str, name: str, origin: str
) -> None:
    text = "[settings]\ndefault = s\n" + deploy
    for target, project in (("a", first), ("b", second)):
        text += f"[deploy:{target}]\nurl = http://{target}:6800/\n{project}"
    (tmp_path / "scrapy.cfg").write_text(text, "utf-8")
    settings: dict[str, list[Any]] = {"BOT_NAME": ["shopbot", "project"]}
    found = of_project(load(tmp_path), ConfigFiles.read(tmp_path), settings)
    shown = [(option.value, option.origin) for option in found if option.name == "name"]
    assert shown == [(name, origin)]
