"""Where a store is, how its address is shown, and on what kind of disk its file lies."""

from pathlib import Path

import pytest

from scrapyd_dist.errors import ConfigError, StoreError
from scrapyd_dist.store.address import check_local, kind_of, shown, store_address, without_prefix

ROOT = Path("/project")


@pytest.mark.parametrize(
    ("said", "variable", "where"),
    [
        ((), None, "/project/.sdist/store.db"),
        ((None, ""), "  ", "/project/.sdist/store.db"),
        (("mine.db",), None, "/project/mine.db"),
        ((None, "/data/mine.db"), None, "/data/mine.db"),
        (("mine.db", "other.db"), "sqlite:///data/x.db", "/data/x.db"),
        (("sqlite://mine.db",), None, "/project/mine.db"),
        (("mine.db",), "redis://:p@host:1/0?prefix=a:", "redis://:p@host:1/0?prefix=a:"),
        (("unix:///run/redis.sock?db=2",), None, "unix:///run/redis.sock?db=2"),
    ],
)
def test_the_environment_goes_first_then_what_was_said_then_the_projects_own_file(
    said: tuple[str | None, ...], variable: str | None, where: str
) -> None:
    assert (
        store_address(
            ROOT, *said, environment={} if variable is None else {"SDIST_STORE": variable}
        )
        == where
    )


@pytest.mark.parametrize("said", ["$SHOP", "${SHOP}"])
def test_a_setting_may_name_a_variable_and_one_that_is_not_set_is_told(said: str) -> None:
    assert (
        store_address(ROOT, said, environment={"SHOP": "redis://:p@host/0"}) == "redis://:p@host/0"
    )
    with pytest.raises(ConfigError, match="which is not in the environment"):
        store_address(ROOT, said, environment={"SHOP": " "})


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
    ("url", "plain", "prefix"),
    [
        ("redis://h/0", "redis://h/0", None),
        ("redis://h/0?prefix=shop:", "redis://h/0", "shop:"),
        ("redis://:p%40@h/0?db=1&prefix=a%3A&x=%2F", "redis://:p%40@h/0?db=1&x=%2F", "a:"),
    ],
)
def test_the_prefix_is_ours_and_the_rest_the_client_librarys(
    url: str, plain: str, prefix: str | None
) -> None:
    assert without_prefix(url) == (plain, prefix)


MOUNTS = r"""
sysfs /sys sysfs rw 0 0
/dev/sda1 / ext4 rw,relatime 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/local ext4 rw 0 0
//nas/my\040files /mnt/my\040files cifs rw 0 0
me@host:/ /mnt/far fuse.sshfs rw 0 0
/dev/sdc1 /mnt/far2 fuseblk rw 0 0
overlay /home/local/over nfs rw 0 0
overlay /home/local/over fuse.fuse-overlayfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/store.db", "ext4"),
        ("/home/me/p/.sdist/store.db", "nfs4"),
        ("/homes/me", "ext4"),
        ("/home/local/p", "ext4"),
        ("/mnt/my files/p", "cifs"),
        ("/mnt/far/p", "fuse.sshfs"),
        ("/mnt/far2/p", "fuseblk"),
        ("/home/local/over/p", "fuse.fuse-overlayfs"),
    ],
)
def test_the_closest_mount_tells_the_kind_of_file_system(path: str, kind: str) -> None:
    assert kind_of(Path(path), MOUNTS) == kind


def test_a_file_of_a_network_is_refused_with_the_way_out(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} nfs rw 0 0\n", "utf-8"
    )
    with pytest.raises(StoreError, match=r"network file system \(nfs\).*SDIST_STORE"):
        check_local(tmp_path / ".sdist" / "store.db", mounts)
    check_local(Path("/elsewhere/store.db"), mounts)
    check_local(tmp_path / "store.db", tmp_path / "no such table")
    check_local(tmp_path / "store.db")
