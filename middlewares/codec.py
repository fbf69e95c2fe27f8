"""A Scrapy request as a JSON value, and back, without loss; what cannot travel is told by name.

Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import base64
import inspect
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.spiders import CrawlSpider

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapyd_dist.payload import RequestValue

#: request meta that only means something in the process that set it
LOCAL_META = frozenset({"depth", "is_start_request", "distribute"})
#: the callback of a request that names none
DEFAULT_CALLBACK = "parse"


class CannotTravel(ValueError):
    """This request cannot be rebuilt in another process; the message says why."""


def to_value(request: Request, spider: Spider) -> RequestValue:
    """The request as JSON: `url`, and only those other fields that differ from a plain GET.

    Raises:
        CannotTravel: a callback is no method of the spider, or a value has no JSON form.
    """
    if set(type(request).attributes) - {"dumps_kwargs"} != set(Request.attributes):
        raise CannotTravel(f"{type(request).__name__} has attributes of its own")
    value: RequestValue = {"url": request.url}
    rule = rule_of(request, spider)
    value |= _methods(request, spider) if rule is None else {"rule": rule}
    if request.method != "GET":
        value["method"] = request.method
    if request.headers:
        value["headers"] = {
            name.decode("latin-1"): [item.decode("latin-1") for item in items]
            for name, items in request.headers.items()
        }
    left = LOCAL_META if rule is None else LOCAL_META | {"rule"}
    meta = {name: item for name, item in request.meta.items() if name not in left}
    if not meta.get("link_text", True):
        del meta["link_text"]
    fields = (
        ("body", request.body),
        ("cookies", request.cookies),
        ("meta", meta),
        ("cb_kwargs", request.cb_kwargs),
        ("priority", request.priority),
        ("dont_filter", request.dont_filter),
        ("flags", list(request.flags)),
    )
    value |= {name: _pack(item, name) for name, item in fields if item}
    if request.encoding != "utf-8":
        value["encoding"] = request.encoding
    return value


def from_value(value: RequestValue, spider: Spider) -> Request:
    """The request that `to_value` described.

    Raises:
        CannotTravel: the spider has no such rule or method.
    """
    meta = _unpack(value.get("meta", {}))
    callback, errback = _targets(value, spider, meta)
    return Request(
        value["url"],
        callback=callback,
        errback=errback,
        method=value.get("method", "GET"),
        headers={name: list(items) for name, items in value.get("headers", {}).items()},
        body=_unpack(value.get("body", b"")),
        cookies=_unpack(value.get("cookies", {})),
        meta=meta,
        cb_kwargs=_unpack(value.get("cb_kwargs", {})),
        encoding=value.get("encoding", "utf-8"),
        priority=value.get("priority", 0),
        dont_filter=value.get("dont_filter", False),
        flags=list(value.get("flags", ())),
    )


def rule_of(request: Request, spider: Spider) -> int | None:
    """The number of the CrawlSpider rule that made this request, or None."""
    if isinstance(spider, CrawlSpider) and request.callback == spider._callback:  # noqa: SLF001 - how Scrapy marks its own
        rule = request.meta.get("rule")
        return rule if isinstance(rule, int) else None
    return None


def _methods(request: Request, spider: Spider) -> RequestValue:
    callback = DEFAULT_CALLBACK if request.callback is None else _name(request.callback, spider)
    value: RequestValue = {"callback": callback}
    if request.errback is not None:
        value["errback"] = _name(request.errback, spider)
    return value


def _name(method: Callable[..., Any], spider: Spider) -> str:
    name: str = getattr(method, "__name__", "")
    if not inspect.ismethod(method) or method.__self__ is not spider or getattr(spider, name, None) != method:
        raise CannotTravel(f"{getattr(method, '__qualname__', method)} is not a method of the spider")
    return name


def _targets(value: RequestValue, spider: Spider, meta: dict[str, Any]) -> tuple[Any, Any]:
    if "rule" in value:
        rules = getattr(spider, "rules", ())
        if not isinstance(spider, CrawlSpider) or not 0 <= value["rule"] < len(rules):
            raise CannotTravel(f"the spider {spider.name} has no rule {value['rule']}")
        meta["rule"] = value["rule"]
        meta.setdefault("link_text", "")
        return spider._callback, spider._errback  # noqa: SLF001 - what a rule's own requests carry
    callback = value.get("callback", DEFAULT_CALLBACK)
    errback = value.get("errback")
    return (
        None if callback == DEFAULT_CALLBACK else _method(callback, spider),
        None if errback is None else _method(errback, spider),
    )


def _method(name: str, spider: Spider) -> Any:
    method = getattr(spider, name, None)
    if not inspect.ismethod(method):
        raise CannotTravel(f"the spider {spider.name} has no method {name!r}")
    return method


def _pack(item: Any, where: str) -> Any:
    """JSON for what JSON has; bytes and tuples under a one-key object whose key starts with `$`."""
    if item is None or isinstance(item, (str, bool)) or type(item) in (int, float):
        return item
    if isinstance(item, bytes):
        return {"$bytes": base64.b64encode(item).decode()}
    if isinstance(item, tuple):
        return {"$tuple": [_pack(entry, where) for entry in item]}
    if isinstance(item, list):
        return [_pack(entry, where) for entry in item]
    if isinstance(item, dict) and all(isinstance(name, str) for name in item):
        packed = {name: _pack(entry, where) for name, entry in item.items()}
        return {"$dict": packed} if any(name.startswith("$") for name in packed) else packed
    raise CannotTravel(f"its {where} has a {type(item).__name__}, which JSON cannot carry")


def _unpack(item: Any) -> Any:
    if isinstance(item, list):
        return [_unpack(entry) for entry in item]
    if not isinstance(item, dict):
        return item
    if "$bytes" in item:
        return base64.b64decode(item["$bytes"])
    if "$tuple" in item:
        return tuple(_unpack(entry) for entry in item["$tuple"])
    return {name: _unpack(entry) for name, entry in item.get("$dict", item).items()}
