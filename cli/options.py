"""Options that several commands have, groups of options, and the values that a shell completes."""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from copy import copy
from dataclasses import fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, get_args

import typer
from typer.models import OptionInfo, ParameterInfo

from scrapyd_dist.config import load
from scrapyd_dist.errors import ConfigError, NothingMatched
from scrapyd_dist.settings import Setting, ValueKind
from scrapyd_dist.store import Store, open_store
from scrapyd_dist.store.address import is_url

from .context import Context, where

#: what a user calls; gives its exit code, None for 0
Command = Callable[..., int | None]
#: value and explanation
Candidates = list[tuple[str, str]]
_SPIDER = re.compile(r"""^\s+name\s*(?::\s*\w+\s*)?=\s*["']([^"'\n]+)["']""", re.MULTILINE)
_LABEL = re.compile(r"(?=.*\S)(?!=)[^,\x00-\x1f\x7f-\x9f]{1,200}")
#: source files of a project that are read, and bytes of each, at most
_MOST_FILES, _MOST_BYTES = 2000, 200_000


def nodes() -> Candidates:
    """The targets of scrapy.cfg, else the local nodes that run."""
    with suppress(Exception):
        context = Context()
        return [(node.name, node.url) for node in context.project.targets or context.local_nodes]
    return []


def crawls() -> Candidates:
    """Crawls and frontiers in the local store."""
    return _stored(
        lambda store: [
            (row.id, f"{row.spider or row.kind}, {row.state.value}") for row in store.crawls()
        ]
    )


def frontiers() -> Candidates:
    """Frontiers in the local store."""
    return _stored(
        lambda store: [
            (row.id, row.state.value) for row in store.crawls() if row.kind == "frontier"
        ]
    )


def domains() -> Candidates:
    """Domains that have a rule of the throttle in the local store."""
    return _stored(lambda store: [(domain, "") for domain in sorted(store.rules().rules)])


def spiders() -> Candidates:
    """Names of spiders in the project's files, which are read and not imported."""
    names: set[str] = set()
    with suppress(Exception):
        found = load()
        package = found.root.joinpath(*found.settings_module.split(".")[:-1])
        for path in islice(sorted(package.rglob("*.py")), _MOST_FILES):
            if "spider" in str(path.relative_to(package)):
                with suppress(OSError), path.open("rb") as file:
                    names.update(_SPIDER.findall(file.read(_MOST_BYTES).decode("utf-8", "replace")))
    return [(name, "") for name in sorted(names)]


def one_of(*words: str) -> Callable[[], list[str]]:
    return lambda: list(words)


def _stored(read: Callable[[Store], Candidates]) -> Candidates:
    """What the project's store has, if it is a file that exists; a server may be far away."""
    with suppress(Exception):
        address = where(load().root)
        if not is_url(address) and Path(address).exists():
            with closing(open_store(address)) as store:
                return read(store)
    return []


