"""Byte code that travels beside its source, since Python keeps none for what it imports from a zip file.

Each job would compile anew what never changes. A node with another version of Python does not look at it, and takes the
source. The same source gives the same bytes.
"""

from __future__ import annotations

import marshal
from functools import cache
from importlib.util import MAGIC_NUMBER, source_hash

#: the newest form of byte code that does not depend on what else this process has in memory
_SAME_BYTES = 2


@cache  # a process that packs more than one egg compiles its own half once
def compiled(source: bytes, path: str) -> bytes:
    """What Python keeps in a `.pyc` file, of the kind that is never compared with the source.

    Args:
        source: of the module.
        path: what tracebacks name; inside the egg, so that it tells nothing of this machine.
    """
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + marshal.dumps(code, _SAME_BYTES)
