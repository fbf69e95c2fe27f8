"""Names that users of related systems write, and what is written here instead.

Part of the worker half: imports the standard library only.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

FRONTERA = "Frontera"
HCF = "HCF"
CLUSTER = "Scrapy Cluster"
CLIENT = "scrapyd-deploy"
_RUN = "`sdist strategy run`"
_RUN_CLASS = (
    "Write `sdist strategy run {value}`, a class made from scrapyd_dist.strategy.CrawlingStrategy"
)
_NOT_NEEDED = "Leave it out"

#: system -> its setting -> what to do instead; {value} is that of the setting
SETTINGS_OF: Mapping[str, Mapping[str, str]] = {
    FRONTERA: {
        "FRONTERA_SETTINGS": f"{_NOT_NEEDED}: a strategy reads the settings of the project",
        "STRATEGY": _RUN_CLASS,
        "CRAWLING_STRATEGY": _RUN_CLASS,
        "STRATEGY_ARGS": "Write `sdist strategy run MODULE:CLASS {value}`",
        "SEEDS_SOURCE": f"Write --seeds FILE, or an address, at {_RUN}",
        "SEEDS_S3_BUCKET": f"Write --seeds s3://BUCKET/FILE at {_RUN}",
        "SEEDS_S3_BUCKETS": f"Write --seeds s3://BUCKET/FILE at {_RUN}",
        "SEEDS_FILE": f"Write --seeds FILE at {_RUN}",
        "SEEDS_URL": f"Write --seeds URL at {_RUN}",
        "MAX_REQUESTS": (
            "Write DISTRIBUTED_GOAL_REQUESTS = {value}, or --max-requests {value}, for the whole"
            " crawl"
        ),
        "MAX_NEXT_REQUESTS": (
            f"{_NOT_NEEDED}: a worker asks for as much as keeps its CONCURRENT_REQUESTS busy"
        ),
        "DOMAINS_BLACKLIST": (
            "Write `sdist throttle set DOMAIN --block` for each, before a crawl or while it runs;"
            " or return no links of these domains from filter_extracted_links"
        ),
        "SPIDER_FEED_PARTITIONS": (
            f"{_NOT_NEEDED}: workers share all slots, and their number may change at any time"
            f" (--workers of {_RUN})"
        ),
        "SPIDER_LOG_PARTITIONS": (
            f"{_NOT_NEEDED}: each strategy has 64 partitions, which its processes share; `sdist"
            " strategy join` adds a process"
        ),
        "QUEUE_HOSTNAME_PARTITIONING": (
            f"{_NOT_NEEDED}: links lie in slots by the registered domain"
        ),
        "SW_FLUSH_INTERVAL": f"{_NOT_NEEDED}: states are kept in the step that changes them",
        "NEW_BATCH_DELAY": f"{_NOT_NEEDED}: batches are cut as workers take them",
        "DELAY_ON_EMPTY": f"{_NOT_NEEDED}: a worker that finds nothing asks again by itself",
        "OVERUSED_SLOT_FACTOR": (
            f"{_NOT_NEEDED}: with DISTRIBUTED_FAIR no slow site holds a worker up"
        ),
        "BC_MIN_REQUESTS": f"{_NOT_NEEDED}: DISTRIBUTED_FAIR shares the sites among the workers",
        "BC_MIN_HOSTS": f"{_NOT_NEEDED}: DISTRIBUTED_FAIR shares the sites among the workers",
        "BC_MAX_REQUESTS_PER_HOST": f"Write --ahead N at {_RUN}",
        "STORE_CONTENT": 'Set meta["read"] = "body" on the requests whose text the strategy reads',
        "TLDEXTRACT_DOMAIN_INFO": f"{_NOT_NEEDED}: a domain is always the registered one",
        "DISCOVERY_MAX_PAGES": f"Write -a max_pages=N at {_RUN}, with the discovery strategy",
    },
    HCF: {
        "HCF_AUTH": f"{_NOT_NEEDED}: there is no account; the store is DISTRIBUTED_STORE",
        "HCF_PROJECT_ID": f"{_NOT_NEEDED}: the project is that of the folder",
        "HCF_PRODUCER_FRONTIER": "Write DISTRIBUTED_FRONTIER = {value}",
        "HCF_PRODUCER_SLOT_PREFIX": "Write DISTRIBUTED_SLOT_PREFIX = {value}",
        "HCF_PRODUCER_NUMBER_OF_SLOTS": "Write DISTRIBUTED_SLOTS = {value}",
        "HCF_PRODUCER_BATCH_SIZE": (
            "Write DISTRIBUTED_BATCH_SIZE, which is 100 by default at a frontier"
        ),
        "HCF_CONSUMER_FRONTIER": "Write `sdist frontier consume SPIDER {value}`",
        "HCF_CONSUMER_SLOT": "Write `sdist frontier consume SPIDER FRONTIER --prefix {value}`",
        "HCF_CONSUMER_MAX_BATCHES": (
            "Write `sdist frontier consume SPIDER FRONTIER --max-batches {value}`"
        ),
        "HCF_CONSUMER_MAX_REQUESTS": (
            "Write `sdist frontier consume SPIDER FRONTIER --max-requests {value}`"
        ),
        "HCF_CONSUMER_DONT_DELETE_REQUESTS": (
            f"{_NOT_NEEDED}: nothing is deleted when it is read; `sdist frontier dump` looks"
            " without taking"
        ),
        "HCF_CONSUMER_DELETE_BATCHES_ON_STOP": (
            f"{_NOT_NEEDED}: a batch is done when its items are home"
        ),
        "FRONTERA_SCHEDULER_REQUEST_CALLBACKS_TO_FRONTIER": (
            "Write DISTRIBUTED_TARGET_CALLBACKS = {value}"
        ),
        "FRONTERA_SCHEDULER_START_REQUESTS_TO_FRONTIER": "Write DISTRIBUTED_SEEDS = {value}",
        "FRONTERA_SCHEDULER_SKIP_START_REQUESTS": (
            f'{_NOT_NEEDED}: a worker skips the spider\'s start, unless DISTRIBUTED_START = "first"'
        ),
        "FRONTERA_SCHEDULER_STATE_ATTRIBUTES": "Write DISTRIBUTED_SPIDER_ATTRIBUTES = {value}",
        "FRONTERA_SCHEDULER_CALLBACK_SLOT_PREFIX_MAP": (
            "Write DISTRIBUTED_CALLBACK_SLOTS = {value}"
        ),
        "FRONTERA_SCHEDULER_DELAY_FRONTIER_UNTIL_IDLE": 'Write DISTRIBUTED_START = "first"',
    },
}
#: settings whose value is shown without quotes, as in a command line
_SHOWN_BARE = frozenset({"HCF_CONSUMER_FRONTIER", "HCF_CONSUMER_SLOT"})
#: names that begin so are these systems', also those that are not listed
_FAMILIES = {"HCF_": HCF, "FRONTERA_SCHEDULER_": HCF, "SEEDS_S3_": FRONTERA, "FRONTERA_": FRONTERA}
#: settings whose value may name a class of these systems -> what to do instead
CLASSES = {
    "SCHEDULER": (
        "Remove it, with the two middlewares of it: DISTRIBUTED_TARGET_CALLBACKS and"
        " DISTRIBUTED_FRONTIER say what goes where"
    ),
    "BACKEND": f"{_NOT_NEEDED}: links and requests are in the store (DISTRIBUTED_STORE)",
    "MESSAGE_BUS": (
        f"{_NOT_NEEDED}: workers and strategy processes meet in the store (DISTRIBUTED_STORE)"
    ),
}
#: beginnings of these classes' paths -> their system
_MODULES = {
    "frontera.": FRONTERA,
    "scrapy_frontera.": HCF,
    "hcf_backend.": HCF,
    "distributed_frontera.": FRONTERA,
}
#: settings that are read from the project, so that `sdist config` can answer them
NAMES = (*(name for names in SETTINGS_OF.values() for name in names), *CLASSES)
#: a spider argument with settings as JSON
ARGUMENT = "frontera_settings_json"
#: an attribute of the spider with settings
ATTRIBUTE = "frontera_settings"
#: key in a request's meta -> its system, and what is written here
META: Mapping[str, tuple[str, str]] = {
    "cf_store": (HCF, 'Write meta={"distribute": True}'),
    "spiderid": (
        CLUSTER,
        'For another spider, write meta={"distribute": {"spider": NAME}}, or its callback there',
    ),
}
#: option -> its system, and what is written here
OPTIONS: Mapping[str, tuple[str, str]] = {
    "--project-id": (
        HCF,
        "run this in the other project's folder, with the same store (SDIST_STORE)",
    ),
    "--flow-id": (HCF, "leave it out: the store knows the jobs of a frontier"),
    "--children-tag": (HCF, "write --label NAME=VALUE"),
    "--loop-mode": (HCF, "write --loop SECONDS"),
    "--max-running-jobs": (HCF, "write --max-running N"),
    "--max-running-time": (HCF, "write --max-time TIME"),
    "--frontera-settings-json": (HCF, "write -s NAME=VALUE for each setting"),
    "--job-settings": (HCF, "write -s NAME=VALUE for each setting"),
    "--spider-args": (HCF, "write -a NAME=VALUE for each argument"),
    "--units": (HCF, "leave it out: Scrapyd's jobs have one size"),
    "--add-seeds": (FRONTERA, "write --seeds FILE; the crawl begins at once"),
    "--seeds-url": (FRONTERA, "write --seeds URL"),
    "--seeds-file": (FRONTERA, "write --seeds FILE"),
    "--args": (FRONTERA, "write -a NAME=VALUE for each argument"),
    "--partition-id": (
        FRONTERA,
        "leave it out: `sdist strategy join` adds a process, which gets its share",
    ),
}
#: the same of scrapyd-deploy, which are no crawl's
DEPLOY_OPTIONS: Mapping[str, tuple[str, str]] = {
    "--list-targets": (CLIENT, "write `sdist nodes --offline`"),
    "--list-projects": (CLIENT, "write `sdist code versions --projects --node NODE`"),
    "--deploy-all-targets": (CLIENT, "write --all"),
    "-d": (CLIENT, "write --debug, which shows tracebacks; --build-egg FILE keeps the egg"),
}
#: characters of a value that are shown
_SHOWN = 200


def answers(settings: Mapping[str, Any], arguments: Mapping[str, Any] = {}) -> list[str]:
    """Return a paragraph for each name of a related system, without repeats.

    The names are those of settings and of the spider's arguments or attributes.
    """
    paragraphs = list(_answer_settings(settings))
    raw = arguments.get(ARGUMENT)
    if raw is not None:
        paragraphs.append(
            f"{ARGUMENT} is an argument of {HCF}, and scrapyd-dist does not read it. Write"
            " -s NAME=VALUE for each setting."
        )
    for inner in (_parse(raw), arguments.get(ATTRIBUTE)):
        if isinstance(inner, Mapping):
            paragraphs += _answer_settings(inner)
    return list(dict.fromkeys(paragraphs))


def meta_answer(key: str) -> str:
    """Return what to write instead of this key in a request's meta."""
    system, instead = META[key]
    return (
        f"The key {key!r} in a request's meta is of {system}, and scrapyd-dist does not read it."
        f" {instead}."
    )


