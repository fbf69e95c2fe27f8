"""Run the tests in two processes side by side: most of them wait for other processes, and one core would idle.

    python tests/side_by_side.py -m "not black_box"     # every test module runs in one of the two
    python tests/side_by_side.py --again                # what failed in the last run, one after the other

The first part's output comes at once, the second's when the first has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rig.environment import VARIABLE, node_python

PARTS = 2
ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".pytest_cache"
#: pytest's exit code when nothing was selected
NOTHING = 5


def main(arguments: list[str]) -> int:
    CACHE.mkdir(exist_ok=True)
    if arguments == ["--again"]:
        codes = [again(number) for number in range(1, PARTS + 1)]
        # A part without a failure has nothing to run again; but if both have none, the tests never ran.
        return 1 if codes == [NOTHING] * PARTS else max(0 if code == NOTHING else code for code in codes)
    os.environ[VARIABLE] = str(node_python(CACHE))  # made once, before two processes want it
    with tempfile.TemporaryFile() as rest:
        first, second = start(1, arguments, None), start(2, arguments, rest)
        try:
            codes = [first.wait(), second.wait()]
        except KeyboardInterrupt:
            for process in (first, second):
                process.send_signal(signal.SIGINT)
            codes = [first.wait(), second.wait()]
        rest.seek(0)
        sys.stdout.buffer.write(rest.read())
    return max(abs(code) for code in codes)


def start(number: int, arguments: list[str], output: object) -> subprocess.Popen[bytes]:
    words = [*pytest(number), "--part", f"{number}/{PARTS}", *arguments]
    return subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT if output else None)  # type: ignore[call-overload, no-any-return]  # None or a file


def again(number: int) -> int:
    words = [*pytest(number), "--last-failed", "--last-failed-no-failures", "none"]
    return subprocess.run(words, cwd=ROOT, check=False).returncode


def pytest(number: int) -> list[str]:
    # A cache of its own for each, since pytest keeps there what failed.
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE / f'part{number}'}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
