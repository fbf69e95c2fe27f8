"""Defines options that several commands have, and the values that a shell completes."""

import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from copy import copy
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Annotated, Any, BinaryIO, get_args

import typer
from typer.models import OptionInfo, ParameterInfo

from scrapyd_dist.batches import Crawl
from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.fleet.project_store import find_store_address
from scrapyd_dist.settings import Setting, ValueKind
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.ports.address_text import file_of

from .context import Context

#: what a user calls; gives its exit code, None for 0
Command = Callable[..., int | None]
#: value and explanation
Candidates = list[tuple[str, str]]
_SPIDER = re.compile(r"""^\s+name\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']""", re.MULTILINE)
_LABEL = re.compile(r"(?=.*\S)(?!=)[^,\x00-\x1f\x7f-\x9f]{1,200}")
#: source files of a project that are read at most
_MOST_FILES = 2000
#: bytes that are read of each at most
_MOST_BYTES = 200_000
#: seconds that a node may be given at most; a socket waits for 24 days at most
PATIENCE = 86400
#: the exit code of a command that would change something, or has found a difference
DIFFERENT = 10
#: the default of `ConnectTimeout`; a SYN that was lost is sent again after 1 and 3 s
CONNECT_TIMEOUT = 4.0
#: what stands for standard input
STDIN = "-"
#: the metavar of a span of time
TIME = "TIME"
_NUMBERS = {int: ValueKind.WHOLE, float: ValueKind.NUMBER}


def nodes() -> Candidates:
    """Return the targets of scrapy.cfg, else the local nodes that run."""
    with suppress(Exception):
        context = Context()
        return [(node.name, node.url) for node in context.project.targets or context.local_nodes]
    return []


def crawls() -> Candidates:
    """Return the crawls and frontiers in the local store."""
    return [(row.id, f"{row.spider or row.kind}, {row.state.value}") for row in _stored_crawls()]


def frontiers() -> Candidates:
    """Return the frontiers in the local store."""
    found = []
    for row in _stored_crawls():
        if row.kind == "frontier":
            state = row.state.value
            found.append((row.id, state))
    return found


def domains() -> Candidates:
    """Return the domains that have a rule of the throttle in the local store."""
    with suppress(Exception), _local_store() as store:
        return _without_explanations(store.rules().rules)
    return []


def spiders() -> Candidates:
    """Return the names of spiders in the project's files, which are read and not imported."""
    names: set[str] = set()
    with suppress(Exception):
        found = load()
        package = found.root.joinpath(*found.settings_module.split(".")[:-1])
        for path in islice(sorted(package.rglob("*.py")), _MOST_FILES):
            if "spider" in str(path.relative_to(package)):
                with suppress(OSError), path.open("rb") as file:
                    text = file.read(_MOST_BYTES).decode("utf-8", "replace")
                    names.update(_SPIDER.findall(text))
    return _without_explanations(names)


def one_of(*words: str) -> Callable[[], list[str]]:
    """Return what completes to one of these words."""
    return lambda: list(words)


def _without_explanations(names: Iterable[str]) -> Candidates:
    return [(name, "") for name in sorted(names)]


def _stored_crawls() -> Sequence[Crawl]:
    with suppress(Exception), _local_store() as store:
        return store.crawls()
    return []


def _local_store() -> AbstractContextManager[Store]:
    """Open the project's store, if it is a file that exists; a server may be far away.

    Raises:
        FileNotFoundError: there is none.
    """
    address = find_store_address(load().root)
    file = file_of(address)
    if file is None or not file.exists():
        raise FileNotFoundError
    return closing(open_store(address))


