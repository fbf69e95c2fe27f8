"""The Redis client that travels in an egg: whole, the same bytes each time, and of use to a Python that has none."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from scrapyd_dist.deploy import redis_client as module
from scrapyd_dist.deploy.egg import build
from scrapyd_dist.deploy.redis_client import redis_client

from scrapyd_dist.errors import ConfigError

URL = "redis://host/0"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (tmp_path / "shop").mkdir()
    for name in ("__init__.py", "settings.py"):
        (tmp_path / "shop" / name).touch()
    return tmp_path


def test_a_file_needs_none() -> None:
    assert redis_client("/folder/store.db") == {}


def test_it_is_whole_and_has_its_licence() -> None:
    files = redis_client(URL)
    assert {"redis/__init__.py", "redis/retry.py", "redis/commands/core.py"} < files.keys()
    assert b"Permission is hereby granted" in files["redis/LICENSE"]
    assert {name.partition(".")[2] for name in files if "/" in name} == {"py", "pyc", ""}


def test_without_one_here_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"scrapyd-dist\[redis\]"):
        redis_client(URL)


def test_the_same_client_gives_the_same_egg(shop: Path) -> None:
    eggs = [build(shop, "shop.settings", requirements=redis_client(URL)) for _ in range(2)]
    assert eggs[0].data == eggs[1].data
    assert eggs[0].content_hash != build(shop, "shop.settings").content_hash


def test_byte_code_is_no_other_version(shop: Path) -> None:
    client = redis_client(URL)
    sources = {name: content for name, content in client.items() if not name.endswith(".pyc")}
    egg, plain = (build(shop, "shop.settings", requirements=files) for files in (client, sources))
    assert egg.content_hash == plain.content_hash
    assert len(egg.data) > len(plain.data)


@pytest.mark.parametrize("spoil", [False, True])
def test_a_python_without_one_imports_it(tmp_path: Path, spoil: bool) -> None:
    with zipfile.ZipFile(tmp_path / "x.egg", "w", zipfile.ZIP_DEFLATED) as egg:
        for name, content in redis_client(URL).items():
            other = spoil and name.endswith(".pyc")  # as the byte code of another Python
            egg.writestr(name, b"\0\0\0\0" + content[4:] if other else content)
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path / 'x.egg')!r}]\n"
        "import redis, redis.retry, redis.backoff, async_timeout\n"
        "print(redis.__file__.rpartition('.')[2], 'async' in async_timeout.__doc__)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["py" if spoil else "pyc", "True"], done.stderr
