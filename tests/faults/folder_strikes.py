"""Disks that are full, and folders that are deleted or damaged, on nodes and at home."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from faults.trial import Trial

#: the node's disk in the trial that fills it
DISK_MB = 1


def fill_disk(trial: Trial) -> None:
    """The disk that one node writes its logs and parts to is full; later there is room again."""
    trial.wait_moment(0.05, 0.4)
    filler = trial.nodes[0].logs_dir / "filler"
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={filler}", "bs=1k"], check=False, capture_output=True
    )
    trial.wait_moment(0.6, 0.8)
    filler.unlink()


@contextmanager
def small_disk(trial: Trial) -> Iterator[None]:
    """A small file system of its own under one node's logs (needs root)."""
    logs = trial.nodes[0].logs_dir
    logs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", logs], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", logs], check=True)


def remove_files(trial: Trial) -> None:
    """The folder with the parts and reports of one node is removed while its workers write there."""
    trial.wait_moment()
    shutil.rmtree(trial.victim().logs_dir / "_sdist", ignore_errors=True)


def remove_logs(trial: Trial) -> None:
    """The whole log folder of one node is deleted."""
    trial.wait_moment()
    shutil.rmtree(trial.victim().logs_dir, ignore_errors=True)


def remove_eggs(trial: Trial) -> None:
    """The folder with all code of one node is deleted."""
    trial.wait_moment(0.05, 0.4)
    shutil.rmtree(trial.victim().work / "eggs", ignore_errors=True)


def remove_home(trial: Trial) -> None:
    """The folder is deleted that the crawl's parts come home to."""
    trial.wait_moment(0.3, 0.7)
    shutil.rmtree(trial.home, ignore_errors=True)


def damage_home(trial: Trial) -> None:
    """Half of the parts that have come home are damaged: cut off, longer, another byte, empty, or gone."""
    trial.wait_moment(0.4, 0.9)
    parts = sorted((trial.home / "parts").glob("*.b*.jl"))
    for part in trial.dice.sample(parts, (len(parts) + 1) // 2):
        text = part.read_bytes()
        damaged = [
            text[:-9],
            text + b'{"more": 1}\n',
            text.replace(b"1", b"2", 1),
            text.replace(b"}", b"", 1),
            b"",
        ]
        part.write_bytes(trial.dice.choice(damaged))
    for part in trial.dice.sample(parts, len(parts) // 8):
        part.unlink()


def lose_parts(trial: Trial) -> None:
    """Half of the parts that have come home are damaged there, and their nodes have them no more."""
    trial.is_all_to_come = True
    trial.wait_moment(0.4, 0.9)
    parts = sorted((trial.home / "parts").glob("*.b*.jl"))
    for part in trial.dice.sample(parts, (len(parts) + 1) // 2):
        part.write_bytes(part.read_bytes()[:-9])
        for node in trial.nodes:
            for copy in node.logs_dir.glob(f"_sdist/*/{part.name}"):
                copy.unlink()
