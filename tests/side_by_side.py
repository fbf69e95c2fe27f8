"""Run the tests in two processes side by side: most of them wait for other processes, and one core would idle.

    python tests/side_by_side.py -m "not black_box"     # every test module runs in one of the two
    python tests/side_by_side.py --again                # what failed in the last run, one after the other

The first part's output comes at once, the second's when the first has ended.
"""

from __future__ import annotations

import json
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
#: the exit codes of both parts, written when both have ended: a run that was cut off has nothing to run again
ENDED = CACHE / "ended.json"
#: pytest's exit codes of a run that came to its end
PASSED, FAILED = 0, 1


def main(arguments: list[str]) -> int:
    CACHE.mkdir(exist_ok=True)
    if arguments == ["--again"]:
        return again()
    ENDED.unlink(missing_ok=True)
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
    ENDED.write_text(json.dumps(codes))
    return max(abs(code) for code in codes)


def again() -> int:
    """Runs what failed in the last run once more, if both parts came to their end; returns an exit code."""
    codes = json.loads(ENDED.read_text()) if ENDED.exists() else []
    if FAILED not in codes or not set(codes) <= {PASSED, FAILED}:
        print(f"Nothing to run again: the last run's two parts ended with {codes or 'nothing (it was cut off)'}.")
        return 1
    failed = [number for number, code in enumerate(codes, start=1) if code == FAILED]
    return max(
        subprocess.run([*pytest(number), "--last-failed"], cwd=ROOT, check=False).returncode for number in failed
    )


def start(number: int, arguments: list[str], output: object) -> subprocess.Popen[bytes]:
    words = [*pytest(number), "--part", f"{number}/{PARTS}", *arguments]
    return subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT if output else None)  # type: ignore[call-overload, no-any-return]  # None or a file


def pytest(number: int) -> list[str]:
    # A cache of its own for each, since pytest keeps there what failed.
    return [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHE / f'part{number}'}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
