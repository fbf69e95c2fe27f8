"""A Scrapy request as a JSON value, and back, without loss; what cannot travel is told by name.

Part of the worker half: imports Scrapy and the standard library only.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from scrapy import FormRequest, Request, Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.http import JsonRequest, XmlRpcRequest
from scrapy.spiders import CrawlSpider

from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.plurals import counted

from .typed_json import NoJsonForm, UnknownClass, pack, unpack

#: request meta: the slots of this one request
PREFIX, NUMBER = "frontier_slot_prefix", "frontier_number_of_slots"
#: request meta: what makes this request known again, in place of what it asks for
FINGERPRINT = "frontier_fingerprint"
#: request meta: the `InFlightPermit` with which a request has left the queue; it means nothing in another process
PERMIT = "distributed_permit"
#: request meta: it was sent back to the queue once, as it had lost its permit; the value is its own dont_filter
AGAIN = "distributed_again"
#: request meta: it waits for its turn outside of the queue: for a permit, or by a goal of the crawl
WAITS = "distributed_waits"
#: request meta that only means something in the process that set it
LOCAL_META = frozenset(
    {"is_start_request", "distribute", PERMIT, AGAIN, WAITS, PREFIX, NUMBER, FINGERPRINT}
)
#: the same of a rule's request, which travels with the rule's number
RULE_META = LOCAL_META | {"rule"}
#: meta that means nothing to another spider
SPIDER_META = frozenset({"depth"})
#: the callback of a request that names none
DEFAULT_CALLBACK = "parse"
#: the same of a CrawlSpider, where it is not what `parse` would be
CRAWL_SPIDER_CALLBACK = "_parse"
#: the field of a value with attributes of the spider that made the request
ATTRIBUTES = "attributes"
#: classes of requests that are no more than their fields
PLAIN_CLASSES = (Request, FormRequest, JsonRequest, XmlRpcRequest)
#: fields of a value that are those of the request, and those that may hold what JSON has no form for
_AS_THEY_ARE, _PACKED = (
    ("method", "encoding", "priority", "dont_filter"),
    ("body", "cookies", "cb_kwargs"),
)


class WatchedDict(partial[Any]):
    """An errback of ours around a request's own, which is its last argument."""


class PagesUsedUp(IgnoreRequest):
    """The request is not made: its crawl has had all pages of this domain that it may have."""

    def __init__(self, domain: str, pages: int) -> None:
        super().__init__(f"the budget of {counted(pages, 'page')} of {domain} is used up")


class CannotTravel(ValueError):
    """This request cannot be rebuilt in another process; the message says why."""


def to_value(request: Request, spider: Spider) -> RequestValue:
    """The request as JSON: `url`, and only those other fields that differ from a plain GET.

    CannotTravel if a callback is no method of the spider, or a value has no JSON form.
    """
    rule, errback = rule_of(request, spider), own_errback(request)
    if rule is None:
        callback = _default(spider) if request.callback is None else _name(request.callback, spider)
        value: RequestValue = {"url": request.url, "callback": callback}
        if errback is not None:
            value["errback"] = _name(errback, spider)
        return {**value, **_fields(request, LOCAL_META)}
    value = {"url": request.url, "rule": rule}
    if errback != getattr(
        spider, "_errback", None
    ):  # process_request of the rule gave it another one
        value["errback"] = None if errback is None else _name(errback, spider)
    usual = (
        {"link_text"} if request.meta.get("link_text") == "" else set()
    )  # what a rule's request has anyway
    return {**value, **_fields(request, RULE_META | usual)}


def to_value_for_other(request: Request, spider: Spider, callback: str | None) -> RequestValue:
    """The request of this spider as JSON for another one, which must have methods of these names.

    `callback` is that of the other spider; None for the one that it has for pages of no other. CannotTravel if a
    callback has no name, or a value has no JSON form.
    """
    value: RequestValue = {"url": request.url, "callback": callback}
    is_rules = rule_of(request, spider) is not None
    errback = own_errback(request)
    if errback is not None and not is_rules:  # the errback of a rule's requests is Scrapy's own
        value["errback"] = getattr(errback, "__name__", "")
    for name in (callback, value.get("errback")):
        if name is not None and not name.isidentifier():
            raise CannotTravel(f"{name!r} cannot be the name of a method of another spider")
    left = RULE_META | {"link_text"} if is_rules else LOCAL_META
    return {**value, **_fields(request, left | SPIDER_META)}


def _fields(request: Request, left: frozenset[str]) -> RequestValue:
    """All but address and callbacks; of meta all but what is `left` here."""
    if type(request) not in PLAIN_CLASSES:
        raise CannotTravel(
            f"{type(request).__name__} is a class of its own, which may mean more than its fields"
        )
    if abs(request.priority) > MAX_PRIORITY:
        raise CannotTravel(
            f"its priority is {request.priority}, and none beyond {MAX_PRIORITY} can be kept"
        )
    value: RequestValue = {}
    if request.method != "GET":
        value["method"] = request.method
    if request.headers:
        value["headers"] = {
            name.decode("latin-1"): [item.decode("latin-1") for item in items]
            for name, items in request.headers.items()
        }
    fields = (
        ("body", request.body),
        ("cookies", request.cookies),
        ("meta", {name: item for name, item in request.meta.items() if name not in left}),
        ("cb_kwargs", request.cb_kwargs),
        ("priority", request.priority),
        ("dont_filter", request.dont_filter),
        ("flags", list(request.flags)),
    )
    try:
        value |= {name: _pack(item, name) for name, item in fields if item}
    except RecursionError:
        raise CannotTravel("it has a value that contains itself, or is nested too deep") from None
    if request.encoding != "utf-8":
        value["encoding"] = request.encoding
    return value