def option(help_: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option of a command; panel: the heading that it has in the help.

    Without names it is called as its parameter, and one of yes or no has no `--no-` form. A number
    is within `min` and `max`, else within the range of its kind (`settings.Setting`).
    """
    return typer.Option(..., *names, help=help_, rich_help_panel=panel, **more)


def argument(
    metavar: str, help_: str, completion: Callable[[], Any] | None = None, **more: Any
) -> Any:
    """Return an argument of a command; completion: gives the values that a shell completes."""
    return typer.Argument(metavar=metavar, help=help_, autocompletion=completion, **more)


def span(name: str, help_: str, *, zero: bool = False, **more: Any) -> Any:
    """Return an option with a span of time, which the command gets in seconds.

    zero: whether it may be 0, for no limit.
    """
    return option(help_, name, metavar=TIME, min=0 if zero else None, **more)


def project_option(help_: str) -> Any:
    """Return `--project`, which the environment may give as well."""
    return option(
        help_, "--project", "-p", metavar="NAME", envvar="SDIST_PROJECT", show_envvar=False
    )


Project = Annotated[
    str | None, project_option("Scrapyd's name of the project: [deploy] project, else BOT_NAME.")
]
Nodes = Annotated[
    list[str] | None,
    option(
        "Only these nodes: names, globs as in 'eu-*', or addresses; repeatable.",
        "--node",
        "-t",
        metavar="NAME",
        autocompletion=nodes,
    ),
]
Yes = Annotated[bool, option("Do not ask.", "--yes", "-y")]
DryRun = Annotated[
    bool, option("Change nothing, and say what would be; exit code 10 if there is something.")
]
Quiet = Annotated[bool, option("Say nothing but errors.", "--quiet", "-q")]
SpiderName = Annotated[
    str, argument("SPIDER", "Its name, as `scrapy list` shows it.", spiders, show_default=False)
]
FrontierName = Annotated[
    str, argument("FRONTIER", "Its name, as `sdist frontier list` shows it.", frontiers)
]
JobProject = Annotated[str | None, project_option("Only jobs of this project.")]
Spider = Annotated[
    str | None,
    option(
        "Only jobs of this spider, or of spiders that fit, as in 'shop*'.",
        metavar="NAME",
        autocompletion=spiders,
    ),
]
NewLabels = Annotated[
    list[str] | None,
    option(
        "A label, by which lists are filtered; a NAME alone is one, too. Jobs get it as well."
        " Repeatable.",
        "--label",
        metavar="NAME[=VALUE]",
    ),
]
#: without a value it means all labels of that name
OnlyLabels = Annotated[
    list[str] | None,
    option(
        "Only what has this label; with several, all of them. Repeatable.",
        "--label",
        metavar="NAME[=VALUE]",
    ),
]
Timeout = Annotated[
    float, option("Seconds that a node gets for each answer.", min=0.1, max=PATIENCE)
]
ConnectTimeout = Annotated[
    float, option("Seconds in which a connection has to come about.", min=0.1, max=PATIENCE)
]


def opened_file(stack: ExitStack, name: str) -> BinaryIO:
    """Open a file that the command was given, or standard input, until `stack` is closed."""
    if name == STDIN:
        # With a buffer of its own: a thread that reads that of sys.stdin would let the process
        # abort.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return stack.enter_context(open(name, "rb"))  # noqa: PTH123  # Path("") is a folder
    except FileNotFoundError:
        raise NothingMatched(f"There is no file {name}; standard input is {STDIN}.") from None


def checked_labels(labels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the labels that something new is given, each once.

    Raises:
        ConfigError: a label cannot be kept as a word of a setting.
    """
    for text in labels or ():
        if "," in text:
            raise ConfigError(
                f"--label {text!r} has a comma, which parts two labels. Give each by an option of"
                " its own."
            )
        if not _LABEL.fullmatch(text):
            raise ConfigError(
                f"--label {text!r} cannot be a label: it is NAME or NAME=VALUE, such as night=1, on"
                " one line of at most 200 characters."
            )
    return tuple(dict.fromkeys(labels or ()))


def as_typer_command(command: Command) -> Command:
    """Return a command whose parameters may be groups of options, as typer takes it.

    Groups are dataclasses such as `Output`: typer sees their fields. A parameter of type `Context`
    is no option: it gets one, which is closed when the command ends.
    """
    parameters = _Parameters()
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        parameters.add(name, parameter)

    def run(**values: Any) -> int | None:
        with ExitStack() as stack:
            return command(**parameters.gather(values, stack))

    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature(parameters.sorted())  # type: ignore[attr-defined]
    return run


class OptionSource(ABC):
    """Marks a field of a group of options, by `Annotated`, whose options are made from a table."""

    @abstractmethod
    def make(self, declared: Collection[str]) -> Mapping[str, inspect.Parameter]:
        """Return the parameters by the keys that the field's mapping has for their values.

        `declared` are the other fields of the group.
        """


class _Parameters:
    """The parameters of a command: options, groups of options, and the project's `Context`."""

    def __init__(self) -> None:
        self.flat: list[inspect.Parameter] = []  #: all options, those of groups as well
        self._groups: dict[str, Any] = {}  #: name of a parameter -> its dataclass
        #: name of a field with options from a table -> name of each of these -> its key
        self._tables: dict[str, dict[str, str]] = {}
        self._contexts: list[str] = []  #: names of parameters

    def add(self, name: str, parameter: inspect.Parameter) -> None:
        """Add a parameter of the command."""
        if parameter.annotation is Context:
            self._contexts.append(name)
        elif is_dataclass(parameter.annotation):
            self._add_group(name, parameter.annotation)
        else:
            self.flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    def _add_group(self, name: str, group: Any) -> None:
        """Add the fields of a group, and the options that it has from tables."""
        self._groups[name] = group
        options = inspect.signature(group, eval_str=True).parameters
        for option in options.values():
            source = _metadata(option)
            if not isinstance(source, OptionSource):
                self.flat.append(option)
                continue
            made = source.make(options)
            self.flat += made.values()
            self._tables[option.name] = {entry.name: key for key, entry in made.items()}

    def sorted(self) -> list[inspect.Parameter]:
        """Return the options as typer is to see them; the help shows `--json` last."""
        options = map(_bounded, map(_named, self.flat))
        return sorted(options, key=lambda parameter: parameter.name == "as_json")

    def gather(self, values: dict[str, Any], stack: ExitStack) -> dict[str, Any]:
        """Return the values of the command's own parameters; contexts live as long as `stack`."""
        for name, group in self._groups.items():
            members = {}
            for entry in fields(group):
                if entry.name in self._tables:
                    members[entry.name] = self._gather_table(entry.name, values)
                else:
                    members[entry.name] = values.pop(entry.name)
            values[name] = group(**members)
        for name in self._contexts:
            values[name] = stack.enter_context(closing(Context()))
        return values

    def _gather_table(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        """Take the values of options from a table out of all values, those that are given."""
        given: dict[str, Any] = {}
        for option, key in self._tables[name].items():
            value = values.pop(option)
            if value not in (None, []):
                given[key] = value
        return given


def _metadata(parameter: inspect.Parameter) -> Any:
    """Return what `Annotated` says of a parameter; None for nothing."""
    return getattr(parameter.annotation, "__metadata__", (None,))[0]


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """Call an option without names as its parameter: `--all` for `all_`."""
    info = _metadata(parameter)
    if not isinstance(info, OptionInfo) or info.default is not ... or info.param_decls:
        return parameter
    named = copy(info)  # several parameters may share one
    named.param_decls = [f"--{parameter.name.strip('_').replace('_', '-')}"]
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, named])


