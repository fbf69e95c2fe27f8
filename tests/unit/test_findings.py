"""Findings of the doctor: what is judged how, and what is to be done. Values in, findings out."""

import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from scrapyd_dist.errors import (
    AuthRefused,
    ConnectionRefused,
    ConnectTimeout,
    NodeError,
    NotFound,
    NotJson,
    TlsRefused,
)
from scrapyd_dist.fleet.diagnosis import NodeDiagnosis
from scrapyd_dist.fleet.findings import Finding, Severity, findings, of_several
from scrapyd_dist.fleet.kept_logs import KeptLogs
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd.api import Load
from scrapyd_dist.transports.reply_intake import nobody_listens

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
LOCAL = Node.parse("http://127.0.0.1:6800", name="web1")
WELL = NodeDiagnosis(
    node=LOCAL,
    load=Load(pending=0, running=0, finished=0, node_name="web1", date=NOW),
    latency=0.01,
    skew=0.2,
    knows_status=True,
    logs=True,
    ranges=True,
    items=False,
    kept_logs=KeptLogs(kept=40, most=40),
    project="p",
    versions=("a",),
)


def found(**changes: Any) -> list[Finding]:
    return findings(replace(WELL, **changes), NOW)


def only(**changes: Any) -> Finding:
    (finding,) = found(**changes)
    return finding


def test_all_is_well() -> None:
    assert found() == []


def node(address: str, **more: Any) -> dict[str, Any]:
    return {"node": Node.parse(address, name="web1", **more)}


LOST = KeptLogs(kept=6, lost=3, most=6)


@pytest.mark.parametrize(
    ("changes", "severity", "topic", "said"),
    [
        ({"skew": 30.0}, Severity.NOTE, "clock", "ntp"),
        ({"skew": -3600.0}, Severity.WARNING, "clock", "ntp"),
        ({"latency": 3.0}, Severity.WARNING, "latency", "max_proc"),
        ({"start_delay": 5.2}, Severity.WARNING, "poll_interval", "poll_interval = 0.5"),
        ({"knows_status": False}, Severity.WARNING, "version", "scrapyd>=1.5"),
        ({"knows_status": False, "old_scrapyd": True}, Severity.DANGER, "version", "scrapyd>=1.5"),
        ({"old_scrapy": "2.11.2"}, Severity.DANGER, "version", "scrapy>=2.13"),
        (
            {"eggs": "ImportError: Scrapy 2.11 is too old for scrapyd-dist; it needs 2.13"},
            Severity.DANGER,
            "eggs",
            "install Scrapy 2.13",
        ),
        ({"logs": False}, Severity.DANGER, "logs", "logs_dir = logs"),
        ({"ranges": False}, Severity.WARNING, "logs", "Range"),
        ({"items": True}, Severity.WARNING, "items", "items_dir ="),
        (
            {"eggs": "RunnerError: No module named 'pkg_resources'"},
            Severity.DANGER,
            "eggs",
            "setuptools<81",
        ),
        (
            {"eggs": "RunnerError: No module named 'foo'"},
            Severity.DANGER,
            "eggs",
            "--include-dependencies",
        ),
        ({"eggs": "RunnerError: SyntaxError"}, Severity.DANGER, "eggs", "deploy --all"),
        ({"versions": ()}, Severity.NOTE, "versions", "deploy --all --only-missing"),
        ({"wedged": True}, Severity.DANGER, "slots", "Restart"),
        ({"draining": True}, Severity.NOTE, "draining", "sdist nodes resume web1"),
        ({"certificate_ends": NOW + timedelta(days=10)}, Severity.WARNING, "tls", "Renew"),
        ({"certificate_ends": NOW + timedelta(days=1)}, Severity.DANGER, "tls", "Renew"),
        ({"kept_logs": LOST}, Severity.WARNING, "jobs_to_keep", "jobs_to_keep = 5 or 6"),
        ({"kept_logs": replace(LOST, by_limit=False)}, Severity.NOTE, "logs", "sdist jobs"),
        (
            {"versions": ("0-a1795874393-067831053627291",)},
            Severity.NOTE,
            "versions",
            "For plain jobs",
        ),
        ({"kept_logs": KeptLogs(kept=2, most=2)}, Severity.NOTE, "jobs_to_keep", "cannot be seen"),
        # doors that are open
        (node("http://web1:6800"), Severity.WARNING, "auth", "no password"),
        (node("http://me:hush@web1:6800"), Severity.WARNING, "auth", "readable"),
        (node("https://me:hush@web1", verify=False), Severity.WARNING, "tls", "verify = no"),
    ],
)
def test_what_is_wrong_with_one_that_answers(
    changes: dict[str, Any], severity: Severity, topic: str, said: str
) -> None:
    finding = only(**changes)
    assert (finding.severity, finding.topic, finding.node) == (severity, topic, "web1")
    what = finding.text if topic in {"jobs_to_keep", "auth"} or "verify" in said else finding.remedy
    assert said in what
    about_several = of_several(finding.text).partition(":")[0]
    assert not re.search(r"\b(it|its|itself)\b", about_several), about_several
    assert "hush" not in str(finding)


