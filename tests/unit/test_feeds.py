"""Reading feeds back: only from where the project's feed URL leads, and with a warning for each that cannot be read."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rig.ftp import FtpServer

from scrapyd_dist.items.delivery import read_back


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared" / "feeds"
    folder.mkdir(parents=True)
    (folder / "c_1_a1_items.jl").write_text('{"a": 1}\n')
    (folder / "c 2.jl").write_text('{"a": 2}\n')
    (tmp_path / "shared" / "secret").write_text("secret")
    return folder


def test_local_feeds_are_read_where_they_are(shared: Path, tmp_path: Path) -> None:
    uris = [f"file://{shared}/c_1_a1_items.jl", f"{shared}/c_1_a1_items.jl", f"file://{shared}/c%202.jl"]
    copies, warnings = read_back(uris, f"file://{shared}/items.jl", tmp_path / "copies")
    assert warnings == []
    assert [path.read_text() for _, path in copies] == ['{"a": 1}\n', '{"a": 1}\n', '{"a": 2}\n']


@pytest.mark.parametrize("template", ["file://{0}/%(batch)s.jl", "{0}/%(name)s/%(batch)s.jl", "{0}/x_%(batch)s"])
def test_what_the_template_leaves_open_may_be_anything_below_its_folder(
    template: str, shared: Path, tmp_path: Path
) -> None:
    copies, warnings = read_back([f"file://{shared}/c%202.jl"], template.format(shared), tmp_path / "copies")
    assert (len(copies), warnings) == (1, [])


def test_a_feed_that_is_not_there_is_a_warning_and_the_others_are_read(shared: Path, tmp_path: Path) -> None:
    uris = [f"file://{shared}/lost.jl", f"file://{shared}/c%202.jl"]
    copies, warnings = read_back(uris, f"file://{shared}/%(batch)s.jl", tmp_path / "copies")
    assert [path.name for _, path in copies] == ["c 2.jl"]
    assert len(warnings) == 1
    assert "lost.jl is not merged" in warnings[0]


@pytest.mark.parametrize(
    "uri",
    ["file:///etc/passwd", "/etc/passwd", "file://{0}/../secret", "file://{0}/%2e%2e/secret", "file://other{0}/c_1_a1_items.jl",
     "ftp://evil.invalid/x", "ftp://[", "file://{0}/a%00b", "http://127.0.0.1:99999/", ""],
)  # fmt: skip
def test_what_a_node_says_is_not_opened_elsewhere(uri: str, shared: Path, tmp_path: Path) -> None:
    copies, warnings = read_back([uri.format(shared)], f"file://{shared}/%(batch)s.jl", tmp_path / "copies")
    assert copies == []
    assert len(warnings) == 1


def test_ftp_feeds_are_fetched_with_the_account_of_the_template(
    ftp_server: Callable[..., FtpServer], tmp_path: Path
) -> None:
    server = ftp_server(user="me", password="p@ss/word")
    (server.folder / "1.jl").write_text('{"a": 1}\n')
    place = server.url.rpartition("@")[2]
    template = f"ftp://me:p%40ss%2Fword@{place}/%(batch)s.jl"
    copies, warnings = read_back([f"ftp://{place}/1.jl", f"ftp://{place}/2.jl"], template, tmp_path / "copies")
    assert [path.read_text() for _, path in copies] == ['{"a": 1}\n']
    assert len(warnings) == 1
    assert "2.jl is not merged" in warnings[0]
    assert "word" not in "".join(warnings)


def test_the_password_does_not_go_to_another_server(ftp_server: Callable[..., FtpServer], tmp_path: Path) -> None:
    mine, other = ftp_server(user="me", password="secret"), ftp_server(user="me", password="secret")
    (other.folder / "1.jl").write_text("bait")
    place, elsewhere = (server.url.rpartition("@")[2] for server in (mine, other))
    copies, warnings = read_back(
        [f"ftp://{elsewhere}/1.jl"], f"ftp://me:secret@{place}/%(batch)s.jl", tmp_path / "copies"
    )
    assert copies == []
    assert "does not lead there" in warnings[0]


def test_other_kinds_are_said_not_to_be_read_back(tmp_path: Path) -> None:
    copies, warnings = read_back(["s3://bucket/1.jl"], "s3://bucket/%(batch)s.jl", tmp_path / "copies")
    assert copies == []
    assert "s3://" in warnings[0]
