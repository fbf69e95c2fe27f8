"""Tables, for a terminal or for a pipe: see `output`."""

from .output import plain_lines, table

__all__ = ["plain_lines", "table"]
