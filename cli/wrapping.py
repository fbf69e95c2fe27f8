"""Wraps paragraphs for people to the width of their terminal. Text in, text out."""

import re
import textwrap

#: what is not divided, so that it can be copied: a command in backticks, one that ends a line, or
#: one that is a line
_COMMAND = re.compile(r"`[^`\n]+`|(?<=: )sdist [^\n]+$|(?<=^  )(?:sdist|cd) [^\n]+$", re.MULTILINE)
#: stands for a space that is no place to divide a line at
_HELD = "\ufffc"
#: what a line has more of in front of it than the line before, where it goes on with that
_INDENT = "  "
#: columns below which nothing is wrapped
_NARROWEST = 20


def wrap(text: str, columns: int) -> str:
    """Return the text with lines of so many columns at most, as far as words and commands allow.

    A line that is wrapped goes on under its own beginning, a little further in.
    """
    if columns < _NARROWEST:
        return text
    held = _COMMAND.sub(lambda found: found[0].replace(" ", _HELD), text)
    lines = [_wrap_line(line, columns) for line in held.split("\n")]
    return "\n".join(lines).replace(_HELD, " ")


def _wrap_line(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    indent = line[: len(line) - len(line.lstrip(" "))]
    further = indent + _INDENT if indent else ""
    return "\n".join(
        textwrap.wrap(
            line,
            columns,
            subsequent_indent=further,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
        )
    )
