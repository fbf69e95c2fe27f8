"""The shape of the document that each command gives with `--json`, and what sees that a document has its shape.

Names may be added to these; none may go. A name with a question mark is not in every document.
"""

from typing import Any

#: what a number may be
NUMBER = (int, float)
TEXT = (str, None)
_NODE = {"name": str, "url": str}
_DIFFERENCES = [{"name": str, "meaning": str, "found": [str], "sentence": str}]
_RATES = {"requests": NUMBER, "pages": NUMBER, "items": NUMBER, "failed": NUMBER}

SUMMARY: dict[str, Any] = {
    "schema": int, "crawl": str, "spider": str, "project": str, "version": TEXT, "labels": [str],
    "earlier_versions": [str], "code": [str], "state": str, "paused": bool, "message": str,
    "exit_code": (int, None), "started": TEXT, "ended": TEXT, "duration_s": NUMBER, "output": [str], "misses": TEXT, "warnings": [str],
    "differences": _DIFFERENCES,
    **dict.fromkeys(("urls_found", "urls_distinct", "offsite", "duplicate", "refused", "local", "sealed"), int),
    **dict.fromkeys(("pages", "items", "gone_urls", "failed_urls", "raised_urls", "dead_urls", "index_failed"), int),
    "batches": dict.fromkeys(("total", "sent", "out", "waiting", "done", "failed", "dead"), int),
    "requests": dict.fromkeys(("total", "sent", "done", "succeeded"), int),
    "outlook": {"requests": (int, None), "sure": str, "eta_s": (int, float, None)},
    "per_s": _RATES,
    "index": {"pages": int, "total": (int, None), "failed": int},
    "nodes": [{**_NODE, "state": str, "reason": str, "unreached": str, "slots": (int, None), "per_s": _RATES,
               **dict.fromkeys(("learned", "running", "waiting", "unleased"), int),
               **dict.fromkeys(("jobs", "items", "pages", "failed"), int)}],
    "throttle": {"heeded": bool, "reason": str, "nodes": {str: str}},
    "goals": {str: NUMBER}, "goal": TEXT, "closed_by": TEXT,
    "stragglers": [{"batch": int, "attempt": int, "job": str, "node": str, "for_s": int, "done": int, "of": int,
                    "times_slower": (int, float, None)}],
}  # fmt: skip
ROLL_OUT = {
    "project": TEXT, "version": TEXT, "dry_run": bool,
    "nodes": [{**_NODE, "project": str, "state": str, "version": TEXT, "default": TEXT, "spiders": (int, None),
               "reason": str}],
}  # fmt: skip
_LOOK = {
    **_NODE, "state": str, "reason": str, "slots": (int, None), "running": (int, None), "pending": (int, None),
    "finished": (int, None), "latency_ms": (int, float, None), "skew_s": (int, float, None), "version": TEXT,
    "drift": (bool, None), "draining": TEXT, "wedged": bool,
}  # fmt: skip
_PER_MINUTE = dict.fromkeys(("pages", "items", "errors"), (int, float, None))
_FLEET: dict[str, Any] = {
    "nodes": [{
        **_NODE, "state": str, "reason": str, "slots": (int, None), "pending": (int, None), "draining": TEXT,
        "running": (int, None),
        "jobs": [{"job": str, "project": str, "spider": str, "crawl": TEXT, "state": str, "pages": (int, None),
                  "items": (int, None), "per_min": _PER_MINUTE, "silent_s": (int, None), "reason": str}],
    }],
    "running": int, "pending": int, "per_min": _PER_MINUTE,
}  # fmt: skip
_KINDS = dict.fromkeys(("waiting", "leased", "done", "dead"), int)
_SLOT = {"slot": str, "requests": _KINDS, "batches": _KINDS}
_WALKED = {"batches": int, "requests": int, "left": [int], "interrupted": bool}
_LINKS: dict[str, Any] = {
    "links": dict.fromkeys(("queued", "crawled", "error"), int), "queue": {"now": int, "later": int}, "events": int,
    "dead_letters": int, "ended": bool,
}  # fmt: skip
_STRATEGY: dict[str, Any] = {
    "strategy": str, "class": str, "arguments": {str: str}, "spider": str, "state": str, "standing": bool, **_LINKS,
    "processes": [{"name": str, "partitions": int, "finished": bool}], "workers": int,
}  # fmt: skip
_LIMIT = {"hits": (int, None), "window": (int, float, None), "scale": NUMBER}
_RULE = ({**_LIMIT, "blocked": bool, "paused": bool}, None)
_HEEDING = [{"crawl": str, "heeded": bool, "reason": str, "nodes": {str: str}}]
_RULES = {
    "version": int,
    "changes": [{"domain": str, "was": _RULE, "is": _RULE}],
    "crawls": _HEEDING,
}
_BARS = ({"names": [str], "values": [NUMBER], "median": NUMBER}, None)
_PAGE_COST = {"pages": int, "latency": NUMBER, "processor": NUMBER}
_FORECAST: dict[str, Any] = {
    "probed": {"index": _PAGE_COST, "detail": _PAGE_COST, "targets": int, "whole": bool, "lanes": int,
               "concurrency": NUMBER, "spacing": NUMBER, "start": NUMBER},
    "index_rate": NUMBER, "targets_per_page": NUMBER, "worker_rate": NUMBER, "expected": (int, None),
    "bottleneck": str, "seconds": (int, float, None),
    "crawl": {"pages": (int, None), "limit": int, "workers": int, "local": int, "cores": int, "batch": int},
}  # fmt: skip
_JOB = {"node": str, "project": str, "spider": str, "job": str}
_ENDED = {**_JOB, "node": TEXT, "was": str, "state": str}
_COUNT = (int, None)
#: a job that the store follows, and that may not have begun
_FOLLOWED = {**dict.fromkeys(("node", "project", "job", "version"), TEXT), "spider": str, "state": str, "reason": str,
             **dict.fromkeys(("attempt", "pages", "items", "errors"), _COUNT)}  # fmt: skip