def option(help_: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option of a command; without names it is called as its parameter, and one of yes or no has no `--no-` form.

    A number is within `min` and `max`, else within the range of its kind (`settings.Setting`).
    """
    return typer.Option(..., *names, help=help_, rich_help_panel=panel, **more)


def argument(
    metavar: str, help_: str, completion: Callable[[], Any] | None = None, **more: Any
) -> Any:
    return typer.Argument(metavar=metavar, help=help_, autocompletion=completion, **more)


def span(name: str, help_: str, *, zero: bool = False, **more: Any) -> Any:
    """An option with a span of time, which the command gets in seconds; zero: whether it may be 0, for no limit."""
    return option(help_, name, metavar=TIME, min=0 if zero else None, **more)


def project_option(help_: str) -> Any:
    """`--project`, which the environment may give as well."""
    return option(help_, "--project", "-p", envvar="SDIST_PROJECT", show_envvar=False)


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
DryRun = Annotated[bool, option("Change nothing, and say what would be.")]
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
        "A label, by which lists are filtered; jobs get it, too. Repeatable.",
        "--label",
        metavar="NAME=VALUE",
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
#: seconds that a node may be given at most; a socket waits for 24 days at most
PATIENCE = 86400
Timeout = Annotated[
    float, option("Seconds that a node gets for each answer.", min=0.1, max=PATIENCE)
]
ConnectTimeout = Annotated[
    float, option("Seconds in which a connection has to come about.", min=0.1, max=PATIENCE)
]
_Check = Annotated[bool, option("As --dry-run, with exit code 10 if something would be changed.")]
#: the exit code of a command that would change something, or has found a difference
DIFFERENT = 10
#: the default of `ConnectTimeout`; a SYN that was lost is sent again after 1 and 3 s
CONNECT_TIMEOUT = 4.0
#: what stands for standard input
STDIN = "-"


def opened_file(stack: ExitStack, name: str) -> BinaryIO:
    """A file that the command was given, or standard input, to be read while `stack` is open."""
    if (
        name == STDIN
    ):  # with a buffer of its own: a thread that reads that of sys.stdin would let the process abort
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        return stack.enter_context(open(name, "rb"))
    except FileNotFoundError:
        raise NothingMatched(f"There is no file {name}; standard input is {STDIN}.") from None


def checked_labels(labels: Sequence[str] | None) -> tuple[str, ...]:
    """Labels that something new is given; ConfigError where one cannot be kept as a word of a setting."""
    for text in labels or ():
        if "," in text:
            raise ConfigError(
                f"--label {text!r} has a comma, which parts two labels. Give each by an option of its own."
            )
        if not _LABEL.fullmatch(text):
            raise ConfigError(
                f"--label {text!r} cannot be a label: it is NAME or NAME=VALUE, such as night=1, on one line of at most"
                " 200 characters."
            )
    return tuple(dict.fromkeys(labels or ()))


def has_labels(labels: Sequence[str], wanted: Sequence[str] | None) -> bool:
    """Whether all that are wanted are among the labels; one without a value is any of that name."""
    names = {*labels, *(label.partition("=")[0] for label in labels)}
    return names >= {*(wanted or ())}


def seconds(option: str, text: str) -> float:
    """A span of time such as `90`, `90s`, `30m`, `2h`, `7d` in seconds, more than 0."""
    return float(Setting(name=option, kind=ValueKind.SECONDS, help="").judged(text))


def asks(command: Command) -> Command:
    """A command with parameters that are groups of options, dataclasses such as `Output`: typer sees their fields.

    A parameter of type `Context` is no option: it gets one, which is closed when the command ends. One that can be
    tried without changing anything (`dry_run`) ends with 0 then; with `--check`, it ends as it says.
    """
    flat: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    contexts: list[str] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if parameter.annotation is Context:
            contexts.append(name)
        elif is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation
            flat += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    dry = any(parameter.name == "dry_run" for parameter in flat)
    if dry:
        flat.append(
            inspect.Parameter(
                "check", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_Check
            )
        )
    flat = sorted(
        map(_bounded, map(_named, flat)), key=lambda one: one.name == "as_json"
    )  # the help shows `--json` last

    def run(**values: Any) -> int | None:
        check = dry and values.pop("check")
        if check:
            values["dry_run"] = True
        for name, group in groups.items():
            values[name] = group(**{entry.name: values.pop(entry.name) for entry in fields(group)})
        with ExitStack() as stack:
            for name in contexts:
                values[name] = stack.enter_context(closing(Context()))
            code = command(**values)
        return 0 if dry and code == DIFFERENT and not check else code

    run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # typer reads it
    return run


def _named(parameter: inspect.Parameter) -> inspect.Parameter:
    """An option without names is called as its parameter: `--all` for `all_`."""
    info = getattr(parameter.annotation, "__metadata__", (None,))[0]
    if not isinstance(info, OptionInfo) or info.default is not ... or info.param_decls:
        return parameter
    named = copy(info)  # several parameters may share one
    named.param_decls = [f"--{parameter.name.strip('_').replace('_', '-')}"]
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, named])


def _bounded(parameter: inspect.Parameter) -> inspect.Parameter:
    """An option or argument that is a number is judged by its range, as settings are: typer's own takes `nan`."""
    info = getattr(parameter.annotation, "__metadata__", (None,))[0]
    kind = next(
        (kind for number, kind in _NUMBERS.items() if number in _types_in(parameter.annotation)),
        None,
    )
    if not isinstance(info, ParameterInfo) or kind is None or info.parser is not None:
        return parameter
    judged = copy(info)
    judged.metavar = info.metavar or ("N" if kind is ValueKind.WHOLE else TIME)
    kind = ValueKind.SECONDS if judged.metavar == TIME else kind
    row = Setting(name=parameter.name, kind=kind, least=info.min, most=info.max, help="")
    judged.parser, judged.min, judged.max = parser_of(row), None, None
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, judged])


def parser_of(row: Setting) -> Callable[[Any], Any]:
    """Gives an option the kind and the range of this row; what is wrong is told with the option's name."""

    def parse(value: Any) -> Any:
        try:
            return row.judged(value, "it")
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


_NUMBERS = {int: ValueKind.WHOLE, float: ValueKind.NUMBER}
#: the metavar of a span of time
TIME = "TIME"


def _types_in(annotation: Any) -> set[Any]:
    """The plain types in an annotation: `int` and `NoneType` for `list[int] | None`."""
    inner = get_args(annotation)
    return (
        set().union(*map(_types_in, inner))
        if inner
        else {annotation}
        if isinstance(annotation, type)
        else set()
    )