def test_a_certificate_that_lasts_and_what_is_not_known_are_no_findings() -> None:
    assert found(certificate_ends=NOW + timedelta(days=60)) == []
    assert (
        found(
            skew=None,
            latency=None,
            knows_status=None,
            logs=None,
            ranges=None,
            items=None,
            versions=None,
        )
        == []
    )


def test_logs_and_items_that_are_lost() -> None:
    both = {one.topic: one.severity for one in found(kept_logs=LOST, items=True)}
    assert both == {"items": Severity.WARNING, "jobs_to_keep": Severity.DANGER}


def refused(text: str) -> NodeError:
    return TlsRefused.at("web1", f"certificate verify failed: {text}")


@pytest.mark.parametrize(
    ("url", "error", "more", "topic", "remedy"),
    [
        ("127.0.0.1:6800", ConnectionRefused.at("web1"), {}, "reach", "BIND_ADDRESS"),
        ("127.0.0.1:6800", ConnectTimeout.at("web1"), {}, "reach", "firewall"),
        ("127.0.0.1:6800", AuthRefused.at("web1"), {}, "auth", "netrc"),
        ("127.0.0.1:6800", NotFound.at("web1"), {}, "base path", "Is that a Scrapyd?"),
        ("127.0.0.1:6800", NotFound.at("web1"), {"found_at": "http://web1"}, "base path", "url = http://web1/"),
        ("127.0.0.1:6800", NotJson.at("web1"), {"speaks_tls": True}, "tls", "url = https://127.0.0.1:6800/"),
        ("https://web1:6800", ConnectTimeout.at("web1"), {"speaks_tls": False, "speaks_http": True}, "tls",
         "url = http://web1:6800/"),
        ("https://web1", refused("certificate has expired"), {}, "tls", "Renew"),
        ("https://web1", refused("IP address mismatch"), {}, "tls", "stands in the certificate"),
        ("https://web1", refused("self-signed certificate"), {}, "tls", "ca = FILE"),
        ("https://web1", refused("unable to get local issuer"), {"ca": "other.pem"}, "tls", "ca = …"),
    ],
)  # fmt: skip
def test_why_one_does_not_answer(
    url: str, error: NodeError, more: dict[str, Any], topic: str, remedy: str
) -> None:
    asked = Node.parse(url, name="web1", ca=more.pop("ca", None))
    finding = only(
        node=asked, load=None, error=type(error)(str(error).replace("web1", str(asked), 1)), **more
    )
    assert (finding.severity, finding.topic) == (Severity.DANGER, topic)
    assert remedy in finding.remedy
    assert str(asked) not in finding.text


def test_a_dead_local_node_is_said_to_be_dead_with_what_starts_it_again() -> None:
    local = Node.parse("127.0.0.1:6800", name="local2", local=True)
    finding = only(node=local, load=None, error=nobody_listens(local))
    assert (finding.severity, finding.text) == (
        Severity.DANGER,
        "it is dead: its process has ended",
    )
    assert "sdist nodes up N" in finding.remedy
    assert "sdist nodes up N" in str(nobody_listens(local)).split(". ")[0]
    assert "BIND_ADDRESS" not in str(nobody_listens(local))
