"""Holds the table of commands with their exit codes, and loads a command when it is called."""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from scrapyd_dist.near_names import ask_about

#: what a code means wherever nothing else is said
MEANINGS = {
    0: "all good",
    1: "the work failed",
    2: "wrong usage or configuration; nothing was started",
    3: "partial: some URLs, index pages or nodes failed",
    4: "what was named does not exist",
    5: "no node could be reached",
    6: "user name, password or certificate refused",
    10: "a dry run would change something, or a difference or a mistake was found",
    124: "the time was up",
    130: "interrupted by Ctrl-C",
}
#: exit codes -> the commands that end with them, without `sdist`
_ENDS: Mapping[tuple[int, ...], str] = {
    (0, 2): ", completion, help, throttle, frontier, items, crawls, jobs, nodes, code, strategy",
    (0, 1, 2, 3, 130): "demo",
    (0, 2, 10, 130): "init",
    (0, 2, 10): "config",
    (0, 1, 2, 4, 5, 6, 130): "plan",
    (0, 1, 2, 3, 4, 5, 6): "status",
    (0, 1, 2, 6): "crawls list, strategy list, throttle set, throttle pause, throttle resume",
    (0, 1, 2, 4, 6, 124, 130): "pause, strategy pause",
    (0, 1, 2, 3, 4, 5, 6, 124, 130): (
        "crawl, resume, watch, stop, retry, frontier consume, strategy run, nodes drain,"
        " jobs cancel"
    ),
    (0, 1, 2, 4, 6): (
        "crawls show, report, throttle show, frontier list, frontier count,"
        " frontier dump, frontier prioritise, frontier requeue, nodes resume, nodes remove,"
        " nodes metrics, strategy status, strategy resume, strategy replay"
    ),
    (0, 1, 2, 4, 6, 10, 130): "crawls clean",
    (0, 1, 2, 4, 6, 130): "strategy join, strategy add, strategy reset, strategy events",
    (0, 1, 2, 4, 6, 10): "throttle apply",
    (0, 1, 2, 3, 4, 6, 130): (
        "frontier add, frontier move, frontier delete, items merge, items tail"
    ),
    (0, 1, 2, 3, 4, 5, 6, 130): (
        "doctor, nodes list, jobs schedule, jobs list, logs, jobs grep, jobs stats, items pull"
    ),
    (0, 1, 2, 130): "nodes up, nodes down, web",
    (0, 2, 3, 5, 6, 130): "nodes add",
    (0, 1, 2, 3, 4, 5, 6, 10, 130): ("deploy, code rollback, code prune, code versions"),
    (0, 1, 2, 4, 5, 6): "nodes api",
}
#: path of a command, without `sdist` -> its codes
CODES = {path: codes for codes, paths in _ENDS.items() for path in paths.split(", ")}
MOST_OPTIONS = 11  #: with more, the help of a command leaves some out
#: commands with very many options -> those that their help shows, these first
FIRST_OPTIONS = {
    "crawl": (
        "--callback",
        "-O",
        "-o",
        "-a",
        "-s",
        "--node",
        "--limit",
        "--max-items",
        "--max-time",
        "--detach",
        "--json",
    ),
    "plan": ("--callback", "-O", "-o", "-a", "-s", "--node", "--limit", "--probe", "--json"),
    "jobs schedule": (
        "-a",
        "-s",
        "--on",
        "--label",
        "--unless-running",
        "--retries",
        "--limit",
        "--after",
        "--on-finish",
        "--json",
    ),
}
ALL = "--all"  #: with `--help`: also the options that are rarely used
LIST = "list"  #: the verb of a group that is called alone
#: docstrings keep their lines
MARKUP: Any = "rich"
#: what Rich takes for a tag of its markup
_TAG = re.compile(r"(?=\[[a-z#/@][^\[]*?\])")


class CommandEntry(NamedTuple):
    """A command, or a group of verbs, before its modules are imported."""

    panel: str
    summary: str  #: the first sentence of its help, of one line in that of `sdist`; a test compares
    module: str = ""  #: of this package; has the command's function, under its name
    #: of a group: `module: verb verb`; a group that is called alone runs its `list`
    verbs: tuple[str, ...] = ()


