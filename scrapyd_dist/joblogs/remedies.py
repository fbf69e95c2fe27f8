"""Says what to do about errors that code has on a node and not at home.

The files, modules and the Python of a node are others than those at home.
"""

import re

#: an exception's line, as Python writes it, and the place of the file in it
_MISSING_FILE = re.compile(
    r"(?:FileNotFoundError|NotADirectoryError): \[Errno \d+\] [\w ]+: '(?P<path>[^']+)'"
)
_MISSING_MODULE = re.compile(r"No module named '(?P<name>\w+)")
#: an egg's file name in a path, with something below it
_IN_EGG = re.compile(r"\.egg/.")


def remedy_for(error: str) -> str:
    """Return what to do about an error, as a sentence; empty if it is not known.

    The error is in a job's log, or in a node's refusal. Only errors are known that a node can have
    with code that works at home.
    """
    file = _MISSING_FILE.search(error)
    if file is not None and _IN_EGG.search(file["path"]):
        return (
            "Code cannot open a file inside a zipped egg: sdist deploy sends one that is unpacked"
            " on the node; if that failed, the job's log has a warning that says why."
        )
    if file is not None and not file["path"].startswith("/"):
        return (
            f"{file['path']!r} is a place relative to the folder in which Scrapyd was started on"
            " the node, and is not there: put the file into a package, and open it beside the code,"
            " as in Path(__file__).parent / 'NAME'."
        )
    module = _MISSING_MODULE.search(error)
    if module is not None:
        return (
            f"{module['name']} is not in the egg, nor on the node: install it there, or send it"
            " with sdist deploy --include-dependencies; of the project, only packages travel, which"
            " are folders with an __init__.py."
        )
    return ""
