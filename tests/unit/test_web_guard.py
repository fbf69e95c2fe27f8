"""Who may see the pages of `sdist web`, who may start work there, and what hostile words do on them."""

import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from rig.commands import Result
from rig.fleet_sender import FleetSender, loaded
from rig.web_pages import RECORD, fill_store, project_at, served, write_targets
from scrapyd_dist.cli import web_command

from scrapyd_dist.batches import Crawl, Miss
from scrapyd_dist.errors import ConfigError, StoreAway
from scrapyd_dist.fleet.crawl_files import LOG, crawl_folder
from scrapyd_dist.scrapyd.api import Chunk, Job, Jobs, JobState, fetch
from scrapyd_dist.store import Store
from scrapyd_dist.web.application import Actions

Run = Callable[..., Result]
#: words that would be markup, an attribute or a script
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7777*7777}}"
#: a node's words may have characters that steer a terminal, too; the store takes none of these
HOSTILE = f"{MARKUP}\u202e\x1b[31m"


def test_a_password_is_asked_for_and_any_name_of_a_user_goes_with_it(root: Path) -> None:
    write_targets(root, ["web1"])
    with served(root, FleetSender(), password="open ✓ sesame") as client:
        for auth in (None, ("user", "wrong"), ("open ✓ sesame", "")):
            answer = client.get("/crawls", auth=auth)
            assert answer.status_code == 401
            assert "Basic" in answer.headers["www-authenticate"]
        assert client.get("/crawls", headers={"Authorization": "Basic %%%"}).status_code == 401
        assert client.get("/static/style.css").status_code == 401
        assert client.get("/crawls", auth=("anyone", "open ✓ sesame")).status_code == 200
        named = {"Host": "pages.example.org"}
        assert client.get("/crawls", auth=("x", "open ✓ sesame"), headers=named).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example.org", "evil.example.org:6810", "127.0.0.1.evil.org", ""]
)
def test_without_a_password_only_names_of_this_machine_are_answered(root: Path, host: str) -> None:
    write_targets(root, ["web1"])
    with served(root, FleetSender()) as client:
        assert client.get("/crawls", headers={"Host": host}).status_code == 421
        for local in ("127.0.0.1:6810", "localhost:7000", "[::1]:6810", "localhost"):
            assert client.get("/crawls", headers={"Host": local}).status_code == 200