#: the command, as it is typed -> its document
DOCUMENTS: dict[str, Any] = {
    "init": {"file": str, "added": [str], "nodes": [{**_NODE, "written": bool, "state": str}]},
    "config": {"options": [{"section": str, "name": str, "value": object, "origin": str}], "misspelt": [str],
               "invalid": [str], "problem": TEXT},
    **dict.fromkeys(("crawl", "resume", "retry", "watch", "status", "crawls show", "frontier consume"), SUMMARY),
    **dict.fromkeys(("status --fleet", "watch --fleet"), _FLEET),
    "crawl --detach": {"crawl": str, "spider": str, "state": str, "pid": int},
    "watch A B": {"crawls": [SUMMARY]},
    "watch --job": {"jobs": [{**_JOB, "state": str, "pages": _COUNT, "items": _COUNT, "errors": _COUNT,
                                    "reason": str}]},
    "crawls list": {"crawls": [SUMMARY]},
    "plan": {
        "spider": str, "target": str, "project": str, "version": TEXT, "deploy": [str], "batch_size": int,
        "nodes": [{**_NODE, "state": str, "reason": str, "unreached": str, "slots": (int, None), "logs": bool}],
        "limit": (int, None), "goals": {str: NUMBER}, "code": [str], "forecast?": _FORECAST,
        "shards": [{"number": int, "url": str, "first_page": (int, None), "last_page": (int, None)}],
        "bytes_per_batch": {"form": str, "bytes": int, "per_url": NUMBER, "targets": {str: int}},
        "output": [str], "warnings": [str], "throttle": {"rules": int, "heeded": bool, "reason": str},
        "differences": _DIFFERENCES,
    },
    "crawls show --batches": {
        "crawl": str,
        "batches": [{"batch": int, "state": str, "requests": int, "reason": str, "split_from": (int, None),
                     "attempts": [{"number": int, "job": str, "worker": TEXT, "node": str, "state": str,
                                   "reason": str}]}],
    },
    "crawls show --misses": {"crawl": str, "misses": [{"url": str, "kind": str, "reason": str, "batch": int}]},
    "crawls clean": {
        "dry_run": bool,
        "removed": [{"crawl": str, "spider": str, "state": str, "created": NUMBER, "bytes": int}],
        "jobs": int,
    },
    "report": {
        "crawl": str, "begun": NUMBER, "as_of": NUMBER, "state": str, "summary": SUMMARY,
        "burn_up": ({"at": [NUMBER], "found": [NUMBER], "sent": [NUMBER], "done": [NUMBER], "gaps": [[NUMBER]],
                     "forecast": ({"requests": int, "sure": str, "soonest": NUMBER, "latest": NUMBER}, None)}, None),
        "heat": ({"step": NUMBER, "nodes": [str], "cells": [[(int, float, None)]], "pages": [NUMBER], "hidden": int},
                 None),
        "jobs": ({"lanes": [str],
                  "bars": [{"lane": int, "begin": NUMBER, "end": NUMBER, "outcome": str, "name": str}]}, None),
        "shard_sizes": _BARS, "shard_times": _BARS, "job_times": _BARS,
        "statuses": [{"node": str, "groups": {str: int}, "codes": {str: int}, "requests": int, "retried": int}],
        "runs": ({"names": [str], "items": [int], "median": (int, float, None), "mad": NUMBER}, None),
        "versions": ({"versions": [str], "nodes": {str: {str: int}}, "workers": {str: int}}, None),
        "nodes_now": [{"name": str, "versions": [str], "reason": str}],
        "misses": [{"url": str, "kind": str, "reason": str, "batch": int}],
    },
    "frontier list": {
        "frontiers": [{"frontier": str, "state": str, "labels": [str], "created": NUMBER, "requests": _KINDS,
                       "slots": [_SLOT], "producers": [str], "lost_producers": [str], "manager": TEXT}],
    },
    "frontier count": {"frontier": str, "slots": [_SLOT], "requests": _KINDS, "not_empty": int},
    "frontier dump": {
        "frontier": str, "slot": str, "batches": [{"batch": int, "priority": int, "requests": [dict]}],
    },
    "frontier add": {
        "frontier": str, "rows": int, "added": int, "duplicate": int, "bad": int,
        "bad_rows": [{"line": int, "reason": str}], "interrupted": bool,
    },
    "frontier move": {"frontier": str, "to": [str], **_WALKED},
    "frontier move --batch": {"frontier": str, "was": int, "batch": int, "slot": str, "requests": int},
    "frontier requeue": {"frontier": str, "batches": [int], "requests": int, "urls": int},
    "frontier prioritise": {"frontier": str, "priority": int, "batches": [int], "requests": int},
    "frontier delete": {"frontier": str, "slots": [_SLOT], **_WALKED},
    "strategy list": {"strategies": [_STRATEGY]},
    "strategy run": {**SUMMARY, "strategy": _LINKS},
    "strategy status": {**_STRATEGY, "letters": [{"number": int, "kind": str, "url": str, "fault": str}]},
    "strategy add": {"strategy": str, "seeds": int},
    "strategy reset": {"strategy": str, "links": int},
    "strategy replay": {"strategy": str, "events": int},
    "throttle show": {
        "version": int,
        "domains": [{"domain": str, "state": str, "limit": (_LIMIT, None), "blocked": bool, "paused": bool,
                     "granted": int, "keys": {str: int}, "latest_in": (int, float, None), "rests_for": NUMBER,
                     "pace": NUMBER, "delay": NUMBER, "gap": NUMBER, "pages": {str: int}}],
        "totals": dict.fromkeys(
            ("domains", "limited", "open", "blocked", "paused", "resting", "slowed", "granted"), int
        ),
        "crawls": _HEEDING,
    },
    "throttle apply": {"file": str, "dry_run": bool, **_RULES},
    **dict.fromkeys(
        (f"throttle {verb}" for verb in ("set", "pause", "resume")), _RULES
    ),
    "nodes list": {"project": TEXT, "version": TEXT, "nodes": [_LOOK]},
    "nodes list --offline": {"nodes": [{**_NODE, "project": TEXT}]},
    "nodes add": {"nodes": [_LOOK]},
    "nodes remove": {"nodes": [_NODE]},
    "nodes up": {"nodes": [{**_NODE, "slots": int}]},
    "nodes drain": {
        "nodes": [{**_NODE, "state": str, "running": (int, None), "pending": (int, None), "draining": TEXT}],
    },
    "nodes resume": {"nodes": [{**_NODE, "was_draining": bool}]},
    "doctor": {
        "nodes": [{**_NODE, "state": str, "latency_ms": (int, float, None), "skew_s": (int, float, None),
                   "versions": ([str], None), "certificate_ends": TEXT,
                   **dict.fromkeys(("logs", "ranges", "items_dir"), (bool, None))}],
        "findings": [{"severity": str, "node": str, "topic": str, "text": str, "remedy": str}],
    },
    **dict.fromkeys(("deploy", "code rollback"), ROLL_OUT),
    "code versions": {
        "project": str, "same": bool, "differences": [str], "warnings": [str],
        "versions": [{"version": str, "nodes": [str], "missing": [str]}],
        "nodes": [{**_NODE, "project": str, "versions": [str], "default": TEXT, "newest": TEXT, "jobs": {str: [str]},
                   "jobs_of_unknown_version": [str], "reason": str}],
    },
    "code versions --spiders": {
        "project": str, "spiders": [{"spider": str, "nodes": [str], "missing": [str]}],
        "nodes": [{**_NODE, "version": TEXT, "spiders": [str], "reason": str}],
    },
    "code versions --projects": {"projects": [{"project": str, "nodes": [str], "missing": [str]}]},
    "code prune": {
        "project": str, "dry_run": bool,
        "nodes": [{**_NODE, "project": str, "deleted": [str], "in_use": {str: [str]},
                   "jobs_of_unknown_version": [str], "reason": str}],
    },
    # Sent at once there is no more to tell; jobs that wait in the store are followed to their end.
    "jobs schedule": {
        "version?": TEXT,
        "jobs": [({**_JOB, "job": TEXT, "version": TEXT, "state": str, "reason": str}, _FOLLOWED)],
    },
    "jobs list": {
        "nodes": int, "unreached": [str],
        "log_errors?": ({"whole": bool, "groups": [{"name": str, "count": int, "example": str}]}, None),
        "jobs": [{**_JOB, "node": TEXT, "crawl": TEXT, "labels": [str], "state": str, "pages": _COUNT,
                  "items": _COUNT, "errors": _COUNT, "codes": {str: int}, "started": TEXT, "ended": TEXT,
                  "duration_s": (int, float, None), "reason": str, "remembered": bool, "attempt": _COUNT,
                  "version": TEXT, "args": ({str: str}, None), "settings": ([str], None), "scheduled": TEXT}],
    },
    "jobs grep": {"searched": int, "matches": [{"node": str, "job": str, "at": TEXT, "level": TEXT, "text": str}]},
    "jobs stats": {
        "jobs": int, "silent": [str], "partial?": [str], "home?": {str: int}, "since?": str, "states?": {str: int},
        "batches?": int,
        "spiders?": [{"spider": str, **dict.fromkeys(("jobs", "failed", "pages", "items", "errors"), int)}],
        "stats": {str: {"jobs": int, **dict.fromkeys(("sum?", "min?", "max?"), NUMBER), "values?": {str: int}}},
    },
    "jobs cancel": {"jobs": [_ENDED]},
    "stop": {"jobs": [_ENDED]},
    "items pull": {
        "folder": str, "items": (int, None),
        "files": [{"job": str, "node": str, "state": str, "file": TEXT, "items": (int, None), "bytes": (int, None),
                   "fetched_bytes": int, "torn_bytes": int, "reason": str}],
    },
    "items merge": {"items": int, "duplicates": int, "files": int, "torn": [str], "problems": [str], "output": [str]},
}  # fmt: skip


