"""Brings parts home from their nodes, for an event loop.

A part counts only when its length and hash are what its worker said.
"""

import asyncio
import errno
import os
import shutil
import time
from pathlib import Path

from scrapyd_dist.errors import DistError, NodeError
from scrapyd_dist.items.kept_parts import sha256_of
from scrapyd_dist.joblogs.worker_report import PartInfo, part_path
from scrapyd_dist.nodes import Node
from scrapyd_dist.scrapyd import api
from scrapyd_dist.transports import AsyncSender

#: seconds between two tries at a part
RETRY_PAUSE = 1.0
#: seconds that a part may take, beyond what it may take by its size; longer, and it counts as lost
LONGEST = 120.0
#: bytes per second: a part may take as long as at this pace
SLOWEST = 1024
#: bytes of free disk below which it is the disk of this machine that is full, and not a part that
#: is too large
FULL = 64 * 1024 * 1024


class PartLost(DistError):
    """A part could not be fetched whole from its node."""


class PartOutOfReach(PartLost):
    """A node did not answer for too long, or sends too slowly; it may still have the part."""


class PartTooBig(PartLost):
    """There is no room for a part at home, so its node has no part in that."""


async def fetch_part(
    sender: AsyncSender,
    node: Node,
    home: str,
    job: str,
    part: PartInfo,
    folder: Path,
    patience: float,
) -> str:
    """Bring one part home, going on where a broken connection left off.

    It is given up when nothing has come for `patience` seconds, or at last where it takes longer
    than by `LONGEST` and `SLOWEST`. `home` is the crawl's folder on the nodes, `job`
    the attempt's job id, `part` what its worker says of it. Gives the name of the file below
    `folder`; raises `PartLost` when the node was lost, or the file is another one, cannot fit here,
    or takes for ever; and OSError when nothing can be written here.
    """
    free = _free_bytes(folder)
    if part.bytes > free:
        if free < FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise PartTooBig(
            f"the part of {job} has {part.bytes:,} bytes, its worker says, and {free:,} are free in"
            f" {folder}"
        )
    fetching = _fetch_part(sender, node, home, job, part, folder, patience)
    try:
        return await asyncio.wait_for(fetching, patience + LONGEST + part.bytes / SLOWEST)
    except asyncio.TimeoutError:
        raise PartOutOfReach(f"the part of {job} comes too slowly from {node.name}") from None


def _free_bytes(folder: Path) -> int:
    """Return the free bytes in the folder, which is made if it is not there (any more)."""
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free


async def _fetch_part(
    sender: AsyncSender,
    node: Node,
    home: str,
    job: str,
    part: PartInfo,
    folder: Path,
    patience: float,
) -> str:
    growing = folder / f"{job}.jl.part"
    deadline = time.monotonic() + patience
    came = 0  # bytes that were here when the deadline was set
    with growing.open("wb") as file:
        while (begin := file.tell()) < part.bytes:
            if begin > came:
                came = begin
                deadline = time.monotonic() + patience
            left = part.bytes - begin
            try:
                call = api.fetch(part_path(home, job), start=begin, limit=left, sink=file.write)
                chunk = await sender.send(node, call)
            except NodeError as error:
                if file.tell() == begin and time.monotonic() > deadline:
                    raise PartOutOfReach(
                        f"the part of {job} could not be fetched: {error}"
                    ) from error
                await asyncio.sleep(RETRY_PAUSE)
                continue
            if chunk is None or file.tell() == begin:
                raise PartLost(
                    f"the part of {job} on {node.name} is gone, or shorter than its worker said"
                )
        file.flush()
        os.fsync(file.fileno())
    if await asyncio.get_running_loop().run_in_executor(None, sha256_of, growing) != part.sha256:
        raise PartLost(f"the part of {job} is not what its worker wrote (its hash differs)")
    growing.replace(folder / f"{job}.jl")
    return f"{job}.jl"