def option_answer(name: str) -> str:
    """Return what to write instead of an option that there is not.

    It is empty if no related system has the option.
    """
    system, instead = {**DEPLOY_OPTIONS, **OPTIONS}.get(name, ("", ""))
    if not system:
        return ""
    return f" It is an option of {system}; here, {instead}."


def _answer_settings(settings: Mapping[str, Any]) -> Iterator[str]:
    for name in settings:
        if not _is_related(name):
            continue
        value = settings[name]
        if value is None or value == "":
            continue
        if name in CLASSES:
            yield from _answer_class(name, value)
        elif name not in _OWN_CLASSES or isinstance(value, (str, type)):
            yield _answer_setting(name, value)


#: settings that name a class of the project; a value of another kind is another program's
_OWN_CLASSES = frozenset({"STRATEGY", "CRAWLING_STRATEGY"})


def _is_related(name: str) -> bool:
    return name in NAMES or name.startswith(tuple(_FAMILIES))


def _answer_class(name: str, value: Any) -> Iterator[str]:
    for module, system in _MODULES.items():
        if str(value).startswith(module):
            yield f"{name} names a class of {system}, which cannot work here. {CLASSES[name]}."


def _answer_setting(name: str, value: Any) -> str:
    is_of_family = name.startswith(tuple(_FAMILIES))
    for system, names in SETTINGS_OF.items():
        if name in names:
            instead = names[name].format(value=_format_value(name, value))
            paragraph = _say_not_read(name, system, instead)
            if is_of_family:
                return paragraph
            return f"{paragraph} If the project reads it itself, keep it."
    system = next(system for prefix, system in _FAMILIES.items() if name.startswith(prefix))
    return _say_not_read(name, system, _NOT_NEEDED)


def _say_not_read(name: str, system: str, instead: str) -> str:
    return f"{name} is a setting of {system}, and scrapyd-dist does not read it. {instead}."


def _format_value(name: str, value: Any) -> str:
    """Return the value as it is written here."""
    if name in _OWN_CLASSES:
        return _format_class(value)
    if name == "STRATEGY_ARGS":
        return _format_arguments(value)
    text = value if name in _SHOWN_BARE and isinstance(value, str) else repr(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}…"


def _format_class(value: Any) -> str:
    """Return a class, or the dotted path of one, as `module:Class`."""
    path = value if isinstance(value, str) else f"{value.__module__}.{value.__name__}"
    if ":" in path:
        return path
    return ":".join(path.rsplit(".", 1))


def _format_arguments(value: Any) -> str:
    """Return arguments for a command line; their values may be secrets."""
    arguments = _parse(value)
    if isinstance(arguments, Mapping) and arguments:
        return " ".join(f"-a {key}=…" for key in arguments)
    return "-a NAME=VALUE"


def _parse(raw: Any) -> Any:
    """Return what a JSON text holds, or None; other values as they are."""
    try:
        return json.loads(raw) if isinstance(raw, str) else raw
    except ValueError:
        return None
