"""Where the processors' seconds go while tests run: sampled from /proc, summed by what each process is."""

import os
import re
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

#: seconds between two samples; a process that starts and ends between them is not seen
INTERVAL = 0.5
#: bytes of a command line that are read; that of a fork is padded with zeros
ENOUGH = 500
TICKS = os.sysconf("SC_CLK_TCK")
#: the fields of /proc/PID/stat, from the state on, with the ticks of user and system
UTIME = 11
STIME = 12
START_TIME = 19


class ProcessorTime:
    """Samples all processes that started after it, in a thread of its own."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self._interval = interval
        self._began = _read_stat(os.getpid())[START_TIME]
        self._seconds: dict[tuple[int, int], tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(self._interval):
            for entry in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):  # it has ended
                    self._read(int(entry.name))

    def _read(self, pid: int) -> None:
        fields = _read_stat(pid)
        if fields[START_TIME] < self._began:
            return
        with Path(f"/proc/{pid}/cmdline").open("rb") as file:
            cmdline = file.read(ENOUGH)
        if cmdline:
            seconds = (fields[UTIME] + fields[STIME]) / TICKS
            self._seconds[pid, fields[START_TIME]] = name_process(cmdline), seconds

    def close(self) -> list[tuple[str, int, float]]:
        """Stop sampling. What processes were, how many there were, and their seconds, most first."""
        self._ended.set()
        self._thread.join()
        found: dict[str, list[float]] = defaultdict(list)
        for kind, used in self._seconds.values():
            found[kind].append(used)
        rows = [(kind, len(used), sum(used)) for kind, used in found.items()]
        return sorted(rows, key=lambda row: -row[2])


#: how `scrapyd_dist.python_process` names a module
_RUN = re.compile(r"(?:run_module\('|; from )([\w.]+)(?:'| import main)")


def _read_stat(pid: int) -> list[int]:
    state, *numbers = (
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    )
    return [ord(state), *map(int, numbers)]


def name_process(cmdline: bytes) -> str:
    """What a process is, by its command line: the program, the module or script that it runs, and a word of that."""
    program, *words = (
        Path(word).name for word in cmdline.decode("utf-8", "replace").rstrip("\0").split("\0")
    )
    if not program.startswith("python"):
        return program
    if ran := _RUN.search(cmdline.decode("utf-8", "replace")):
        return " ".join([ran[1], *(word for word in words[2:3] if word.isalpha())])
    module, *arguments = [word for word in words if not word.startswith("-")] or [program]
    if " " in module:
        return "pytest's worker"  # which is started with a line of code
    return " ".join([module, *(word for word in arguments[:1] if word.isalpha())])