def from_value(value: RequestValue, spider: Spider) -> Request:
    """The request that `to_value` described; CannotTravel if the spider has no such rule or method."""
    meta = _unpack(value.get("meta", {}), spider)
    callback, errback = _targets(value, spider, meta)
    return _request(value, spider, meta, callback, errback)


def plain_request(value: RequestValue) -> Request:
    """The same without its callbacks, where there is no spider."""
    return _request(value, None, _unpack(value.get("meta", {}), None))


def _request(
    value: RequestValue,
    spider: Spider | None,
    meta: dict[str, Any],
    callback: Any = None,
    errback: Any = None,
) -> Request:
    # Most requests have an address and little else: only what is there is looked at.
    given = {name: value[name] for name in _AS_THEY_ARE if name in value}
    given.update({name: _unpack(value[name], spider) for name in _PACKED if name in value})
    if "headers" in value:
        given["headers"] = {
            name.encode("latin-1"): [item.encode("latin-1") for item in items]
            for name, items in value["headers"].items()
        }
    if "flags" in value:
        given["flags"] = list(value["flags"])
    return Request(value["url"], callback=callback, errback=errback, meta=meta, **given)


def add_cookies(
    value: RequestValue, request: Request, cookies: list[dict[str, Any]]
) -> RequestValue:
    """The value of a request with more cookies; those that the request has itself go before them."""
    own = request.cookies
    named = (
        own
        if isinstance(own, list)
        else [{"name": name, "value": text} for name, text in own.items()]
    )
    return {**value, "cookies": _pack([*cookies, *named], "cookies")}


def pack_attributes(spider: Spider, names: Iterable[str]) -> RequestValue:
    """Those of these attributes that the spider has, as a field of a request's value; CannotTravel as for others."""
    packed = {
        name: _pack(getattr(spider, name), f"{name} (an attribute of the spider)")
        for name in names
        if hasattr(spider, name)
    }
    return {ATTRIBUTES: packed} if packed else {}


def set_attributes(value: RequestValue, spider: Spider) -> None:
    """Give the spider the attributes that came with a request: those of them that its own settings name."""
    packed = value.get(ATTRIBUTES, {})
    for name in spider.settings.getlist("DISTRIBUTED_SPIDER_ATTRIBUTES"):
        if name in packed:
            setattr(spider, name, _unpack(packed[name], spider))


def rule_of(request: Request, spider: Spider) -> int | None:
    """The number of the CrawlSpider rule that made this request, or None."""
    if isinstance(spider, CrawlSpider) and request.callback == spider._callback:
        rule = request.meta.get("rule")
        return rule if isinstance(rule, int) else None
    return None


def own_errback(request: Request) -> Callable[..., Any] | None:
    """The errback that the spider gave the request."""
    errback = request.errback
    while isinstance(errback, WatchedDict):
        errback = errback.args[-1]
    return errback


def _default(spider: Spider) -> str:
    return CRAWL_SPIDER_CALLBACK if isinstance(spider, CrawlSpider) else DEFAULT_CALLBACK


def method_name(method: Callable[..., Any] | None, spider: Spider) -> str:
    """The name by which the spider has this method, which may be another than that of its function; empty for none."""
    name = str(getattr(method, "__name__", ""))
    if not inspect.ismethod(method) or method.__self__ is not spider:
        return ""
    kind: Any = type(spider)
    return name if getattr(spider, name, None) == method else _attribute_of(kind, method.__func__)


@lru_cache(maxsize=256)
def _attribute_of(kind: Any, function: Any) -> str:
    """The attribute of the class that holds this function; Scrapy's own serializer looks for it in the same way."""
    return next(
        (name for name in dir(kind) if inspect.getattr_static(kind, name, None) is function), ""
    )


def _name(method: Callable[..., Any], spider: Spider) -> str:
    name = method_name(method, spider)
    if not name:
        raise CannotTravel(
            f"{getattr(method, '__qualname__', method)} is not a method of the spider"
        )
    return name


def _targets(value: RequestValue, spider: Spider, meta: dict[str, Any]) -> tuple[Any, Any]:
    if "rule" in value:
        rules = getattr(spider, "rules", ())
        if not isinstance(spider, CrawlSpider) or not 0 <= value["rule"] < len(rules):
            raise CannotTravel(f"the spider {spider.name} has no rule {value['rule']}")
        meta["rule"] = value["rule"]
        meta.setdefault("link_text", "")
        # Where Scrapy itself looks for what a request does not name; it has no other name for them.
        errback = spider._errback
        if "errback" in value:
            errback = _method(value["errback"], spider)
        return spider._callback, errback
    default = _default(spider)
    callback = value.get("callback", default)
    return (
        None if callback == default else _method(callback, spider),
        _method(value.get("errback"), spider),
    )


def _method(name: Any, spider: Spider) -> Any:
    if name is None:
        return None
    method = getattr(spider, name, None) if isinstance(name, str) else None
    if not inspect.ismethod(method):
        raise CannotTravel(f"the spider {spider.name} has no method {name!r}")
    return method


def _pack(item: Any, where: str) -> Any:
    try:
        return pack(item)
    except NoJsonForm as error:
        raise CannotTravel(f"its {where} has a {error}, which JSON cannot carry") from None


def _unpack(item: Any, spider: Spider | None) -> Any:
    package = "" if spider is None else type(spider).__module__.partition(".")[0]
    try:
        return unpack(item, package)
    except UnknownClass as error:
        if spider is None:
            return (
                item  # a process without the project; what it does not call is of no matter to it
            )
        raise CannotTravel(str(error)) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise CannotTravel(f"it has a value that cannot be made here: {error}") from error
