"""The settings of ours and their defaults, known without Scrapy; a test compares them with the documents."""

from __future__ import annotations

import difflib

#: setting -> default as docs/settings.md has it; empty where nothing is set
DEFAULTS = {
    "DISTRIBUTED_ENABLED": "True",
    "DISTRIBUTED_TARGET_RULE": "-1",
    "DISTRIBUTED_TARGET_CALLBACKS": "[]",
    "DISTRIBUTED_TARGET_BY_META": "False",
    "DISTRIBUTED_INDEX": "",
    "DISTRIBUTED_PAGES": "",
    "DISTRIBUTED_FIRST_PAGE": "0",
    "DISTRIBUTED_SHARDS": "1",
    "DISTRIBUTED_START_URLS_FILE": "",
    "DISTRIBUTED_BATCH_SIZE": "1000",
    "DISTRIBUTED_BATCH_MAX_AGE": "30",
    "DISTRIBUTED_BATCH_ADAPT": "",  # depends on whether a size was given
    "DISTRIBUTED_TARGET_HOSTS": "[]",
    "DISTRIBUTED_NODES": "[]",
    "DISTRIBUTED_NODES_FILE": "",
    "DISTRIBUTED_NODES_COMMAND": "",
    "DISTRIBUTED_NODES_EVERY": "10",
    "DISTRIBUTED_PLACEMENT": "by-capacity",
    "DISTRIBUTED_MAX_JOBS": "0",
    "DISTRIBUTED_MODE": "push",
    "DISTRIBUTED_WORKERS": "0",
    "DISTRIBUTED_FAIR": "",
    "DISTRIBUTED_START": "skip",
    "DISTRIBUTED_MAX_BATCHES": "0",
    "DISTRIBUTED_MAX_REQUESTS": "0",
    "DISTRIBUTED_MAX_TIME": "0",
    "DISTRIBUTED_IDLE": "0",
    "DISTRIBUTED_LOGIN": "",
    "DISTRIBUTED_REQUEST_HOOK": "",
    "DISTRIBUTED_FRONTIER": "",
    "DISTRIBUTED_SLOTS": "1",
    "DISTRIBUTED_SLOT_PREFIX": "",
    "DISTRIBUTED_SLOT_BY": "fingerprint",
    "DISTRIBUTED_CALLBACK_SLOTS": "{}",
    "DISTRIBUTED_SEEDS": "False",
    "DISTRIBUTED_SPIDER_CALLBACKS": "{}",
    "DISTRIBUTED_SPIDER_ATTRIBUTES": "[]",
    "DISTRIBUTED_MAX_ATTEMPTS": "4",
    "DISTRIBUTED_MAX_FAILED": "0",
    "DISTRIBUTED_LIMIT": "0",
    "DISTRIBUTED_MIN_ITEMS": "0",
    "DISTRIBUTED_ON_FINISH": "",
    "DISTRIBUTED_DEPLOY": "if-missing",
    "DISTRIBUTED_TARGET_FEED_URL": "",
    "DISTRIBUTED_TARGET_FEED_FORMAT": "jsonlines",
    "DISTRIBUTED_OUTPUTS": "",
    "DISTRIBUTED_UNSENDABLE": "local",
    "DISTRIBUTED_SPIDER_ARGS": "{}",
    "DISTRIBUTED_WAIT": "True",
    "DISTRIBUTED_CRAWL": "",
    "DISTRIBUTED_STORE": ".sdist/store.db",
    "DISTRIBUTED_PROFILE": "usual",
    "DISTRIBUTED_POLL_INTERVAL": "1",
    "DISTRIBUTED_REQUEST_TIMEOUT": "15",
    "DISTRIBUTED_NODE_TIMEOUT": "30",
    "DISTRIBUTED_LEASE": "60",
    "DISTRIBUTED_FLEET_TIMEOUT": "300",
    "DISTRIBUTED_START_TIMEOUT": "3600",
    "DISTRIBUTED_KEEP_DAYS": "14",
    "DISTRIBUTED_MIN_FREE": "1073741824",
    "DISTRIBUTED_THROTTLE": "",  # depends on whether a limit was given
    "DISTRIBUTED_THROTTLE_HITS": "",
    "DISTRIBUTED_THROTTLE_WINDOW": "60",
    "DISTRIBUTED_THROTTLE_MODERATED": "True",
    "DISTRIBUTED_THROTTLE_PER_SPIDER": "False",
    "DISTRIBUTED_THROTTLE_PER_IP": "False",
    "DISTRIBUTED_THROTTLE_PUBLIC_IP": "",
    "DISTRIBUTED_THROTTLE_PUBLIC_IP_REGEX": "",
    "DISTRIBUTED_THROTTLE_PUBLIC_IP_REFRESH": "60",
    "DISTRIBUTED_THROTTLE_MAX_PAGES": "0",
    "DISTRIBUTED_THROTTLE_CONCURRENCY": "",
    "DISTRIBUTED_THROTTLE_LONGEST_DELAY": "60",
}

_BEGIN = "DISTRIBUTED_"

#: what our own processes set; nobody else does
INTERNAL = frozenset({"DISTRIBUTED_JOB", "DISTRIBUTED_LABELS", "DISTRIBUTED_PULL", "DISTRIBUTED_START_URLS"})

#: keys of a [deploy:NAME] section that mean something here or to scrapyd-client
TARGET_KEYS = ("url", "username", "password", "project", "version", "slots", "verify", "ca")


def unknown(name: str) -> bool:
    """Whether a name that begins like a setting of ours is none."""
    return name not in DEFAULTS and name not in INTERNAL and not name.startswith("DISTRIBUTED_START_URLS_")


def meant(name: str, known: tuple[str, ...] = tuple(DEFAULTS)) -> str:
    """What a misspelt name was probably to be, as the end of a sentence; empty when nothing is near."""
    # What they all begin with would make any two of them alike.
    ends = {one.removeprefix(_BEGIN): one for one in known}
    close = difflib.get_close_matches(name.removeprefix(_BEGIN), ends, 1, 0.7)
    return f" Did you mean {ends[close[0]]}?" if close else ""
