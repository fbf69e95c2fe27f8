"""Explains why a node refused an egg, with Scrapyd's message and a remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapyd_dist.errors import ApiRefused

    from .egg import Egg


def why(error: ApiRefused, egg: Egg | None) -> str:
    """Return Scrapyd's message about an egg that it cannot import, with a remedy."""
    words = error.said
    if "No module named 'pkg_resources'" in words:
        return (
            f"its Scrapyd cannot read any egg ({words}): the setuptools on the node is too new. "
            "Run pip install 'setuptools<81' in the node's environment and restart its Scrapyd."
        )
    missing = re.search(r"No module named '(\w+)", words)
    if missing and egg and f"{missing[1]}.py" in egg.left_out:
        return (
            f"the project cannot be imported there ({words}). {missing[1]}.py lies beside the packages, and only "
            "packages travel: move it into one, and deploy again."
        )
    if "No module named" in words:
        return f"the project cannot be imported there ({words}). Install what is missing on the node, and deploy again."
    return f"the project cannot be imported there ({words}). Correct the project, and deploy again."
