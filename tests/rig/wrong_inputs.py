"""Wrong inputs, made from the registry of settings and from the tree of commands: what is added there is among them.

Each is to end with its exit code and one paragraph, before anything starts.
"""

from __future__ import annotations

import inspect
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import Any, Literal, get_args, get_origin

from scrapyd_dist.cli.commands import walk

from scrapyd_dist.settings import PREFIX, SETTINGS, Setting, ValueKind


@dataclass(frozen=True, kw_only=True)
class WrongInput:
    """One wrong input: of the command line, or where there are no arguments of a crawl's plan, by `settings`."""

    arguments: tuple[str, ...] = ()  #: of `sdist`
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)  #: in the project's folder
    pipes: tuple[str, ...] = ()  #: likewise, named pipes into which no process writes
    modes: Mapping[str, int] = field(default_factory=dict)  #: of files and folders there
    environment: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (2,)  #: exit codes, any of which is right
    names: str = ""  #: what the paragraph has to name

    @property
    def subject(self) -> str:
        """What is wrong here: an option of a command, or a setting."""
        return " ".join([*self.arguments[:-1], self.names, *self.settings])

    def __str__(self) -> str:
        told = {
            name: value
            for name, value in vars(self).items()
            if value and name not in {"codes", "names"}
        }
        return str(told)[:200]


HUGE = 10**20
DIGITS = "9" * 5000  # more than Python reads
NUMBERS = (
    "nan",
    "inf",
    "-inf",
    "1e400",
    f"{HUGE}",
    f"-{HUGE}",
    "1e99",
    "x",
    "",
    " ",
    "0x10",
    "1,5",
    DIGITS,
    "\u202e5",
    "٣x",
)
#: values of no kind that a text may have
KINDLESS: tuple[Any, ...] = (b"x", [["a"]], {5: "a"}, 1.5, object)
WRONG: Mapping[ValueKind, tuple[Any, ...]] = {
    ValueKind.WHOLE: (
        HUGE,
        -HUGE,
        math.inf,
        math.nan,
        1.5,
        True,
        [1],
        {"a": 1},
        "x",
        "1.5",
        "inf",
        DIGITS,
    ),
    ValueKind.SECONDS: (
        HUGE,
        -1,
        math.inf,
        -math.inf,
        math.nan,
        True,
        [1],
        {"a": 1},
        "x",
        "inf",
        "1e99",
        "-0.5",
    ),
    ValueKind.NUMBER: (
        HUGE,
        -1,
        math.inf,
        -math.inf,
        math.nan,
        True,
        [1],
        {"a": 1},
        "x",
        "nan",
        "1e99",
        "-0.5",
    ),
    ValueKind.YES_NO: ("perhaps", "yes", 2, -1, 0.5, [True], {"a": 1}, math.nan),
    ValueKind.TEXT: (5, True, ["a"], {"a": 1}, *KINDLESS),
    ValueKind.CHOICE: ("no-such", 5, True, ["a"], {"a": 1}, *KINDLESS),
    ValueKind.LIST: (5, True, {"a": 1}, [5], [None], *KINDLESS),
    ValueKind.MAPPING: (5, True, "x", "[1]", '{"a"', ["a"], [["a", "b"]], *KINDLESS),
    ValueKind.FILES: (5, "x", {"path": "a.jl"}, ["a.jl"], [{}], [{"path": 5}], *KINDLESS),
}


def wrong_inputs(number: int, seed: int = 14) -> list[WrongInput]:
    """So many wrong inputs, at most: those made by hand, then one for each option and setting, then one more each, …"""
    by_hand, made = (
        [*combinations(), *files(), *places(), *environments()],
        [*options(), *settings()],
    )
    random.Random(seed).shuffle(made)
    turns, ranked = Counter[str](), []
    for wrong in made:
        turns[wrong.subject] += 1
        ranked.append((turns[wrong.subject], wrong))
    return [*by_hand, *(wrong for _, wrong in sorted(ranked, key=itemgetter(0)))][:number]


