"""How a page of the demo site misbehaves: one short text per path, the same in a file, a query and over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "gone", "fail", "status", "busy", "hang", "slow", "reset", "cut", "redirect", "header", "cookie", "setcookie",
    "says",
]  # fmt: skip

#: kinds that mean nothing without an argument
_NEED_ARGUMENT = {"status", "slow", "redirect", "header", "cookie", "setcookie", "says"}


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What one page does instead of simply answering.

    As text: `gone` (404), `fail` (500 always), `fail:2` (500 for the first two visits), `status:503`, `busy` (429),
    `busy:3` (the same with `Retry-After: 3`), `hang` (no answer ever), `slow:1.5` (seconds), `reset` (connection
    reset), `cut` (half a body, then closed), `redirect:/path`, `header:Name=value` or `cookie:name=value` (403 without
    it), `setcookie:name=value` (the page, and a cookie), `says:any text` (plain text, and not the page).
    """

    kind: Kind
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> Behaviour:
        """Read the text form.

        Raises:
            ValueError: when it is none of the forms above.
        """
        name, _, argument = text.partition(":")
        for kind in get_args(Kind):
            if kind == name and (argument or kind not in _NEED_ARGUMENT):
                behaviour = cls(kind=kind, argument=argument)
                behaviour.check()
                return behaviour
        raise ValueError(
            f"no such behaviour of a page: {text!r}; one of {', '.join(get_args(Kind))} is meant"
        )

    def check(self) -> None:
        """Refuse an argument that would only fail when the page is asked for.

        Raises:
            ValueError: when it does not fit the kind.
        """
        if self.kind in {"fail", "status", "busy"} and self.argument:
            int(self.argument)
        if self.kind == "slow":
            float(self.argument)
        if self.kind in {"header", "cookie", "setcookie"} and "=" not in self.argument:
            raise ValueError(f"{self.kind} needs name=value, not {self.argument!r}")

    def error_status(self, visits: int) -> int | None:
        """The status of an error answer, or None when the page answers well.

        Args:
            visits: how often the page was asked for, this time included.
        """
        if self.kind == "gone":
            return 404
        if self.kind == "status":
            return int(self.argument)
        if self.kind == "busy":
            return 429
        if self.kind == "fail" and (not self.argument or visits <= int(self.argument)):
            return 500
        return None

    def error_headers(self) -> dict[str, str]:
        """What an error answer says besides its status."""
        return {"Retry-After": self.argument} if self.kind == "busy" and self.argument else {}

    def lets_in(self, headers: dict[str, str]) -> bool:
        """Whether a request with these headers (names in lower case) may see the page."""
        name, _, value = self.argument.partition("=")
        if self.kind == "header":
            return headers.get(name.lower()) == value
        if self.kind == "cookie":
            return f"{name}={value}" in headers.get("cookie", "").replace(" ", "").split(";")
        return True


@dataclass(frozen=True, kw_only=True)
class Behaviours:
    """Which path behaves how: exact paths first, then prefixes, written with a `*` at the end."""

    exact: dict[str, Behaviour]
    prefixes: dict[str, Behaviour]

    @classmethod
    def parse(cls, texts: dict[str, str]) -> Behaviours:
        """Read a mapping path -> text; the text is that of `Behaviour`.

        Raises:
            ValueError: when one of the texts is none.
        """
        parsed = {path: Behaviour.parse(text) for path, text in texts.items()}
        return cls(
            exact={path: behaviour for path, behaviour in parsed.items() if not path.endswith("*")},
            prefixes={
                path[:-1]: behaviour for path, behaviour in parsed.items() if path.endswith("*")
            },
        )

    def of(self, path: str) -> Behaviour | None:
        """The behaviour of a path without a query, or None."""
        found = self.exact.get(path)
        if found is None and self.prefixes:
            return next(
                (found for start, found in self.prefixes.items() if path.startswith(start)), None
            )
        return found
