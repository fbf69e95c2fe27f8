r"""Makes foreign text harmless, so that it may be shown or logged.

What could steer a terminal, or show a text in another order than it has, becomes its escape:
`\x1b`, `\u202e`.
"""

import re

#: C0 but tab and line feed, DEL and C1, marks that reorder or break lines, halves of characters,
#: invisible tags
HAZARDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    r"\U000e0000-\U000e007f]"
)
#: what sets colours and faces in a terminal
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def harmless(text: str) -> str:
    """Return the text as it may be shown to people; lines and tabs stay."""
    return HAZARDS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def colourless(text: str) -> str:
    """Return a line of a log as it may be shown: its colours are left out."""
    return harmless(_COLOURS.sub("", text))