# by their kinds


def settings() -> Iterator[WrongInput]:
    """Each setting with values of other kinds, and beyond its limits; what is text also behind `-s`."""
    for name, row in SETTINGS.items():
        for value in (*WRONG[row.kind], *_beyond(row)):
            yield WrongInput(settings={name: value}, names=name)
            if isinstance(value, str) and name != f"{PREFIX}STORE":
                arguments = ("jobs", "schedule", "easy", "-s", f"{name}={value}")
                yield WrongInput(arguments=arguments, names=name)


def _beyond(row: Setting) -> Iterator[float]:
    yield from () if row.least is None else (row.least - 1,)
    yield from () if row.most is None else (row.most + max(1, row.most // 1e9), row.most * 2)


def options() -> Iterator[WrongInput]:
    """Each option and argument of each command with what its type does not take."""
    for path, command in walk():
        if command.callback is None:
            continue
        words = tuple(path.split())
        yield WrongInput(arguments=(*words, "--no-such-option"), names="--no-such-option")
        signature = inspect.signature(command.callback, eval_str=True).parameters
        before: list[str] = []
        for parameter in command.params:
            if parameter.name not in signature:
                continue
            annotation = signature[parameter.name].annotation
            wrong = [*_wrong_for(path, parameter, annotation)]
            if parameter.param_type_name == "argument":
                for value in wrong:
                    yield WrongInput(arguments=(*words, "--", *before, value))
                before.append(_right_for(annotation))
                continue
            name = max(parameter.opts, key=len)
            if parameter.is_flag:
                yield WrongInput(arguments=(*words, f"{name}=x"), names=name)
            for value in wrong:
                yield WrongInput(arguments=(*words, name, value), names=name)


def _wrong_for(path: str, parameter: Any, annotation: Any) -> tuple[str, ...]:
    types = set(_types_of(annotation))
    if parameter.is_flag if parameter.param_type_name == "option" else False:
        return ()
    row = _row_of(path, parameter)
    if types & {int, float} and parameter.name != "level":
        return NUMBERS
    if row is not None and row.kind is ValueKind.CHOICE:
        return ("no-such", f"{row.choices[-1]} ", "5")
    if any(
        isinstance(one, str) or (isinstance(one, type) and issubclass(one, Enum)) for one in types
    ):
        return ("no-such", "", "5", "\u202e")
    return ()


def _row_of(path: str, parameter: Any) -> Setting | None:
    """The setting that an option of `crawl` or `plan` gives a value."""
    if path not in {"crawl", "plan"}:
        return None
    return next((row for row in SETTINGS.values() if row.option in parameter.opts), None)


def _types_of(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, and the words of a Literal."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal or not inner:
        yield from inner or (annotation,)
        return
    for one in inner:
        yield from _types_of(one)


def _right_for(annotation: Any) -> str:
    types = [*_types_of(annotation)]
    words = [one for one in types if isinstance(one, str)]
    return words[0] if words else "1" if int in types else "x"


# by hand


def combinations() -> Iterator[WrongInput]:
    """What does not go together, or names what cannot be."""
    for line in _LINES.strip().splitlines():
        words, _, name = line.replace("LONG", "x" * 300).partition(" ## ")
        yield WrongInput(
            arguments=tuple("" if word == "''" else word for word in words.split()),
            names=name.strip(),
        )
    for values, name in _PLANS:
        yield WrongInput(
            settings={PREFIX + key: value for key, value in values.items()}, names=name
        )


_LINES = """
jobs schedule easy --on a --all-nodes ## --on
jobs --json -o names ## --json
code versions --spiders --projects ## --projects
code versions -v ## --spiders
nodes --offline --state up ## --offline
jobs schedule ## Name the spiders
jobs schedule easy -a x ## NAME=VALUE
jobs schedule easy -s =x ## NAME=VALUE
jobs schedule easy -s DISTRIBUTED_LEASE=inf ## DISTRIBUTED_LEASE
jobs schedule --from none.csv ## none.csv
jobs schedule easy --limit spider ## --limit
jobs schedule easy --limit spider=0 ## --limit
jobs schedule easy --resume ## --resume
jobs schedule easy --label a,b ## --label
jobs stats ## --since
jobs stats a --since 5m ## --since
crawl easy -a x ## NAME=VALUE
crawl easy -s x ## NAME=VALUE
crawl easy -s DISTRIBUTED_STORE=x ## DISTRIBUTED_STORE
crawl easy -O a.jl -O a.jl ## twice
crawl easy -o a.jl -O ./a.jl ## twice
crawl easy -o a.xyz ## a.xyz
crawl easy -o properties ## properties
crawl easy -o scrapy.cfg ## scrapy.cfg
crawl easy -o scrapy.cfg/a.jl ## scrapy.cfg
crawl easy -o /proc/no/a.jl ## /proc
crawl easy -o /dev/null:csv ## /dev/null
crawl easy -o LONG.jl ## name too long
crawl easy --start-urls LONG ## name too long
demo --dir LONG ## name too long
nodes metrics --textfile LONG ## name too long
items merge a -o LONG.jl ## name too long
crawl easy --name=-x ## -x
crawl easy --name a/b ## a/b
crawl easy --name ../x ## ../x
crawl easy --name '' ## name a crawl
crawl easy --feed ftp://me:hush@web/x ## settings.py
crawl easy --start-urls none.txt ## none.txt
crawl easy --start-urls properties ## properties
plan easy -O a.jl -O a.jl ## twice
plan easy --start-urls none.txt ## none.txt
deploy gone --all ## --all
deploy --all --version ../x ## ../x
deploy --all --version -x ## -x
deploy --all --version a/b ## a/b
jobs cancel ## --all
jobs cancel a --all ## --all
watch a --job b ## at once
watch --fleet --job b ## at once
watch a --node b ## --job
watch --job a ## --quiet
watch --job a --quiet --verbose ## --quiet
crawls show a --batches --misses ## one of the two
crawls show a --state dead ## --batches
crawls show a --misses --batch 1 ## --batches
crawls show a --batches --kind dead ## --misses
crawls show a --urls ## --batches or --misses
crawls show a --misses --urls --json ## one of the two
crawls clean ## --older-than
crawls clean a --older-than 3d ## --older-than
crawls clean --older-than 30 ## no unit
logs --since 5w ## --since
logs a --whole -n 5 ## leave --lines and --since out
crawls --limit 0 ## --limit
jobs grep ( ## regular expression
logs --level LOUD ## LOUD
logs --since -5 ## --since
logs --since 99999999h ## --since
jobs --since 99999999h ## --since
jobs --since nan ## --since
watch a --quiet --timeout 0 ## --timeout
throttle set a.com ## Nothing to set
throttle set a.com --hits 5 ## --window
throttle set *.a.com --hits 5 --window 5 ## star
throttle set a..com --hits 5 --window 5 ## domain
throttle set a.com --hits 5 --window 5 --block ## more than one
throttle set * --block ## All domains
throttle apply rules.yml --dry-run --now ## --now
frontier add a/b scrapy.cfg ## a/b
frontier add -- -x scrapy.cfg ## -x
frontier add shop none.txt --spider-callback 5x ## 5x
frontier add shop none.txt --as arguments --slots 3 ## arguments
frontier delete shop ## --all
frontier delete shop --prefix x --all ## --all
frontier move shop p ## DEST
frontier move shop p q 3 --batch 2 ## --batch
items merge a ## -o
nodes add ftp://web1 ## ftp
nodes add me:hush@web1:6800 ## netrc
nodes add http://web1:99999 ## web1
nodes add web1 web2 --name a ## --name
nodes drain ## --all
nodes drain a --all ## --all
watch --fleet --on-trouble '' ## --on-trouble
watch --fleet --on-trouble ftp://web1/ ## --on-trouble
jobs schedule easy --on-finish '' ## --on-finish
init --node ftp://web1 ## ftp
init --node me:hush@web1:6800 ## password
init --node web1:6800 --name a --name b ## --name
init --node web1:6800 --name a/b ## a/b
init --node web1:6800 --node web2:6800 --name a --name a ## same name
nodes api gone '' ## endpoint
nodes api gone listjobs x ## NAME=VALUE
nodes api gone addversion egg=@none.egg ## none.egg
nodes metrics --textfile /proc/none/x.prom ## /proc/none
completion tcsh ## tcsh
no-such-command ## no-such-command
crawl caf\udcc3 ## no text
frontier add f caf\udcc3.txt ## no text
--no-such ## --no-such
"""
_INDEX = {"INDEX": "http://web/%d", "PAGES": 3}
_PLANS: list[tuple[dict[str, Any], str]] = [
    *(({"INDEX": text, "PAGES": 3}, "index address") for text in (
        "ftp://web/%d", "file:///etc/%d", "http://[::1/%d", "http://web:99999/%d", "http://web:x/%d", "http:///%d",
        "http://web:0/%d", "http://a b/%d", "web/%d", "//web/%d", "javascript:%d", "%d", "http://web/%999999999d",
        "http://web/{page:99999}", "http://web/", "http://web/%d/%d", "http://web/%s",
    )),
    ({"INDEX": "http://web/%d"}, "--pages"), ({"PAGES": 3}, "--index"), ({"SHARDS": 3}, "Shards"),
    ({**_INDEX, "START_URLS_FILE": "x.txt"}, "not both"), ({**_INDEX, "SEEDS": True, "MODE": "pull"}, "SEEDS"),
    ({"LIMIT": 3, "SEEDS": True, "MODE": "pull"}, "SEEDS"), ({"SEEDS": True, "MODE": "push"}, "SEEDS"),
    ({"MODE": "pull", "TARGET_FEED_URL": "ftp://web/x.jl"}, "feed URL"), ({"TARGET_FEED_URL": "ftp://["}, "feed URL"),
    ({"TARGET_FEED_URL": "ftp://web/x", "TARGET_FEED_FORMAT": "csv", "OUTPUTS": [{"path": "x.jl"}]}, "FEED_FORMAT"),
    ({"LOGIN": "nope", "MODE": "pull"}, "LOGIN"), ({"REQUEST_HOOK": "nope", "MODE": "pull"}, "REQUEST_HOOK"),
    ({"LOGIN": "name", "MODE": "pull"}, "LOGIN"), ({"LOGIN": "parse", "MODE": "push"}, "LOGIN"),
    ({"TARGET_CALLBACKS": ["nope"]}, "nope"), ({"TARGET_CALLBACKS": ["name"]}, "name"), ({"TARGET_RULE": 7}, "rule 7"),
    ({"CALLBACK_SLOTS": {"parse_item": "a b/2"}}, "a b"), ({"CALLBACK_SLOTS": {"parse_item": "a/0"}}, "slots"),
    ({"SPIDER_CALLBACKS": {"parse_item": 5}}, "SPIDER_CALLBACKS"), ({"SLOT_PREFIX": "@x"}, "@x"),
    ({"SPIDER_CALLBACKS": {"parse_item": {}}}, "SPIDER_CALLBACKS"), ({"SLOT_PREFIX": "a" * 300}, "slot"),
    ({"CRAWL": "-x"}, "-x"), ({"CRAWL": "a/b"}, "a/b"),
    ({"NODES": ["cmd:true"]}, "no node"),
    ({"NODES": ["cmd:false"]}, "ended with code"), ({"NODES": ["cmd:/no/such"]}, "/no/such"), ({"NODES": ["cmd:"]},
    "command"),
    ({"NODES": ["ftp://web1"]}, "ftp"), ({"NODES": ["http://web1:99999"]}, "web1"), ({"NODES": ["file:none.txt"]},
    "none.txt"),
    ({"NODES": ["file:properties"]}, "properties"), ({"NODES": ["cmd:'"]}, "command"), ({"TARGET_HOSTS": ["a b"]},
    "a b"),
    ({"NODES": [""]}, "no host"), ({"TARGET_HOSTS": ["http://"]}, "http://"),
    ({"NODES": ["dns+http://no.such.invalid"]}, "no.such"),
    ({"START_URLS_FILE": "none.txt"}, "none.txt"), ({"START_URLS_FILE": "properties"}, "properties"),
    ({"OUTPUTS": [{"path": "x.xyz"}]}, "x.xyz"), ({"OUTPUTS": [{"path": "x" * 300 + ".jl"}]}, "name too long"),
    ({"OUTPUTS": [{"path": "/proc/no/a.jl"}]}, "/proc"), ({"OUTPUTS": [{"path": "properties"}]}, "properties"),
    ({"OUTPUTS": [{"path": "x.jl", "format": "parquet"}]}, "x.jl"), ({"STORE": "cassandra://web"}, "cassandra"),
    ({"THROTTLE_WINDOW": 5, "THROTTLE": True}, "WINDOW"), ({"THROTTLE": True, "THROTTLE_PUBLIC_IP": "x"}, "PUBLIC_IP"),
    ({"THROTTLE": True, "THROTTLE_PUBLIC_IP_REGEX": "("}, "regular expression"),
    ({"ON_FINISH": "ftp://web"}, "ON_FINISH"), ({"ON_FINISH": "http://"}, "ON_FINISH"),
    ({"ON_FINISH": "http://[::1"}, "ON_FINISH"),
    ({"SPIDER_ARGS": {"jobid": "x"}}, "jobid"), ({"STORE": "$NO_SUCH_VARIABLE"}, "NO_SUCH_VARIABLE"),
]  # fmt: skip


def files() -> Iterator[WrongInput]:
    """Files that cannot be read, or say what makes no sense."""
    for text in _CFG:
        content = (
            text
            if isinstance(text, bytes)
            else f"[settings]\ndefault = properties.settings\n{text}".encode()
        )
        yield WrongInput(arguments=("nodes",), files={"scrapy.cfg": content})
    for text in _NODES:
        values = {f"{PREFIX}NODES": ["file:list.txt"]}
        yield WrongInput(settings=values, files={"list.txt": _bytes(text)})
    for text in _URLS:
        yield WrongInput(
            settings={f"{PREFIX}START_URLS_FILE": "list.txt"}, files={"list.txt": _bytes(text)}
        )
    for text in _RULES:
        yield WrongInput(
            arguments=("throttle", "apply", "rules.yml"),
            files={"rules.yml": _bytes(text)},
            names="rules.yml",
        )
    for text in _JOBS:
        yield WrongInput(
            arguments=("schedule", "--from", "jobs.csv"), files={"jobs.csv": _bytes(text)}
        )
    for key in (b"", b"short", b"\x00\xff", b"A" * 44, b"A" * 1000):
        kept = {".sdist/key": key, "list.jsonl": b'{"url": "http://a/", "cookies": {"a": "b"}}\n'}
        for words in (("frontier", "add", "pages", "list.jsonl"), ("deploy", "--all", "--dry-run")):
            yield WrongInput(arguments=words, files=kept, names="key")
    for name, text in _WORKLISTS:
        yield WrongInput(
            arguments=("frontier", "add", "pages", name), files={name: _bytes(text)}, codes=(1, 2)
        )
    for name, text in _ARGUMENTS:
        arguments = ("frontier", "add", "rows", name, "--as", "arguments")
        yield WrongInput(arguments=arguments, files={name: _bytes(text)}, codes=(1, 2))


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


_TARGETS = (
    "ftp://web1", "http://", "http://web1:99999", "http://web1:0", "http://web1:x", "http://[::1", "web1 web2",
    "http://web1/?q=1", "http://web1/#f", "http://a_b:6800", "http://" + "a" * 300, "http://..:6800", "dns+ftp://web1",
    "http://me:hu/sh@web1", "\\\\web1", "http://[x]:6800", "://web1", "http://web1:-1", "web1:x", "[web1]",
)  # fmt: skip
_CFG: tuple[str | bytes, ...] = (
    *(f"[deploy:a]\nurl = {url}\n" for url in _TARGETS),
    *(f"[deploy:a]\nurl = http://web1\nslots = {slots}\n" for slots in ("0", "-1", "x", "1.5", "inf", HUGE, DIGITS)),
    *(f"[deploy:a]\nurl = http://web1\n{line}\n" for line in (
        "verify = maybe", "ca = none.pem", "ca = properties", "username = a:b", "url = http://web2", "no such line",
    )),
    "[deploy:a]\nslots = 2\n", "[deploy:a]\nurl =\n", "[deploy:a]\nurl = http://a\n[deploy:a]\nurl = http://b\n",
    b"", b"url = http://web1\n", b"[settings]\n", b"\xff\xfe", b"[settings\n", b"[settings]\nx = \xff\n", b"\x00",
)  # fmt: skip
_NODES: tuple[str | bytes, ...] = (
    "", "\n\n", "# none\n", "unnamed\n", "web1:6800 four\n", "web1:6800 slots=0\n", f"web1:6800 slots={HUGE}\n",
    b"\xff\n",
    "web1:6800 slots=\n x", "web1:6800 color=red\n", "[deploy:a]\nslots = 2\n", "[deploy:a]\nurl = x y\n", "[a]\n[a]\n",
    *(f"{url}\n" for url in _TARGETS if not url.startswith("http://web1/#")),
)  # fmt: skip
_URLS: tuple[str | bytes, ...] = (
    "", "\n", "# none\n", " # none\n", "ftp://web/\n", "web/1\n", "http://[::1/\n", "http://web:99999/\n",
    b"\xff\xfe\n",
    "http://web/1\nfile:///etc/passwd\n", "http:///\n", "\x00\n", "http://web/1\n \x07\n", "javascript:1\n", "<html>\n",
)  # fmt: skip
#: no numbers of YAML
_NO_NUMBERS = ("x", HUGE, ".inf", ".nan", "true", "[]")
_RULES: tuple[str | bytes, ...] = (
    "", "[", "5", "domains: 5", "domains: {a.com: 5}", "domain: {}", "{}", "- a", b"\xff", "\x00", "a: *b",
    "a: &b [*b]",
    "blacklist: 5", "blacklist: ['a..com']", "domains: {'*.a.com': {hits: 1, window: 1}}", "[" * 5000,
    *(f"domains: {{a.com: {{hits: {hits}, window: 60}}}}" for hits in (*_NO_NUMBERS, 0, -1, 1.5, DIGITS)),
    *(f"domains: {{a.com: {{hits: 6, window: {window}}}}}" for window in (*_NO_NUMBERS, 0, -1, "1e99")),
    *(f"domains: {{a.com: {{hits: 6, window: 6, scale: {scale}}}}}" for scale in (*_NO_NUMBERS, 2, -1)),
    "domains: {a.com: {hits: 6, window: 6, colour: red}}", "domains: {a.com: {hits: 6}}", "domains: {? [a] : {}}",
    "domains: {a.com: {hits: 6, window: 6}}\ndomains: {}", "!!python/object:os.system x",
)  # fmt: skip
_JOBS: tuple[str | bytes, ...] = (
    "", "node\nweb1\n", "spider\n,\n", "spider,node\n,web1\n", "spider\neasy\nhard,1\n", b"spider\n\xff\n",
    "spider\n\n",
    *(f"spider,priority\neasy,{text}\n" for text in ("high", "nan", "inf", "1e99", f"{HUGE}", "-1e99", DIGITS)),
    "spider,s:DISTRIBUTED_LEASE\neasy,inf\n", "spider\n" + "x" * 200_000,
)  # fmt: skip
_WORKLISTS: tuple[tuple[str, str | bytes], ...] = (
    ("list.csv", "a,b\n1,2\n"), ("list.csv", "url\nnot-one\n"), ("list.csv", b"url\n\xff\n"), ("list.csv", ",\n1,2\n"),
    ("list.jsonl", "5\n"), ("list.jsonl", "{\n"), ("list.jsonl", '{"url": 5}\n'), ("list.jsonl", '{"jobid": "x"}\n'),
    ("list.jsonl", '{"url": "http://a/", "priority": 1e99}\n'), ("list.jsonl", "[" * 5000 + "\n"), ("list.jsonl",
    b"\xff\n"),
    ("list.jsonl", '{"url": "http://a/", "meta": NaN}\n'), ("list.txt", "not one\n"), ("list.txt", b"\xff\n"),
)  # fmt: skip
_ARGUMENTS: tuple[tuple[str, str | bytes], ...] = (
    ("list.csv", "a,a\n1,2\n"), ("list.csv", "a,\n1,2\n"), ("list.csv", "jobid\nx\n"), ("list.csv", b"a\n\xff\n"),
    ("list.csv", "a\n1,2\n"), ("list.jsonl", '{"a": {"b": 1}}\n'), ("list.jsonl", '{"a": true}\n'), ("list.jsonl",
    "5\n"),
    ("list.jsonl", '{"a": null}\n'), ("list.txt", "http://a/\n"), ("list.jsonl", '{"": 1}\n'),
    ("list.jsonl", '{"a=b": 1}\n'),
    ("list.jsonl", '{"a": NaN}\n'), ("list.jsonl", '{"a": "\\u0000"}\n'),
)  # fmt: skip


#: commands that look into the store and use the key
_OF_STORE = (("crawls",), ("nodes",), ("deploy", "--all", "--dry-run"), ("resume",))


def places() -> Iterator[WrongInput]:
    """Names and places that are there, and are not what they should be: pipes, files that all may write."""
    for words in _OF_STORE:
        yield WrongInput(arguments=words, pipes=(".sdist/key",), names="key")
        yield WrongInput(arguments=words, pipes=(".sdist/store.db",), names="store.db")
        yield WrongInput(
            arguments=words,
            files={".sdist/key": b"A" * 44},
            modes={".sdist": 0o777},
            names=".sdist",
        )
        kept = {".sdist/key": b"A" * 43 + b"=", ".sdist/store.db": b""}
        for name in kept:
            yield WrongInput(arguments=words, files=kept, modes={name: 0o666}, names=name)
    for text in ("a\n  b", "a/b", "..", "x" * 300):
        cfg = f"[settings]\ndefault = properties.settings\n[deploy]\nurl = http://web1\nproject = {text}\n".encode()
        yield WrongInput(
            arguments=("deploy", "--all", "--dry-run"),
            files={"scrapy.cfg": cfg},
            names="the name of a project",
        )
    for spider in ("ea\nsy", "ea\x00sy", "a/b", ".."):
        yield WrongInput(arguments=("crawl", spider), names="cannot start the spider")
    for list_ in ("list.txt",):
        yield WrongInput(
            settings={f"{PREFIX}NODES": [f"file:{list_}"]}, pipes=(list_,), names=list_
        )


def environments() -> Iterator[WrongInput]:
    """Variables of the environment that say what cannot be."""
    stores = (
        "cassandra://web", "redis://", "redis://web:99999/0", "redis://web:x/0", "rediss://[::1", "http://web",
        ".", "$NO_SUCH_VARIABLE", "redis://web/0?db=x", "redis+cluster://",
    )  # fmt: skip
    for store in stores:
        for command in (("crawls",), ("throttle", "show"), ("frontier", "list")):
            yield WrongInput(arguments=command, environment={"SDIST_STORE": store})
    arguments = ("throttle", "set", "a.com", "--hits", "5", "--window", "5")
    for store in ("/proc/none/store.db", "scrapy.cfg/store.db", "properties"):
        yield WrongInput(arguments=arguments, environment={"SDIST_STORE": store})
    for name in ("none", "", "\n", "../x"):
        yield WrongInput(
            arguments=("nodes",), environment={"SCRAPY_PROJECT": name or "none-at-all"}
        )
