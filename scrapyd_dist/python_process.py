"""Makes command lines for Python processes of ours that run a project's code.

The rule it keeps: as with `scrapy`, the folder of the project is the last place where modules are
looked for. Python's `-m` and `-c` make it the first one, and a file `json.py` beside scrapy.cfg
would be taken for the library.
"""

import sys

#: what Python begins with where no folder of a project is known yet
_NOWHERE = "import os, sys; sys.path[:1] == [''] and sys.path.pop(0)"
#: what Python begins with: neither module is looked for any more
_BEGIN = f"{_NOWHERE}; sys.path.append(os.getcwd())"


def command_of_code(code: str, *arguments: str) -> list[str]:
    """Return the command line that runs this code, in the project's folder."""
    separator = "\n" if "\n" in code else "; "
    return [sys.executable, "-c", f"{_BEGIN}{separator}{code}", *arguments]


def command_of_module(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs this module as `-m` does, in the project's folder."""
    run = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return command_of_code(run, *arguments)


def command_of_waiting(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls `main` of this module, before the project is known.

    It appends the folder of the project to the path when it is.
    """
    return [sys.executable, "-c", f"{_NOWHERE}; from {module} import main; main()", *arguments]
