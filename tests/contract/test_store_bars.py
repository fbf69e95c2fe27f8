"""A store that lets nobody in: every command says so in one paragraph, and ends as the table of exit codes says."""

import pytest
from rig.crawls import assert_one_paragraph
from rig.fixtures import MakeProject
from rig.redis import RedisServer
from scrapyd_dist.cli import main
from scrapyd_dist.cli.commands import CODES

#: command -> what it wants to know besides its name
WORDS = {
    "crawl": ["easy"],
    "resume": ["c"], "watch": ["c"], "wait": ["c"], "retry": ["c"], "clean": ["c", "--yes"], "pause": ["c"],
    "trust": ["c"], "stop": ["c"],
    "batches": ["c"], "misses": ["c"], "items merge": ["c", "-o", "x.jl"], "items tail": ["c"], "items pull": ["c"],
    "consume": ["easy", "shop"],
    "throttle apply": ["limits.yml"], "throttle set": ["a.com", "--hits", "1", "--window", "1"],
    "throttle unset": ["a.com"], "throttle block": ["a.com"], "throttle unblock": ["a.com"],
    "throttle pause": ["a.com"], "throttle resume": ["a.com"],
    "frontier count": ["shop"], "frontier dump": ["shop", "p0"], "frontier add": ["shop", "urls.txt"],
    "frontier move": ["shop", "p", "q", "2"], "frontier requeue": ["shop"],
    "frontier delete": ["shop", "--all", "--yes"],
    "nodes drain": ["node1"], "nodes resume": ["node1"], "nodes remove": ["node1"], "nodes add": ["http://h:1/"],
    "schedule": ["easy"], "logs": ["j"], "stats": ["c"], "grep": ["x"],
    "cancel": ["j"], "api": ["node1", "daemonstatus"],
    "deploy": ["node1"], "prune": ["--keep", "1", "--yes"],
}  # fmt: skip
#: makes its plan without a store, in a process that answers for itself
NOT_OPENED = {"plan"}
#: all that open it: whoever asks nodes reads there which nodes were added
BARRED = sorted(path for path, codes in CODES.items() if 6 in codes and path not in NOT_OPENED)


def test_a_store_that_lets_nobody_in_ends_every_command_with_6(
    project: MakeProject, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    it = project(extra="[deploy:node1]\nurl = http://127.0.0.1:1/\nproject = properties\n")
    it.write("urls.txt", "http://a.com/\n")
    it.write("limits.yml", "blacklist: [a.com]\n")
    monkeypatch.chdir(it.path)
    monkeypatch.setenv("SDIST_STORE", f"redis://:not-this@127.0.0.1:{redis_server.port}/0")
    ended = {}
    for path in BARRED:
        ended[path] = main._run([*path.split(), *WORDS.get(path, ())], debug=False)
        assert_one_paragraph(said := capsys.readouterr().err)
        assert "invalid username-password pair" in said
    assert ended == dict.fromkeys(BARRED, 6)
