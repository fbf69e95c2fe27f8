"""The environment that test nodes run in: Scrapy and Scrapyd, and certainly not this project."""

import os
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from .processes import private_environment

#: names an interpreter that has Scrapy and Scrapyd, and not this project
VARIABLE = "SDIST_NODE_PYTHON"


def node_python(cache: Path) -> Path:
    """The interpreter of the nodes: the one that SDIST_NODE_PYTHON names, else one made once and kept under `cache`."""
    given = os.environ.get(VARIABLE)
    python = Path(given) if given else _made_environment(cache)
    check = "import scrapyd, importlib.util as u, sys; sys.exit(u.find_spec('scrapyd_dist') is not None)"
    done = subprocess.run([python, "-c", check], cwd=cache, env=private_environment(cache), check=False)
    assert done.returncode == 0, f"{python} must have Scrapyd and must not have scrapyd_dist: nodes know nothing of us"
    return python


def _made_environment(cache: Path) -> Path:
    # The versions of this environment, so that the two ends of a test differ in nothing but this project.
    wanted = [f"scrapy=={version('scrapy')}", f"scrapyd=={version('scrapyd')}", f"twisted=={version('twisted')}"]
    wanted.append("setuptools<81")  # Scrapyd imports pkg_resources, which newer ones no longer have
    key = sha256(repr((sys.version_info[:3], sys.executable, wanted)).encode()).hexdigest()[:12]
    folder = cache / key
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([folder / "bin/python", "-m", "pip", "install", "--quiet", *wanted], check=True)
        (folder / "complete").touch()
    return folder / "bin/python"
