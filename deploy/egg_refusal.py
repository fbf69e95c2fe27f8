"""Explains why a node refuses an egg, by Scrapyd's words, and says what to do.

The project is blamed only where it is at fault.
"""

import re
import sys

from scrapyd_dist.errors import ApiRefused
from scrapyd_dist.joblogs.remedies import remedy_for

from .egg import Egg

#: what the egg's boot module says where Python, Scrapy or Scrapyd is too old
_TOO_OLD = re.compile(r"(\w+) [\d.]+ is too old for scrapyd-dist; it needs ([\d.]+)")


def explain_refusal(error: ApiRefused, egg: Egg) -> str:
    """Return Scrapyd's message about an egg that it cannot import, with a remedy."""
    words = error.scrapyd_message
    if "No module named 'pkg_resources'" in words:
        return (
            f"its Scrapyd cannot read any egg ({words}): the setuptools on the node is too new. "
            "Run pip install 'setuptools<81' in the node's environment and restart its Scrapyd."
        )
    if old := _TOO_OLD.search(words):
        return f"its Scrapyd cannot run what sdist sends ({old[0]}). {_newer(old[1], old[2])}"
    remedy = _remedy(words, egg).rstrip(".")
    return f"the project cannot be imported there ({words}). {remedy}, and deploy again."


def _newer(name: str, needed: str) -> str:
    """Return how a node gets what is new enough."""
    if name == "Python":
        return (
            f"Install Scrapy and Scrapyd for Python {needed} or a later one on the node, start its "
            "Scrapyd with that, and deploy again."
        )
    return (
        f"On the node: pip install --upgrade '{name.lower()}>={needed}'; restart its Scrapyd, and "
        "deploy again."
    )


def _remedy(words: str, egg: Egg) -> str:
    missing = re.search(r"No module named '(\w+)", words)
    if missing and f"{missing[1]}.py" in egg.left_out:
        return (
            f"{missing[1]}.py lies beside the packages, and only packages travel: move it into one"
        )
    if missing and missing[1] in egg.left_out:
        return f"The folder {missing[1]} has no __init__.py, and only packages travel: add one"
    if missing:
        return (
            "Install what is missing on the node; or if it is the project's own, move it into a"
            " package beside scrapy.cfg"
        )
    if "SyntaxError" in words or "cannot import name" in words:
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return (
            f"If it can be imported here, with Python {here}, the node has an older Python or "
            "other packages: bring them to the same versions; else correct the project"
        )
    return remedy_for(words) or "Correct the project"