_START = "Start here"
_CRAWLS = "Crawls"
_NODES = "Nodes"
_JOBS = "Jobs and items"
_ADVANCED = "Advanced"
_HELP = "Help"
COMMANDS = {
    "demo": CommandEntry(
        _START, "Show it all on this machine: a site, nodes, and one crawl.", "crawls.demo"
    ),
    "init": CommandEntry(_START, "Write the nodes of this project into its scrapy.cfg.", "init"),
    "config": CommandEntry(
        _START, "Show the options in force: project, targets, settings.", "config_command"
    ),
    "crawl": CommandEntry(
        _CRAWLS, "Spread one crawl over the nodes, and bring the items home.", "crawls.crawl"
    ),
    "plan": CommandEntry(
        _CRAWLS, "Show what `sdist crawl` would do, without doing it.", "crawls.crawl"
    ),
    "watch": CommandEntry(
        _CRAWLS, "Watch a crawl or the fleet, or wait for crawls or jobs.", "status"
    ),
    "status": CommandEntry(
        _CRAWLS, "Say how a crawl stands, once; or how the fleet does.", "status"
    ),
    "resume": CommandEntry(
        _CRAWLS, "Go on with a crawl that was stopped or paused, or that died.", "crawls.crawl"
    ),
    "pause": CommandEntry(
        _CRAWLS,
        "Let a crawl rest until `sdist resume`: no request of it leaves.",
        "crawls.stored_crawls",
    ),
    "stop": CommandEntry(
        _CRAWLS, "Stop a crawl: its producer first, then its jobs on all nodes.", "jobs.cancel"
    ),
    "retry": CommandEntry(
        _CRAWLS,
        "Try again what a crawl gave up and, if asked for, what failed.",
        "crawls.stored_crawls",
    ),
    "report": CommandEntry(_CRAWLS, "Make a page of one crawl: growth, nodes, failures.", "status"),
    "web": CommandEntry(_CRAWLS, "Show the fleet, crawls and jobs in a browser.", "web_command"),
    "crawls": CommandEntry(
        _CRAWLS,
        "List crawls, show what is in one, and remove old ones.",
        verbs=("crawls.crawl: list", "crawl_show: show", "crawls.stored_crawls: clean"),
    ),
    "throttle": CommandEntry(
        _CRAWLS,
        "Show and set how many requests each domain gets.",
        verbs=("crawls.throttle_commands: show apply set pause resume",),
    ),
    "nodes": CommandEntry(
        _NODES,
        "List, add, drain, start and ask nodes.",
        verbs=(
            "nodes.node_commands: list add remove drain resume up down",
            "nodes.api_call: api",
            "nodes.metrics: metrics",
        ),
    ),
    "doctor": CommandEntry(_NODES, "Look for what endangers work on the nodes.", "nodes.doctor"),
    "deploy": CommandEntry(
        _NODES, "Build the project once, and upload it to nodes at once.", "nodes.deploy"
    ),
    "code": CommandEntry(
        _NODES,
        "See, roll back and prune the versions on the nodes.",
        verbs=("nodes.version_list: versions rollback prune",),
    ),
    "jobs": CommandEntry(
        _JOBS,
        "List, schedule, cancel and search the jobs of all nodes.",
        verbs=(
            "jobs.jobs_table: list",
            "jobs.schedule: schedule",
            "jobs.cancel: cancel",
            "jobs.logs: grep",
            "jobs.job_stats: stats",
        ),
    ),
    "logs": CommandEntry(_JOBS, "Show the logs of jobs on all nodes as one.", "jobs.logs"),
    "items": CommandEntry(
        _JOBS,
        "Fetch, merge and follow the items of crawls and jobs.",
        verbs=(
            "jobs.item_pull: pull",
            "jobs.item_commands: merge tail",
        ),
    ),
    "frontier": CommandEntry(
        _ADVANCED,
        "List, fill, consume and empty crawl frontiers.",
        verbs=(
            "frontier.frontier_list: list count dump",
            "frontier.consume: consume",
            "frontier.frontier_filling: add",
            "frontier.frontier_moves: move",
            "frontier.frontier_commands: prioritise requeue delete",
        ),
    ),
    "strategy": CommandEntry(
        _ADVANCED,
        "List and run the crawling strategies of this project.",
        verbs=(
            "frontier.strategy_commands: list",
            "frontier.strategy_run: run join add",
            "frontier.strategy_commands: status pause resume reset events replay",
        ),
    ),
    "completion": CommandEntry(
        _HELP, "Print the script with which a shell completes a command.", "main"
    ),
    "help": CommandEntry(_HELP, "Show the help of a command.", "main"),
}
#: what may be typed as well, one or two words -> what it stands for; help and completion do not
#: show these
ALIASES = {
    # of scrapyd-client and scrapyd-deploy
    "targets": "nodes --offline",
    "projects": "code versions --projects",
    "spiders": "code versions --spiders",
    "deploy -l": "nodes --offline",
    "deploy -L": "code versions --projects --node",
    "deploy --list-targets": "nodes --offline",
    "deploy --list-projects": "code versions --projects --node",
    "deploy --deploy-all-targets": "deploy --all",
    # of shub, which schedules as scrapyd-client does
    "schedule": "jobs schedule",
    "cancel": "jobs cancel",
    "log": "logs",
    "version": "--version",
    # of Scrapyd's API and of ScrapydWeb
    "api": "nodes api",
    "job": "jobs",
    "node": "nodes",
    "item": "items",
    # a verb in its group, though it has none
    "crawls pause": "pause",
    "crawls stop": "stop",
    "crawls resume": "resume",
    "crawls retry": "retry",
    "crawls watch": "watch",
    "crawls status": "status",
    "crawls report": "report",
    "jobs logs": "logs",
}

