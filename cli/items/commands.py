"""`sdist items`: the items of jobs on their own: `pull`, `merge`, `tail`."""

from __future__ import annotations

from ..options import group
from .item_pull import pull
from .merge import merge
from .tail import tail

items = group("Fetch, merge and follow the items of crawls and jobs.", pull=pull, merge=merge, tail=tail)
