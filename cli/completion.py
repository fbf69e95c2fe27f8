"""`sdist completion`: the script that teaches a shell what may follow; and what that script asks for, at each TAB."""

from __future__ import annotations

import shlex
import sys
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .completing import Choice

_BASH = r"""
_sdist_complete() {
    local line lines
    COMPREPLY=()
    mapfile -t lines < <(command "${COMP_WORDS[0]}" --complete bash "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
    for line in "${lines[@]}"; do
        if [[ $line == :files ]]; then compopt -o default -o filenames; else COMPREPLY+=("$line"); fi
    done
}
complete -F _sdist_complete sdist
"""

_ZSH = r"""
#compdef sdist
_sdist() {
    local -a lines choices
    lines=("${(@f)$(command "${words[1]}" --complete zsh $((CURRENT - 1)) "${words[@]}" 2>/dev/null)}")
    choices=("${(@)lines:#:files}")
    choices=("${(@)choices:#}")
    (( ${#choices} )) && _describe -V sdist choices
    if (( ${lines[(Ie):files]} )); then _files; fi
}
if [[ $funcstack[1] == _sdist ]]; then _sdist "$@"; else compdef _sdist sdist; fi
"""

_FISH = r"""
function __sdist_complete
    set -l before (commandline --current-process --tokenize --cut-at-cursor)
    set -l typed (commandline --current-token --cut-at-cursor)
    for line in (command $before[1] --complete fish (count $before) $before "$typed" 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$typed"
        else
            echo $line
        end
    end
end
complete --command sdist --no-files --arguments "(__sdist_complete)"
"""

_PLACES = {
    "bash": 'eval "$(sdist completion bash)"    # in ~/.bashrc; bash 4.4 or later',
    "zsh": 'eval "$(sdist completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": "sdist completion fish > ~/.config/fish/completions/sdist.fish",
}
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


class Shell(str, Enum):
    """A shell that there is a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("completion", rich_help_panel="Help")(completion)


def completion(
    shell: Annotated[
        Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_choices=False, show_default=False)
    ],
) -> None:
    """Print the script with which a shell completes commands, options, nodes, crawls and spiders.

    It only looks at this machine: scrapy.cfg, the project's files, the store in .sdist.

    Example: eval "$(sdist completion bash)"
    """
    from .speaking import put

    put(_SCRIPTS[shell.value].strip("\n"))
    if sys.stdout.isatty():
        from .speaking import say

        say(f"To use it: {_PLACES[shell.value]}")


def answer(arguments: Sequence[str]) -> int:
    """What a script is told: a line for each choice, and `:files` where files will do.

    Args:
        arguments: shell, number of the word in question, and all words from `sdist` on.
    """
    from .completing import choices
    from .speaking import put

    shell, place, *words = arguments
    typed = words[int(place)] if int(place) < len(words) else ""
    before = words[1 : int(place)]
    if shell == "bash":
        before, typed = _joined(before, typed)
    # Bash replaces what stands behind the `=`, the others all of the word.
    fixed = f"{typed.partition('=')[0]}=" if shell != "bash" and typed.startswith("--") and "=" in typed else ""
    found = choices([_unquoted(word) for word in before], _unquoted(typed))
    for choice in found.of:
        put(_line(shell, choice, fixed))
    if found.files:
        put(":files")
    return 0


def _joined(before: list[str], typed: str) -> tuple[list[str], str]:
    """Undo bash's own cutting of words at `=`: the words before, and the one in question."""
    if typed == "=" and before and before[-1].startswith("--"):
        return before[:-1], f"{before[-1]}="
    if before[-1:] == ["="] and len(before) > 1 and before[-2].startswith("--"):
        return before[:-2], f"{before[-2]}={typed}"
    return [word for word in before if word != "="], typed


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word)) if word else ""
    except ValueError:  # a quote that is still open
        return word[1:] if word[:1] in {"'", '"'} else word


def _line(shell: str, choice: Choice, fixed: str) -> str:
    told, value = " ".join(choice.help.split()), fixed + choice.value
    if shell == "zsh":
        value = value.replace(":", "\\:")
        return f"{value}:{told}" if told else value
    if shell == "fish":
        return f"{value}\t{told}" if told else value
    return shlex.quote(value)
