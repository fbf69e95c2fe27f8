"""Accepted parts are delivered whole, each once, with a manifest that is all a reader needs."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from fsspec.utils import infer_storage_options
from rig.deliveries import delivered, files_of, manifest_in
from rig.ftp import FtpServer
from rig.waiting import wait_for
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.producer_options import read_options

from scrapyd_dist.batches import Attempt, AttemptState
from scrapyd_dist.errors import ConfigError
from scrapyd_dist.items import publisher as publishing
from scrapyd_dist.items.publisher import PartPublisher
from scrapyd_dist.items.sink import FolderSink, Moved, Sink, open_sink

HOME = "shop.0a1b2c3d"
PASSWORD = "s3cret@of:the/sink"


class SFTP(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Takes addresses as the driver for sftp:// does, which needs paramiko."""

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(infer_storage_options(path)["path"])

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        options = infer_storage_options(path)
        return {name: options[name] for name in ("host", "port")}


class Home:
    """The folder of parts, and the attempts that were accepted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.accepted: list[Attempt] = []

    def accept(self, batch: int, *items: str, **report: Any) -> Attempt:
        part = f"shop.b{batch}.a1.jl"
        (self.folder / part).write_text(
            "".join(f'{{"item": "{item}"}}\n' for item in items), "utf-8"
        )
        attempt = Attempt(
            batch=batch, number=1, job="", node="", url="", state=AttemptState.ACCEPTED, part=part,
            report={"items": len(items), **report},
        )  # fmt: skip
        self.accepted.append(attempt)
        return attempt

    @contextmanager
    def publisher(self, sink: Sink, said: list[str] | None = None) -> Iterator[PartPublisher]:
        made = PartPublisher(sink, home=HOME, folder=self.folder)
        made.begin(self.accepted)
        made.start((said if said is not None else []).append)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "parts")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "PAUSE", 0.01)
    monkeypatch.setattr(publishing, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(publishing, "EVERY", 0.0)
    monkeypatch.setattr(publishing, "LOOK", 0.01)


def test_a_refusal_has_the_words_of_the_system_and_not_its_numbers(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError) as refused,
        home.publisher(open_sink(str(tmp_path / "file" / "out"), tmp_path)),
    ):
        pass
    assert ("Not a directory" in str(refused.value), "Errno" in str(refused.value)) == (True, False)


def words(files: dict[str, bytes]) -> list[str]:
    return [item["item"] for item in delivered(files)]


@pytest.fixture(params=["folder", "file", "ftp", "memory"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, ftp_server: Callable[..., FtpServer]
) -> tuple[str, Callable[[], dict[str, bytes]]]:
    """The address of a sink, and what is there."""
    folder = tmp_path / "a folder" / "out"
    if request.param == "ftp":
        ftp = ftp_server("someone", PASSWORD)
        return f"{ftp.url}/some/where", lambda: {
            name.rpartition("/")[2]: data for name, data in ftp.files().items()
        }
    if request.param == "memory":
        from fsspec.implementations.memory import MemoryFileSystem

        store = MemoryFileSystem.store
        store.clear()
        return "memory://bucket/out", lambda: {
            path.rpartition("/")[2]: it.getvalue() for path, it in store.items()
        }
    url = f"file://{str(folder).replace(' ', '%20')}" if request.param == "file" else str(folder)
    return url, lambda: files_of(folder)


def test_parts_arrive_as_they_are_accepted_and_the_next_process_delivers_the_rest(
    home: Home, place: tuple[str, Callable[[], dict[str, bytes]]], tmp_path: Path
) -> None:
    address, files = place
    home.accept(1, "a", "b")
    home.accept(2)  # no items: nothing to read
    with home.publisher(open_sink(address, tmp_path)) as first:
        wait_for(lambda: words(files()) == ["a", "b"], 10, "the first part")
        first.add(home.accept(3, "c"))
        wait_for(lambda: words(files()) == ["a", "b", "c"], 10, "the one that was accepted then")
        assert not manifest_in(files())["complete"]
    wait_for(
        lambda: all(one.name != "sdist-deliver" for one in threading.enumerate()),
        10,
        "the first thread's end",
    )
    home.accept(4, "d")
    own = home.folder / "own-0.jl"
    own.write_text('{"item": "own"}\n')
    with home.publisher(open_sink(address, tmp_path)) as second:
        assert second.finish([own], 30) == ""
    assert sorted(words(files())) == ["a", "b", "c", "d", "own"]
    assert manifest_in(files())["complete"]
    assert set(files()) == {f"{HOME}.b{n}.a1.jl" for n in (1, 3, 4)} | {
        f"{HOME}.own-0.jl", f"_{HOME}.manifest.json"
    }  # fmt: skip
    with home.publisher(open_sink(address, tmp_path)) as again:  # all is there: nothing comes twice
        assert again.finish([own], 30) == ""
    assert sorted(words(files())) == ["a", "b", "c", "d", "own"]


def test_a_driver_that_tells_nothing_on_the_way_has_time_by_the_size_of_the_part(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SLOWEST", 1)

    class Silent(FolderSink):
        def put(self, name: str, path: Path, moved: Moved) -> None:
            threading.Event().wait(0.5)
            super().put(name, path, lambda: None)

    home.accept(1, "a")
    with home.publisher(Silent(tmp_path / "out")) as made:
        assert made.finish([], 0.1) == ""


class BadSink(FolderSink):
    """A folder that fails as often as it is told to, before or after a file is put."""

    def __init__(self, folder: Path, fails: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self.fails, self.early = (
            list(fails),
            list[str](),
        )  #: early: named in a manifest before they were there
        self.open = threading.Event()
        self.open.set()

    def write(self, name: str, content: bytes) -> None:
        if self.fails and self.fails[0] == "manifest":
            self.fails.pop(0)
            raise OSError("no manifest today")
        named = [part["name"] for part in json.loads(content)["parts"]]
        self.early += [part for part in named if not (self._folder / part).exists()]
        super().write(name, content)

    def put(self, name: str, path: Path, moved: Moved) -> None:
        self.open.wait()
        if self.fails and self.fails[0] in {"none", "part"} and self.fails.pop(0) == "part":
            raise OSError("no part today")
        super().put(name, path, moved)


def test_what_fails_is_told_once_and_tried_again_until_all_is_there_once(
    home: Home, tmp_path: Path
) -> None:
    sink, said = BadSink(tmp_path / "out"), list[str]()
    with home.publisher(sink, said) as it:
        # A manifest is written after a part that is there, and one that is not yet.
        sink.fails += ["none", "part", "none", "part", "part", "manifest"]
        for batch in range(1, 4):
            it.add(home.accept(batch, f"item {batch}"))
        assert it.finish([], 30) == ""
    assert sorted(words(files_of(tmp_path / "out"))) == ["item 1", "item 2", "item 3"]
    assert sink.early == []
    assert len(said) == 1
    assert "no part today" in said[0] and "tried again" in said[0]


@pytest.mark.parametrize("trouble", ["fails", "hangs", "lost"])
def test_a_delivery_that_comes_to_nothing_holds_nothing_up_and_loses_nothing(
    trouble: str, home: Home, tmp_path: Path
) -> None:
    sink, out = BadSink(tmp_path / "out"), tmp_path / "out"
    with home.publisher(sink) as it:
        if trouble == "hangs":
            sink.open.clear()
        sink.fails += ["part"] * 100_000 if trouble == "fails" else []
        first = home.accept(1, "a")
        if trouble == "lost":
            (home.folder / "shop.b1.a1.jl").rename(tmp_path / "away")
            it.add(home.accept(2, "b"))
        it.add(first)
        wrong = it.finish([], 0.3)
    assert str(out) in wrong and "1 of the crawl's parts" in wrong
    assert words(files_of(out)) == (["b"] if trouble == "lost" else [])
    if trouble == "lost":
        said: list[str] = []
        with home.publisher(FolderSink(out), said) as goes_on:
            goes_on.add(home.accept(3, "c"))
            assert (
                "1 of the crawl's parts" in goes_on.finish([], 30) and "another machine" in said[0]
            )
        assert (words(files_of(out)), manifest_in(files_of(out))["complete"]) == (["b", "c"], False)
        (tmp_path / "away").rename(home.folder / "shop.b1.a1.jl")
    with home.publisher(FolderSink(out)) as next_one:
        assert next_one.finish([], 30) == ""
    assert sorted(words(files_of(out))) == (["a", "b", "c"] if trouble == "lost" else ["a"])
    sink.open.set()


def test_a_place_that_never_answers_is_refused_after_a_time(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "BEGIN", 0.1)
    sink, answers = BadSink(tmp_path / "out"), threading.Event()
    monkeypatch.setattr(sink, "read", lambda name: answers.wait() and None)
    with pytest.raises(ConfigError, match="has not answered within"):
        home.publisher(sink).__enter__()
    answers.set()


def test_items_of_a_request_that_was_tried_again_do_not_count(home: Home, tmp_path: Path) -> None:
    home.accept(1, "kept", "torn", "kept too", missed_requests=[[1, "failed", [[1, 1]]]])
    with home.publisher(FolderSink(tmp_path / "out")) as it:
        wait_for(lambda: len(words(files_of(tmp_path / "out"))) == 3, 10, "the first try")
        it.add(home.accept(2, "whole", replaces=[[1, 1]]))
        assert it.finish([], 30) == ""
    assert words(files_of(tmp_path / "out")) == ["kept", "kept too", "whole"]
    with home.publisher(FolderSink(tmp_path / "out")) as later:
        assert later.finish([], 30) == ""
    assert words(files_of(tmp_path / "out")) == ["kept", "kept too", "whole"]


def test_a_place_that_takes_nothing_is_refused_before_anything_starts(
    home: Home, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Nothing was started"):
        home.publisher(open_sink(str(tmp_path / "file" / "below"), tmp_path)).__enter__()
    endless = {"name": "a", "items": float("inf"), "bytes": 1, "sha256": "x"}
    for wrong in (
        {"schema": 1, "crawl": "other", "parts": []},
        {"schema": 1, "crawl": HOME, "parts": [endless]},
    ):
        (tmp_path / f"_{HOME}.manifest.json").write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match="not one of this crawl"):
            home.publisher(open_sink(str(tmp_path), tmp_path)).__enter__()
    assert open_sink("~no-such-user/x", tmp_path).shown == str(tmp_path / "~no-such-user/x"), (
        "as a shell takes it"
    )


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("kafka://broker/topic", "begins with kafka://"), ("http://web/", "begins with http://"),
        ("s3:///", "no bucket or host"), ("file://data/items", "file:///folder"),
        ("ftp://u:p@host:none/", "cannot be read"), ("sftp://[::1/", "cannot be read"),
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(address: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says) as refusal:
        open_sink(address, tmp_path)
    assert "u:p" not in str(refusal.value)


def test_without_fsspec_the_extra_is_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"scrapyd-dist\[deliver\]"):
        home.publisher(open_sink("s3://bucket/x", tmp_path)).__enter__()


def test_a_driver_that_is_not_installed_is_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigError, match=r"scrapyd-dist\[deliver\].*driver that is named"):
        home.publisher(open_sink("s3://bucket/x", tmp_path)).__enter__()


def test_a_password_is_shown_nowhere_and_refused_on_the_command_line(
    home: Home, tmp_path: Path, ftp_server: Callable[..., FtpServer]
) -> None:
    ftp = ftp_server("someone", "another one")
    url = ftp.url.replace("another%20one", "s3cret")
    sink = open_sink(f"{url}/out?token=s3cret", tmp_path)
    assert "s3cret" not in sink.shown
    with pytest.raises(ConfigError) as refusal:
        home.publisher(sink).__enter__()
    assert "s3cret" not in str(refusal.value)
    assert refusal.value.__cause__ is not None
    assert "s3cret" not in str(refusal.value.__cause__)
    settings = Settings({"DISTRIBUTED_DELIVER": url})
    assert read_options(settings).deliver == url, "settings.py may have one"
    settings.set("DISTRIBUTED_DELIVER", url, priority="cmdline")
    with pytest.raises(ConfigError, match="process list") as refusal:
        read_options(settings)
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(ConfigError, match="--feed"):
        read_options(
            Settings({"DISTRIBUTED_DELIVER": "out", "DISTRIBUTED_TARGET_FEED_URL": "file:///x.jl"})
        )


def test_a_driver_gets_the_account_and_nothing_that_it_may_not_know(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class StrictDriver(SFTP):
        def __init__(self, **options: Any) -> None:
            given.update(options)
            raise OSError("The server is away.")

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "sftp", StrictDriver)
    with pytest.raises(ConfigError, match=r"is away\. Nothing was started") as refusal:
        home.publisher(
            open_sink(f"sftp://me:{quote(PASSWORD, safe='')}@host:22/out", tmp_path)
        ).__enter__()
    assert given == {"host": "host", "port": 22, "username": "me", "password": PASSWORD}
    assert PASSWORD not in str(refusal.value)
