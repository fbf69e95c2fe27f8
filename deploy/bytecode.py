"""Compiles modules to byte code for eggs, because Python caches none for modules imported from a zip file.

Otherwise each job would compile them again. A node with another Python version uses the source. The same source gives
the same bytes.
"""

from __future__ import annotations

import marshal
from functools import cache
from importlib.util import MAGIC_NUMBER, source_hash

#: the newest marshal version whose output does not depend on reference counts
_SAME_BYTES = 2


@cache  # compile the worker half once per process
def compiled(source: bytes, path: str) -> bytes:
    """Return the content of an unchecked hash-based `.pyc` file.

    Args:
        source: the source of the module.
        path: the file name in tracebacks: the path inside the egg, which reveals nothing about this machine.
    """
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    return MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source) + marshal.dumps(code, _SAME_BYTES)