#: command that takes no names -> what is said where it is given some
FOR_ALL = {
    "nodes down": (
        "`sdist nodes down` stops all local nodes, and takes no name. `sdist nodes drain NODE`"
        " keeps new work from one."
    ),
}


class BareHelp:
    """Leaves Python's types out of the help of a command: a metavar says what is wanted."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with that of `--help`, as the help is to show them."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in found:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = _show_no_type  # its metavar stands there as its name
            elif parameter.is_flag:
                parameter.metavar = ""
        return found


def _show_no_type(ctx: Any) -> None:
    """Return what stands for the type of a parameter in its help: nothing."""


class LeafCommand(BareHelp, TyperCommand):
    """A command that has no verbs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the line; each error of it knows its command, also that an option has no value."""
        refusal = FOR_ALL.get(" ".join(ctx.command_path.split()[-2:]), "")
        ctx.allow_extra_args = bool(refusal)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # of the library's usage errors
            raise
        if rest and refusal:
            ctx.fail(refusal)
        return rest


class LazyGroup(BareHelp, TyperGroup):
    """The command `sdist` itself, which knows its commands by the table.

    Only the modules of the command that is called are imported.
    """

    whole = False  #: whether help has the options that are rarely used, too

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.commands = {}
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(
                name, help=entry.summary, rich_help_panel=entry.panel, rich_markup_mode=MARKUP
            )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put what an alias stands for in its place, before the line is parsed."""
        return super().parse_args(ctx, expand_alias(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find and load the command of a line; a verb without its group is an error with a hint."""
        completes = ctx.resilient_parsing
        if args[0] not in COMMANDS and not completes:
            _refuse_word(ctx, args[0])
        name, command, rest = super().resolve_command(ctx, args)
        if name not in COMMANDS:
            return name, command, rest
        verb = ""
        if not completes:
            verb = LIST if _has_no_verb(ctx, rest) else rest[0]
        wants_all, rest = _part_all(ctx, rest)
        is_whole = self.whole or completes or wants_all
        return name, load(name, whole=is_whole, only=verb), rest


def _part_all(ctx: Any, words: list[str]) -> tuple[bool, list[str]]:
    """Return whether the whole help is asked for, and the words without that option."""
    if ALL not in words or set(words).isdisjoint(ctx.help_option_names):
        return False, words
    return True, [word for word in words if word != ALL]


class VerbGroup(BareHelp, TyperGroup):
    """A group of verbs. Without one it lists, if it has a `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` before the options of a line without a verb, before it is parsed."""
        completes_verb = ctx.resilient_parsing and not args
        if LIST in self.commands and _has_no_verb(ctx, args) and not completes_verb:
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb of a line; a wrong one is an error with a hint."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            _refuse_word(ctx, args[0], ctx.info_name)
        return super().resolve_command(ctx, args)


def _refuse_word(ctx: Any, word: str, group: str = "") -> None:
    """Refuse a line: there is no such command, or verb of the group; it says what was meant."""
    from .suggestions import suggest_commands

    verbs_of = {name: _modules(entry).keys() for name, entry in COMMANDS.items()}
    near = suggest_commands(word, group, verbs_of)
    command = f"{group} {word}".strip()
    ctx.fail(f"There is no command {command!r}.{ask_about(*map(repr, near))}")


def _has_no_verb(ctx: Any, args: list[str]) -> bool:
    """Tell whether what follows a group is nothing, or an option other than that for help."""
    if not args:
        return True
    return args[0].startswith("-") and args[0] not in ctx.help_option_names


def expand_alias(args: list[str]) -> list[str]:
    """Return a command line with the words that its alias stands for, if it begins with one."""
    for most in (1, 2):
        words = ALIASES.get(" ".join(args[:most]))
        if words is not None:
            return expand_alias([*words.split(), *args[most:]])
    return args


def _modules(entry: CommandEntry) -> dict[str, str]:
    """Return the verbs of a group, each with its module."""
    modules: dict[str, str] = {}
    for row in entry.verbs:
        module, _, verbs = row.partition(": ")
        modules |= dict.fromkeys(verbs.split(), module)
    return modules


def load(name: str, *, whole: bool = True, only: str = "") -> Any:
    """Import a command of the table, and return Typer's object for it, with its exit codes.

    whole: whether the help of a command with many options has those that are rarely used; only:
    of a group that has this verb, the others are not imported.
    """
    app = typer.Typer(rich_markup_mode=MARKUP, add_completion=False)
    app.callback()(_several)
    # Behind it are the project and its store, which `sdist --version` is spared.
    from .options import as_typer_command

    entry = COMMANDS[name]
    if entry.verbs:
        app.add_typer(_load_group(name, entry, only), name=name)
    else:
        app.command(name, cls=LeafCommand)(as_typer_command(_function(entry.module, name)))
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    _explain(command, name)
    _put_first(command, name)
    if not whole:
        _shorten(command, name)
        for verb, inner in _below(command).items():
            _shorten(inner, f"{name} {verb}")
    return command


def _load_group(name: str, entry: CommandEntry, only: str) -> typer.Typer:
    from .options import as_typer_command

    modules = _modules(entry)
    summary = entry.summary
    if LIST in modules:
        summary += f"\n\nAlone, `sdist {name}` is `sdist {name} {LIST}`."
    group = typer.Typer(cls=VerbGroup, help=summary)
    for verb, module in modules.items():
        if verb == only or only not in modules:
            group.command(verb, cls=LeafCommand)(as_typer_command(_function(module, verb)))
    return group


def _function(module: str, name: str) -> Any:
    """Return a command's function.

    It has the command's name, with an underscore behind where Python has such a word.
    """
    found = importlib.import_module(f".{module}", __package__)
    return getattr(found, f"{name}_", None) or getattr(found, name)


def walk() -> Iterator[tuple[str, Any]]:
    """Generate all commands with their paths, as in `nodes drain`; imports every module.

    A group comes before what is in it.
    """
    for name in COMMANDS:
        command = load(name)
        yield name, command
        for verb, inner in _below(command).items():
            yield f"{name} {verb}", inner


def _several() -> None:
    """Makes a Typer app with one command a group."""


def _below(command: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(command, "commands", {})
    return found


def _put_first(command: Any, path: str) -> None:
    """Put the options of `FIRST_OPTIONS` before the others; the help shows them in this order."""
    if path not in FIRST_OPTIONS:
        return
    words = FIRST_OPTIONS[path]
    places = {word: place for place, word in enumerate(words)}
    others = len(words) - 1  # before --json, which is the last one

    def place_of(parameter: Any) -> int:
        if parameter.param_type_name == "argument":
            return -1
        return min(places.get(word, others) for word in parameter.opts)

    command.params.sort(key=place_of)


def _shorten(command: Any, path: str) -> None:
    """Leave rarely used options out of the help, where there are many.

    What is left of those that `FIRST_OPTIONS` names stands under one heading.
    """
    if len(command.params) <= MOST_OPTIONS:
        return
    rare = []
    for option in command.params:
        if _is_rare(option, command, path):
            rare.append(option)
        elif path in FIRST_OPTIONS:
            option.rich_help_panel = None
    for option in rare:
        option.hidden = True
    if rare:
        codes = ", ".join(map(str, CODES[path]))
        more = f"{len(rare)} options more: sdist {path} --help {ALL}"
        command.epilog = f"Exit codes: {codes}\n\n{more}"


def _is_rare(parameter: Any, command: Any, path: str) -> bool:
    """Return whether the short help leaves a parameter out.

    That are, where `FIRST_OPTIONS` does not say it, the options of a panel that have no letter and
    are in no example.
    """
    if parameter.param_type_name == "argument":
        return False
    if path in FIRST_OPTIONS:
        return set(FIRST_OPTIONS[path]).isdisjoint(parameter.opts)
    examples = [line for line in command.help.splitlines() if line.lstrip().startswith("Example")]
    is_shown = not set(" ".join(examples).split()).isdisjoint(parameter.opts)
    has_letter = min(map(len, parameter.opts)) <= 2
    return bool(parameter.rich_help_panel) and not (has_letter or is_shown)


def escape_markup(text: str) -> str:
    """Return a help text in which Rich shows brackets, as in `[deploy]`, as they are."""
    return _TAG.sub(r"\\", text)


def _explain(command: Any, path: str) -> None:
    """Leave the breaking of lines to the terminal, keep brackets, and put the exit codes below."""
    below = _below(command)
    if not below:
        command.help = _joined_lines(escape_markup(command.help or ""))
        for option in command.params:
            option.help = escape_markup(getattr(option, "help", None) or "")
        lines = ["Exit codes:"]
        for code in CODES.get(path, ()):
            meaning = MEANINGS[code]
            lines.append(f"{code:>3}  {meaning}")
        command.epilog = "\n".join(lines)
    for name, inner in below.items():
        _explain(inner, f"{path} {name}")


def _joined_lines(text: str) -> str:
    """Return the text with one line for each paragraph; examples keep their lines."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        is_example = paragraph.startswith("Example")
        paragraphs.append(paragraph if is_example else " ".join(paragraph.split()))
    return "\n\n".join(paragraphs)
