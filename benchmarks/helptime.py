"""How long `sdist --help` takes, beside `scrapyd-client --help`, in turns on the same machine.

    python benchmarks/helptime.py [--runs 20] [--client PATH]

Without --client, scrapyd-client is installed into an environment that is thrown away. Exit code 1 when `sdist` takes
more than half of the other's time.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: `sdist --help` may take this share of the other's time
GOAL = 0.5
#: runs that only fill the caches
WARM = 2


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--client", type=Path, help="the scrapyd-client to compare with")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        client = asked.client or installed(Path(folder) / "client")
        # scrapyd-client refuses even its help outside of a project.
        (Path(folder) / "scrapy.cfg").write_text(
            "[settings]\ndefault = project.settings\n", encoding="utf-8"
        )
        ours, theirs = measure(
            [[*program(), "--help"], [str(client.absolute()), "--help"]], asked.runs, Path(folder)
        )
    share = statistics.median(ours) / statistics.median(theirs)
    for name, times in (("sdist --help", ours), ("scrapyd-client --help", theirs)):
        print(
            f"{name:24} median {statistics.median(times):.3f} s, least {min(times):.3f} s, of {len(times)}"
        )
    print(f"share of the medians: {share:.2f} (goal: at most {GOAL})")
    return int(share > GOAL)


def program() -> list[str]:
    """The `sdist` of this environment."""
    return [str(Path(sys.executable).parent / "sdist")]


def installed(folder: Path) -> Path:
    """scrapyd-client in an environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "--quiet", "scrapyd-client"], check=True
    )
    return folder / "bin" / "scrapyd-client"


def measure(commands: list[list[str]], runs: int, folder: Path) -> list[list[float]]:
    """Seconds of each run of each command; they take turns, so that both meet the same load."""
    times: list[list[float]] = [[] for _ in commands]
    for number in range(WARM + runs):
        for command, own in zip(commands, times, strict=True):
            begun = time.perf_counter()
            subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
            if number >= WARM:
                own.append(time.perf_counter() - begun)
    return times


if __name__ == "__main__":
    sys.exit(main())