def misfits(value: Any, shape: Any, path: str = "$") -> list[str]:
    """Where a value that came out of JSON is not of a shape; nothing when it is.

    A shape is a type; None; `object`, which is anything; a tuple of shapes, one of which has to fit; `[shape]`, a list
    of such values; a dict of names, which have to be there unless a question mark follows; `{str: shape}`, a mapping
    of any names.
    """
    if shape is object:
        return []
    if isinstance(shape, tuple):
        tried = [misfits(value, one, path) for one in shape]
        return [] if not all(tried) else min(tried, key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [_wrong(path, "a list", value)]
        return [
            text for at, one in enumerate(value) for text in misfits(one, shape[0], f"{path}[{at}]")
        ]
    if isinstance(shape, dict):
        return _object(value, shape, path)
    # A bool is an int to Python, and none to a reader of JSON: hence the very type.
    fits = value is None if shape is None else type(value) is shape
    return [] if fits else [_wrong(path, shape, value)]


def document_misfits(command: str, document: Any) -> list[str]:
    """Where the document of a command is not of its shape."""
    return misfits(document, {"schema": int, **DOCUMENTS[command]})


def _object(value: Any, shape: dict[Any, Any], path: str) -> list[str]:
    if not isinstance(value, dict):
        return [_wrong(path, "an object", value)]
    if set(shape) == {str}:
        return [
            text
            for name, one in value.items()
            for text in misfits(one, shape[str], f"{path}.{name}")
        ]
    known = {name.removesuffix("?"): one for name, one in shape.items()}
    found = [
        f"{path}.{name}: is not there"
        for name in shape
        if not name.endswith("?") and name not in value
    ]
    found += [f"{path}.{name}: is not in the shape" for name in value if name not in known]
    for name in known.keys() & value.keys():
        found += misfits(value[name], known[name], f"{path}.{name}")
    return found


def _wrong(path: str, shape: object, value: object) -> str:
    wanted = shape.__name__ if isinstance(shape, type) else str(shape)
    return f"{path}: {value!r:.80} is not {wanted}"