def test_another_address_needs_a_password(sdist: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SDIST_WEB_PASSWORD", raising=False)
    sdist("web", "--host", "0.0.0.0").expect(2, "SDIST_WEB_PASSWORD")
    sdist("web", "--port", "0", "--actions").expect(2, "SDIST_WEB_TOKEN")
    monkeypatch.setenv("SDIST_WEB_PASSWORD", "x")
    served: list[object] = []
    monkeypatch.setattr("scrapyd_dist.web.server.serve", lambda *values: served.append(values))
    done = sdist("web", "--host", "0.0.0.0", "--port", "0").expect(
        130, "TLS", f"http://{socket.gethostname()}:"
    )
    assert (done.err.count("TLS"), len(served)) == (1, 1)


def test_without_the_extra_it_is_named(sdist: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_command, "find_spec", lambda name: None)
    sdist("web").expect(2, "starlette", "scrapyd-dist[web]")


def test_an_address_that_is_taken_is_an_error(sdist: Run) -> None:
    from scrapyd_dist.web.server import bind

    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        sdist("web", "--port", port).expect(2, f"port {port}", "--port")


def test_work_is_started_with_the_token_and_only_with_actions(root: Path) -> None:
    begun: list[Mapping[str, Any]] = []

    def start(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        if asked.get("spider") == "none":
            raise ConfigError("There is no such spider.")
        begun.append(asked)
        return {"crawl": "c1"}

    write_targets(root, ["web1"])
    token = {"X-Sdist-Token": "t0ken"}
    with served(root, FleetSender()) as client:
        answer = client.post("/crawls", json={"spider": "easy"}, headers=token)
        assert (answer.status_code, "--actions" in answer.json()["error"]) == (403, True)
    actions = Actions(token="t0ken", start_crawl=start, start_jobs=start)
    with served(root, FleetSender(), actions=actions) as client:
        for headers in ({}, {"X-Sdist-Token": ""}, {"X-Sdist-Token": "wrong"}):
            answer = client.post("/jobs", json={"spider": "easy"}, headers=headers)
            assert answer.status_code == 403
        # A form of a stranger's page can send this, without asking the browser.
        plain = {**token, "Content-Type": "text/plain"}
        assert client.post("/jobs", content="{}", headers=plain).status_code == 400
        for content in ("{", "[]", '"' + "x" * 1_000_001):
            sent = {**token, "Content-Type": "application/json"}
            assert client.post("/jobs", content=content, headers=sent).status_code == 400
        assert client.post("/jobs", json={"spider": "none"}, headers=token).status_code == 400
        assert begun == []
        answer = client.post("/crawls", json={"spider": "easy"}, headers=token)
        assert (answer.status_code, answer.json()) == (201, {"schema": 1, "crawl": "c1"})
        assert client.put("/jobs").status_code == client.delete("/crawls").status_code == 405
    assert begun == [{"spider": "easy"}]


def hostile_sender() -> FleetSender:
    """A node whose job, spider and log are hostile."""
    job = Job(id=HOSTILE, project=HOSTILE, spider=HOSTILE, state=JobState.RUNNING)
    log = f"2026-11-20 12:00:10 [scrapy.core.scraper] ERROR: {HOSTILE}\n{HOSTILE}\n".encode()
    answers = loaded(running=1)
    answers["listjobs.json"] = Jobs(pending=(), running=(job,), finished=())
    answers[fetch(f"logs/{HOSTILE}/{HOSTILE}/{HOSTILE}.log").path] = Chunk(
        body=log, start=0, total=len(log), date=None, modified=None
    )
    answers["listversions.json"] = (HOSTILE,)
    return FleetSender(web1=answers)


def test_hostile_names_and_log_lines_are_text(root: Path) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    workspace = project_at(root, FleetSender())
    store = workspace.new_store
    store.keep_jobs([replace(RECORD, id="bad", spider=MARKUP, reason=MARKUP, labels=(MARKUP,))])
    summary = {**crawl.summary, "warnings": [HOSTILE], "nodes": [{"name": HOSTILE, "state": "up"}]}
    store.update_crawl(crawl.id, message=HOSTILE, summary=summary)
    workspace.close()
    name = quote(HOSTILE, safe="")
    paths = [
        "/",
        "/jobs",
        "/nodes/web1",
        "/crawls",
        f"/jobs/{name}?node=web1",
        f"/jobs?spider={name}",
    ]
    paths += [
        f"/crawls/{crawl.id}",
        f"/crawls/{crawl.id}/jobs",
        f"/crawls/{crawl.id}/report",
        "/jobs/bad",
    ]
    errors = [f"/crawls/{name}", f"/jobs?state={name}", f"/nodes/{name}"]
    with served(root, hostile_sender()) as client:
        for path in paths + errors:
            answer = client.get(path)
            assert answer.status_code == (
                200 if path in paths else (400 if "?" in path else 404)
            ), path
            text = answer.text
            assert "<script>alert" not in text
            assert "<img src=x" not in text
            assert not re.search(r"<[^>]*\sonerror=", re.sub(r'"[^"]*"', '""', text)), path
            assert "\u202e" not in text
            assert "\x1b" not in text
            assert "{{7777*7777}}" in text or "60481729" not in text
        job = client.get(f"/jobs/{name}?node=web1").text
        assert "&lt;script&gt;alert(1)" in job
        assert "<b>1</b>" in job, "errors are grouped"


def test_where_the_store_is_away_the_page_says_so_and_comes_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_targets(root, ["web1"])
    crawl: Crawl = fill_store(root)
    now = [0.0]
    with served(root, FleetSender(web1=loaded()), clock=lambda: now[0]) as client:
        with monkeypatch.context() as patched:

            def away(*_: object) -> list[Crawl]:
                raise StoreAway("the store at redis://db1 does not answer.")

            patched.setattr(Store, "crawls", property(lambda _: away))
            patched.setattr(Store, "crawl", property(lambda _: away))
            patched.setattr(Store, "jobs", property(lambda _: away))
            for path in ("/", "/crawls", f"/crawls/{crawl.id}", "/jobs"):
                answer = client.get(path)
                assert answer.status_code == 503, path
                assert "does not answer" in answer.text
                assert 'hx-trigger="every 2s"' in answer.text, "it comes back by itself"
                assert client.get("/crawls.json").json()["error"].startswith("the store")
            # What the nodes answer is shown meanwhile.
            page = client.get("/").text
            assert "jobs running" in page
            assert 'href="/nodes/web1"' in page
            assert client.get("/index.json").json()["error"].startswith("the store")
        now[0] += 10.0
        assert crawl.id in client.get("/crawls").text
        assert client.get("/").status_code == client.get("/jobs").status_code == 200


def test_where_no_node_is_named_the_store_is_shown_all_the_same(root: Path) -> None:
    crawl = fill_store(root)
    with served(root, FleetSender()) as client:
        page = client.get("/")
        assert (page.status_code, crawl.id in page.text) == (200, True)
        assert "names no node" in page.text
        assert "easy-1" in client.get("/jobs").text


@pytest.mark.parametrize(
    "address", ["http://evil:80/", "10.0.0.5:22", "http://u:p@evil/", "localhost:1"]
)
def test_only_nodes_of_the_project_are_asked(root: Path, address: str) -> None:
    write_targets(root, ["web1"])
    fill_store(root)
    sender = FleetSender(web1={**loaded(running=1), "listversions.json": ("1",)})
    with served(root, sender) as client:
        for path in ("/jobs", "/jobs/running0", "/jobs/easy-1"):
            for end in ("", ".json"):
                answer = client.get(f"{path}{end}", params={"node": address})
                assert answer.status_code == 404, path
        assert client.get(f"/nodes/{quote(address, safe='')}").status_code == 404
        for node in ("web1", "web*", "http://web1:6800", "web1:6800"):
            assert client.get("/jobs", params={"node": node}).status_code == 200
    assert {name for name, _ in sender.asked} == {"web1"}


def test_pages_of_other_sites_only_link_here(root: Path) -> None:
    write_targets(root, ["web1"])
    sender = FleetSender(web1=loaded(running=1))
    with served(root, sender) as client:
        for site in ("cross-site", "same-site"):
            for mode, dest in (("no-cors", "image"), ("cors", "empty"), ("navigate", "iframe")):
                headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
                assert client.get("/jobs?since=1h", headers=headers).status_code == 403
        assert sender.asked == []
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        answer = client.get("/jobs", headers={**link, "Sec-Fetch-Dest": "document"})
        assert answer.status_code == 200
        own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
        assert client.get("/jobs", headers=own).status_code == 200


def test_logins_in_addresses_are_in_no_json(root: Path) -> None:
    write_targets(root, ["web1"])
    crawl = fill_store(root)
    log = crawl_folder(root, crawl.id) / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("GET http://tom:geheim@db1/ failed\n", encoding="utf-8")
    url = "http://tom:geheim@shop/1"
    with closing(project_at(root, FleetSender())) as workspace:
        store = workspace.new_store
        store.add_misses(crawl.id, [Miss(url=url, kind="failed", reason=f"no {url}")])
        store.update_crawl(crawl.id, message=f"see {url}")
        store.keep_jobs([replace(RECORD, id="bad", reason=url, args={"start": url})])
    with served(root, FleetSender(web1=loaded())) as client:
        for path in ("log", "misses"):
            text = client.get(f"/crawls/{crawl.id}/{path}.json").text
            assert "***@" in text
            assert "geheim" not in text
        for path in (f"/crawls/{crawl.id}", "/crawls", "/jobs", "/jobs/bad"):
            answer = client.get(f"{path}.json")
            assert (answer.status_code, "geheim" in answer.text) == (200, False), path


def test_what_is_started_inherits_neither_password_nor_token(
    sdist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDIST_WEB_PASSWORD", "geheim")
    monkeypatch.setenv("SDIST_WEB_TOKEN", "t0ken")
    left: list[str] = []

    def serve(*_: object) -> None:
        left.extend(name for name in os.environ if name.startswith("SDIST_WEB_"))

    monkeypatch.setattr("scrapyd_dist.web.server.serve", serve)
    sdist("web", "--port", "0", "--actions").expect(130)
    assert left == []


def test_a_host_without_a_port_and_a_token_of_any_characters(root: Path) -> None:
    write_targets(root, ["web1"])
    actions = Actions(token="geheïm✓", start_crawl=dict, start_jobs=dict)
    with served(root, FleetSender(), actions=actions) as client:
        assert client.get("/crawls", headers={"Host": "[::1]"}).status_code == 200
        token = {b"X-Sdist-Token": "geheïm✓".encode()}
        answer = client.post("/crawls", json={"spider": "easy"}, headers=token)
        assert answer.status_code == 201


def test_the_address_that_is_told_leads_to_this_machine_from_others() -> None:
    here = socket.gethostname()
    names = {"0.0.0.0": here, "::": here, "::1": "[::1]", "127.0.0.1": "127.0.0.1", "web": "web"}
    assert {host: web_command._name_for_others(host) for host in names} == names


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH"])
def test_what_is_no_page_answers_in_json(root: Path, method: str) -> None:
    write_targets(root, ["web1"])
    with served(root, FleetSender()) as client:
        answer = client.request(method, "/jobs", headers={"X-Sdist-Token": "a token"})
        assert (answer.status_code, answer.json()["error"]) == (405, "Method Not Allowed.")