def _bounded(parameter: inspect.Parameter) -> inspect.Parameter:
    """Judge an option or argument that is a number by its range, as settings are.

    Typer's own check takes `nan`.
    """
    info = _metadata(parameter)
    kind = _number_kind(parameter.annotation)
    if not isinstance(info, ParameterInfo) or kind is None or info.parser is not None:
        return parameter
    judged = copy(info)
    if not info.metavar:
        judged.metavar = "N" if kind is ValueKind.WHOLE else TIME
    if judged.metavar == TIME:
        kind = ValueKind.SECONDS
    row = Setting(name=parameter.name, kind=kind, least=info.min, most=info.max, help="")
    judged.parser = parser_of(row)
    judged.min = None
    judged.max = None
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, judged])


def _number_kind(annotation: Any) -> ValueKind | None:
    types = _types_in(annotation)
    for number, kind in _NUMBERS.items():
        if number in types:
            return kind
    return None


def _types_in(annotation: Any) -> set[Any]:
    """Return the plain types in an annotation: `int` and `NoneType` for `list[int] | None`."""
    inner = get_args(annotation)
    if inner:
        return set().union(*map(_types_in, inner))
    if isinstance(annotation, type):
        return {annotation}
    return set()


def parser_of(row: Setting) -> Callable[[Any], Any]:
    """Return what reads the values of an option, of the kind and in the range of this row.

    What is wrong is said with the option's name.
    """

    def parse(value: Any) -> Any:
        try:
            return row.judged(value, "it")
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None

    return parse
