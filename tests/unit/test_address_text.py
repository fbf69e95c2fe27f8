"""What an address of a store says, and how it is shown."""

from pathlib import Path

import pytest

from scrapyd_dist.store.ports.address_text import file_of, scheme_of, shown


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("/data/a:b/store.db", "/data/a:b/store.db"),
        ("sqlite:///data/store.db", "/data/store.db"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:geheim@host:6379/0", "redis://host:6379/0"),
        (
            "rediss://user:ge%40heim@host/1?prefix=a:&password=geheim&db=2",
            "rediss://host/1?prefix=a:&db=2",
        ),
        ("redis://user:ge@heim@host/1#geheim", "redis://host/1"),
        ("redis://host/0?password=geheim", "redis://host/0"),
        ("unix://:geheim@/run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        ("postgres://u:geheim@host", "postgres://host"),
        ("u:geheim@redis://host", "redis://host"),
        ("redis://geheim:geheim@", "redis://"),
        ("redis://user:geheim", "redis://user:***"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis://[::1]/0", "redis://[::1]/0"),
    ],
)
def test_an_address_is_shown_without_what_is_secret(address: str, told: str) -> None:
    assert shown(address) == told


@pytest.mark.parametrize(
    ("address", "scheme", "file"),
    [
        ("store.db", "", Path("store.db")),
        (Path("/data/store.db"), "", Path("/data/store.db")),
        ("sqlite:///data/store.db", "sqlite", Path("/data/store.db")),
        ("redis://host/0", "redis", None),
        ("unix:///run/redis.sock", "unix", None),
    ],
)
def test_an_address_is_a_file_or_a_servers(
    address: str | Path, scheme: str, file: Path | None
) -> None:
    assert scheme_of(address) == scheme
    assert file_of(address) == file
