"""On what kind of file system a store lies."""

from pathlib import Path

import pytest

from scrapyd_dist.errors import StoreError
from scrapyd_dist.store.sqlite.file_systems import check_local, kind_of

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
