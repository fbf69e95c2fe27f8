"""Where a crawl learns of its nodes, and what it does when a list cannot be read."""

import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapyd_dist.cli.context import Context
from scrapyd_dist.middlewares.producer.crawl_request import CrawlRequest, find_project
from scrapyd_dist.middlewares.producer.node_sources import NodeSources, nodes_of
from scrapyd_dist.middlewares.producer.producer_options import ProducerOptions

from scrapyd_dist import config
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.nodes import Node, NodeRecord

CFG = "[settings]\ndefault = p.settings\n[deploy:one]\nurl = http://web1:6800/\nslots = 3\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scrapy.cfg").write_text(CFG)
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("SCRAPY_SETTINGS_MODULE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sources(**options: Any) -> NodeSources:
    return NodeSources(
        CrawlRequest(
            spider="s", options=ProducerOptions(**options), project=find_project(Settings())
        )
    )


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def command(folder: Path, body: str) -> str:
    script = folder / "list_nodes.py"
    script.write_text(body)
    return f"{sys.executable} {script}"


def test_a_changed_scrapy_cfg_is_read_again_and_one_that_is_broken_meanwhile_changes_nothing_and_is_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = sources()
    assert names(found.read()) == ["one"]
    with caplog.at_level(logging.WARNING):
        for text in ("[deploy:two]\npassword = s3cret\n", "[deploy:two]\npassword = s3cret\n\n"):
            (folder / "scrapy.cfg").write_text(f"{CFG}{text}")
            assert names(found.read()) == ["one"]
    assert len(caplog.messages) == 1
    assert "has no url" in caplog.messages[0]
    assert "s3cret" not in caplog.messages[0]
    (folder / "scrapy.cfg").write_text(f"{CFG}[deploy:two]\nurl = http://web2:6800/\n")
    assert names(found.read()) == ["one", "two"]


def test_a_file_has_a_node_per_line_and_is_read_again_when_it_has_changed(folder: Path) -> None:
    (folder / "nodes.txt").write_text(
        "one\nweb7:6800 name=seven slots=2  # new\n\n# web8\nhttp://me:pw@web9:6800/\n"
    )
    found = sources(nodes=("file:nodes.txt",))
    nodes = found.read()
    assert names(nodes) == ["one", "seven", "web9:6800"]
    assert [node.slots for node in nodes] == [3, 2, None]
    assert nodes[2].password == "pw"
    (folder / "nodes.txt").write_text("web7:6800\nweb1:6800\n")
    assert names(found.read()) == ["web7:6800", "one"]
    (folder / "nodes.txt").write_text("")
    assert found.read() == ()


@pytest.mark.parametrize("text", ["local1", "127.0.0.1:6801", "http://127.0.0.1:6801/"])
def test_a_local_node_is_known_by_its_name_and_its_address(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Node.parse("127.0.0.1:6801", name="local1", username="me", password="hush")
    monkeypatch.setattr("scrapyd_dist.deploy.local_nodes.running", lambda state: (local,))
    (node,) = sources(nodes=(text,)).read()
    assert (node.name, node.password) == ("local1", "hush")


def test_a_local_node_that_is_dead_is_a_node_of_the_crawl_unless_none_ran(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = one.settings\n")
    one, two, older = (
        Node.parse(f"127.0.0.1:680{number}", name=f"local{number}") for number in (1, 2, 3)
    )
    found = sources()
    monkeypatch.setattr("scrapyd_dist.deploy.local_nodes.running", lambda state: (one, two))
    monkeypatch.setattr("scrapyd_dist.deploy.local_nodes.dead", lambda state: (older,))
    assert names(found.read()) == ["local1", "local2", "local3"]
    monkeypatch.setattr("scrapyd_dist.deploy.local_nodes.running", lambda state: ())
    monkeypatch.setattr("scrapyd_dist.deploy.local_nodes.dead", lambda state: (one, two, older))
    assert names(found.read()) == ["local1", "local2"]
    assert names(sources().read()) == []


@pytest.mark.parametrize("text", ["spare", "127.0.0.1:6802"])
def test_a_node_that_was_added_is_known_by_its_name_and_its_address(
    text: str, folder: Path
) -> None:
    added = NodeRecord(name="spare", url="http://127.0.0.1:6802")
    assert names(sources(nodes=(text,)).read([added])) == ["spare"]


def test_a_target_of_another_project_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = CFG.replace("[deploy", "two = two.settings\n[deploy", 1)
    (folder / "scrapy.cfg").write_text(
        f"{two}[deploy:other]\nurl = http://web2:6800/\nproject = two\n"
    )
    assert names(sources().read()) == ["one"]
    with pytest.raises(ConfigError, match=r"other .* SCRAPY_PROJECT=two"):
        sources(nodes=("other",)).read()
    monkeypatch.setenv("SCRAPY_PROJECT", "two")
    assert [(node.name, node.project) for node in sources(nodes=("other",)).read()] == [
        ("other", "two")
    ]
    (folder / "scrapy.cfg").write_text(f"{two}project = one\n")
    monkeypatch.setenv("SCRAPY_PROJECT", "default")
    assert names(sources().read()) == ["one"]


def test_where_all_targets_are_for_other_projects_nothing_starts(folder: Path) -> None:
    (folder / "scrapy.cfg").write_text(
        CFG.replace("[deploy", "two = two.settings\n[deploy", 1) + "project = two\n"
    )
    with pytest.raises(ConfigError, match=r"one .* SCRAPY_PROJECT=two"):
        sources().read()


def test_a_file_may_have_sections_as_scrapy_cfg(folder: Path) -> None:
    (folder / "nodes.cfg").write_text(
        "[deploy:a]\nurl = http://a:6800/\n[deploy:b]\nurl = http://b:6800/\nslots = 2\n"
    )
    nodes = sources(nodes=("file:nodes.cfg",)).read()
    assert [(node.name, node.slots) for node in nodes] == [("a", None), ("b", 2)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nowhere\n", "line 1: There is no node 'nowhere'"),
        ("web1:6800 four\n", "line 1: behind the address"),
        ("web1:6800 slots=0\n", "line 1: slots = .0. must be a whole number"),
        ("\nftp://web1/\n", "line 2: .*only http and https"),
        ("[deploy:a]\nslots = 2\n", "has no url"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        nodes_of(text, "the list", (), tmp_path)


def test_a_command_prints_nodes_and_is_run_again_after_a_while(folder: Path) -> None:
    (folder / "now").write_text("web5:6800")
    run = command(folder, "print(open('now').read())")
    found = sources(nodes=(f"cmd:{run}",), nodes_every=1e-6)
    assert names(found.read()) == ["web5:6800"]
    (folder / "now").write_text("web5:6800\nweb2:6800")
    assert names(found.read()) == ["web5:6800", "web2:6800"]
    patient = sources(nodes=(f"cmd:{run}",), nodes_every=1e9)
    patient.read()
    (folder / "now").write_text("web3:6800")
    assert names(patient.read()) == ["web5:6800", "web2:6800"]


def test_a_command_that_fails_meanwhile_changes_nothing_and_its_words_are_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = command(
        folder,
        "import os, sys\nsys.exit('no cloud today') if os.path.exists('bad') else print('web5:6800')",
    )
    found = sources(nodes=(f"cmd:{run}",), nodes_every=1e-6)
    found.read()
    (folder / "bad").touch()
    with caplog.at_level(logging.WARNING):
        assert [names(found.read()) for _ in range(3)] == [["web5:6800"]] * 3
    assert len(caplog.messages) == 1
    assert "ended with code 1 and said: no cloud today" in caplog.messages[0]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("file:nodes.txt", r"nodes\.txt \(DISTRIBUTED_NODES\) cannot be read: No such file"),
        ("cmd:/not/there", "cannot be run: .*No such file"),
        ("cmd:'half a quote", "cannot be run: No closing"),
    ],
)
def test_a_list_that_is_not_there_at_the_start_and_a_command_that_cannot_be_run(
    folder: Path, entry: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        sources(nodes=(entry,)).read()


def test_nodes_that_were_added_to_the_store_are_there_unless_nodes_were_named(folder: Path) -> None:
    records = [
        NodeRecord(name="extra", url="http://web5:6800"),
        NodeRecord(name="one", draining=1.0),
    ]
    assert names(sources().read(records)) == ["one", "extra"]
    assert names(sources(nodes=("one",)).read(records)) == ["one"]
    (folder / "nodes.txt").write_text("web6:6800\n")
    assert names(sources(nodes=("one", "file:nodes.txt")).read(records)) == [
        "one",
        "web6:6800",
        "extra",
    ]


def test_a_pattern_means_the_nodes_of_this_project_with_such_names_also_when_they_come_later(
    folder: Path,
) -> None:
    (folder / "scrapy.cfg").write_text(
        "[settings]\ndefault = p.settings\ntwo = two.settings\n"
        "[deploy:eu-1]\nurl = http://web1:6800/\n[deploy:us-1]\nurl = http://web2:6800/\n"
        "[deploy:eu-two]\nurl = http://web3:6800/\nproject = two\n"
    )
    found = sources(nodes=("eu-*",))
    assert names(found.read()) == ["eu-1"]
    records = [
        NodeRecord(name="eu-9", url="http://web9:6800"),
        NodeRecord(name="us-9", url="http://web8:6800"),
    ]
    assert names(found.read(records)) == ["eu-1", "eu-9"]
    with pytest.raises(ConfigError, match="SCRAPY_PROJECT=two"):
        sources(nodes=("*-two",)).read()
    with pytest.raises(NothingMatched, match=r"no node 'asia-\*'"):
        sources(nodes=("asia-*",)).read()
    assert names(sources(nodes=("[::1]:6800",)).read()) == ["[::1]:6800"]


def test_a_name_with_several_addresses_is_a_node_at_each(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "scrapy.cfg").write_text(
        "[settings]\ndefault = p.settings\n"
        "[deploy:pool]\nurl = dns+https://pool.example:6800/base/\nusername = u\npassword = p\n"
    )
    addresses = ["10.0.0.2", "10.0.0.1", "fe80::1"]

    def look(host: str, _port: object, **_options: object) -> list[tuple[object, ...]]:
        assert host == "pool.example"
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    found = sources(nodes_every=1e-6)
    nodes = found.read()
    assert names(nodes) == ["pool/10.0.0.1", "pool/10.0.0.2", "pool/fe80::1"]
    assert [node.url for node in nodes] == [
        "https://10.0.0.1:6800/base", "https://10.0.0.2:6800/base", "https://[fe80::1]:6800/base",
    ]  # fmt: skip
    assert {(node.tls_name, node.password, node.host_header) for node in nodes} == {
        ("pool.example", "p", "pool.example:6800")
    }
    assert names(Context(folder).all_nodes) == names(nodes)  # every command sees them so
    addresses.remove("10.0.0.2")
    assert names(found.read()) == ["pool/10.0.0.1", "pool/fe80::1"]


def test_a_name_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(
        ConfigError, match=r"pool\.example of the node .* has no address: Name or service not known"
    ):
        config.addresses_of(Node.parse("dns+http://pool.example/"))
