"""Which node has which code, as values; and which egg a rollback would send."""

from scrapyd_dist.deploy.node_versions import NodeVersions
from scrapyd_dist.deploy.rollout import NodeResult

from scrapyd_dist.errors import ConnectionRefused
from scrapyd_dist.fleet.code_versions import SpiderSurvey, VersionSurvey, _all_have, presence_rows
from scrapyd_dist.nodes import Node

WEB1, WEB2 = Node.parse("web1", name="web1"), Node.parse("web2", name="web2")
OLD, NEW = "1793491200-187649984473770", "1793577600-206414982921147"


def test_nodes_with_different_code_are_named_and_one_that_is_silent_is_none_of_them() -> None:
    silent = NodeVersions(node=WEB2, project="p", error=ConnectionRefused.at("web2"))
    first = NodeVersions(node=WEB1, project="p", versions=(OLD, NEW))
    other = NodeVersions(node=WEB2, project="p", versions=(OLD,))
    survey = VersionSurvey(project="p", entries=[first, silent], known={})
    document = survey.document()
    assert (document["same"], document["differences"]) == (True, [])
    assert [(row["newest"], row["default"]) for row in document["nodes"]] == [
        (NEW, NEW),
        (None, None),
    ]
    assert "connection refused" in document["nodes"][1]["reason"]
    assert (survey.answered, survey.errors) == ([first], {WEB1: None, WEB2: silent.error})
    assert not VersionSurvey(project="p", entries=[first, other], known={}).document()["same"]
    assert not VersionSurvey(project="p", entries=[silent], known={}).document()["same"]


def test_the_version_that_scrapyd_sorts_last_stands_first() -> None:
    entries = [
        NodeVersions(node=WEB1, project="p", versions=(OLD, NEW)),
        NodeVersions(node=WEB2, project="p", versions=(NEW,)),
    ]
    survey = VersionSurvey(project="p", entries=entries, known={})
    assert survey.rows == survey.document()["versions"]
    assert survey.rows == [
        {"version": NEW, "nodes": ["web1", "web2"], "missing": []},
        {"version": OLD, "nodes": ["web1"], "missing": ["web2"]},
    ]


def test_where_a_spider_is_missing() -> None:
    entries = [
        NodeResult(node=WEB1, version=NEW, spiders=("a", "b")),
        NodeResult(node=WEB2, version=NEW, spiders=("b",)),
    ]
    survey = SpiderSurvey(project="p", entries=entries)
    assert survey.rows == [
        {"spider": "a", "nodes": ["web1"], "missing": ["web2"]},
        {"spider": "b", "nodes": ["web1", "web2"], "missing": []},
    ]
    assert presence_rows("project", {}) == []


def test_code_is_current_only_where_each_node_deployed_it_last_and_runs_it() -> None:
    content = "aaaaaaaaaaaa"
    version = f"1793491200-{int(content, 16):015}"
    assert _all_have(content, [version, version])
    assert not _all_have(content, [version, None])
    assert not _all_have(content, [version, NEW])
