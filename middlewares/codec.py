"""Turns a Scrapy request into a JSON value and back without loss, or says what cannot travel.

Part of the worker half: imports Scrapy and the standard library only.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from scrapy import FormRequest, Request, Spider
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Headers, JsonRequest, XmlRpcRequest
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import CrawlSpider

from scrapyd_dist.frontier.backlog import MAX_PRIORITY
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.plurals import counted

from .aliases import Alias, NoSuchPlace, find_aliases, restore_aliases
from .typed_json import NoJsonForm, UnknownClass, pack, unpack

#: request meta: the slots of this one request
PREFIX = "frontier_slot_prefix"
NUMBER = "frontier_number_of_slots"
#: request meta: what makes this request known again, in place of what it asks for
FINGERPRINT = "frontier_fingerprint"
#: request meta: the `InFlightPermit` with which a request has left the queue; it means nothing in
#: another process
PERMIT = "distributed_permit"
#: request meta: it was sent back to the queue once, as it had lost its permit; the value is its own
#: dont_filter
SENT_BACK = "distributed_again"
#: request meta: it waits for its turn outside of the queue: for a permit, or by a goal of the crawl
WAITS = "distributed_waits"
#: request meta that only means something in the process that set it
LOCAL_META = frozenset({"distribute", PERMIT, SENT_BACK, WAITS, PREFIX, NUMBER, FINGERPRINT})
#: request meta: the spider began with it; Scrapy sets it, and has a queue of its own for these
IS_START = "is_start_request"
#: its value where a worker, but not the spider, begins with the request
STARTS_BATCH = "batch"
#: the same of a rule's request, which travels with the rule's number
RULE_META = LOCAL_META | {"rule"}
#: the same with what a rule's request has anyway, unless its link has a text
TEXTLESS_RULE_META = RULE_META | {"link_text"}
#: meta that means nothing to another spider
SPIDER_META = frozenset({"depth", IS_START})
#: the callback of a request that names none
DEFAULT_CALLBACK = "parse"
#: the same of a CrawlSpider, where it is not what `parse` would be
CRAWL_SPIDER_CALLBACK = "_parse"
#: the field of a value with attributes of the spider that made the request
ATTRIBUTES = "attributes"
#: the field of a value with the objects that its meta and cb_kwargs hold in several places
ALIASES = "aliases"
#: classes of requests that are no more than their fields
PLAIN_CLASSES = (Request, FormRequest, JsonRequest, XmlRpcRequest)
#: fields of a value that are those of the request as they are
_AS_THEY_ARE = ("method", "encoding", "priority", "dont_filter")
#: fields that may hold what JSON has no form for
_PACKED = ("body", "cookies", "cb_kwargs")
#: what names a method
_OF_METHODS = ("__func__", "__name__", "__qualname__")


class WatchedDict(partial[Any]):
    """Stands for an errback of ours around a request's own, which is its last argument.

    It has the name of that one, by which Scrapy finds it when it makes a dict of a request.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _OF_METHODS:
            return getattr(self.args[-1], name)
        raise AttributeError(name)


class PagesUsedUp(IgnoreRequest):
    """The request is not made: its crawl has had all pages of this domain that it may have."""

    def __init__(self, domain: str, pages: int) -> None:
        super().__init__(f"the budget of {counted(pages, 'page')} of {domain} is used up")


class NotLetOut(IgnoreRequest):
    """The request is not made, as this program does not let it: no component has dropped it."""


def is_dropped(error: BaseException | None) -> bool:
    """Say whether a component has dropped a request, as Scrapy's for robots.txt does.

    Plain Scrapy drops it as well, and does not count it as a failure.
    """
    return isinstance(error, IgnoreRequest) and not isinstance(error, (HttpError, NotLetOut))


class CannotTravel(ValueError):
    """This request cannot be rebuilt in another process; the message says why."""


def mark_start(request: Request) -> None:
    """Mark a request that the spider's own start has yielded.

    Scrapy does that later, where one for the fleet does not come by, nor one that a worker makes
    before its first batch.
    """
    request.meta.setdefault(IS_START, True)


def to_value(request: Request, spider: Spider) -> RequestValue:
    """Return the request as JSON: `url`, and only those other fields that differ from a plain GET.

    Raises:
        CannotTravel: a callback is no method of the spider, or a value has no JSON form.
    """
    rule = rule_of(request, spider)
    errback = own_errback(request)
    if rule is None:
        if request.callback is None:
            callback = _default_callback(spider)
        else:
            callback = _require_name(request.callback, spider)
        value: RequestValue = {"url": request.url, "callback": callback}
        if errback is not None:
            value["errback"] = _require_name(errback, spider)
        return {**value, **_pack_fields(request, LOCAL_META)}
    value = {"url": request.url, "rule": rule}
    # process_request of the rule may have given it another errback, or none.
    if errback != getattr(spider, "_errback", None):
        value["errback"] = None if errback is None else _require_name(errback, spider)
    left_out = TEXTLESS_RULE_META if request.meta.get("link_text") == "" else RULE_META
    return {**value, **_pack_fields(request, left_out)}


def to_value_for_other(request: Request, spider: Spider, callback: str | None) -> RequestValue:
    """Return the request of this spider as JSON for another one.

    That one must have methods of these names. `callback` is that of the other spider; None for the
    one that it has for pages of no other.

    Raises:
        CannotTravel: a callback has no name, or a value has no JSON form.
    """
    value: RequestValue = {"url": request.url, "callback": callback}
    is_rules = rule_of(request, spider) is not None
    errback = own_errback(request)
    if errback is not None and not is_rules:  # the errback of a rule's requests is Scrapy's own
        value["errback"] = getattr(errback, "__name__", "")
    for name in (callback, value.get("errback")):
        if name is not None and not name.isidentifier():
            raise CannotTravel(f"{name!r} cannot be the name of a method of another spider")
    left_out = TEXTLESS_RULE_META if is_rules else LOCAL_META
    return {**value, **_pack_fields(request, left_out | SPIDER_META)}


def _pack_fields(request: Request, left_out: frozenset[str]) -> RequestValue:
    """Return all but address and callbacks; of meta all but what is `left_out`."""
    _check_can_travel(request)
    value: RequestValue = {}
    if request.method != "GET":
        value["method"] = request.method
    if request.headers:
        value["headers"] = _pack_headers(request.headers)
    meta = {name: item for name, item in request.meta.items() if name not in left_out}
    fields = (
        ("body", request.body),
        ("cookies", request.cookies),
        ("meta", meta),
        ("cb_kwargs", request.cb_kwargs),
        ("priority", request.priority),
        ("dont_filter", request.dont_filter),
        ("flags", list(request.flags)),
    )
    try:
        for name, item in fields:
            if item:
                value[name] = _pack(item, name)
    except RecursionError:
        raise CannotTravel("it has a value that contains itself, or is nested too deep") from None
    if aliases := _find_aliases(meta, request.cb_kwargs):
        value[ALIASES] = aliases
    if request.encoding != "utf-8":
        value["encoding"] = request.encoding
    return value


def _find_aliases(meta: dict[str, Any], arguments: dict[str, Any]) -> list[Alias]:
    """Return the places in meta and cb_kwargs of what is in an earlier place, too."""
    try:
        return find_aliases({"meta": meta, "cb_kwargs": arguments})
    except NoSuchPlace as error:
        raise CannotTravel(f"it has {error}, which JSON cannot carry") from None


def _pack_headers(headers: Headers) -> dict[str, list[str]]:
    packed = {}
    for name, values in headers.items():
        packed[name.decode("latin-1")] = [value.decode("latin-1") for value in values]
    return packed


def _check_can_travel(request: Request) -> None:
    if type(request) not in PLAIN_CLASSES:
        raise CannotTravel(
            f"{type(request).__name__} is a class of its own, which may mean more than its fields"
        )
    if abs(request.priority) > MAX_PRIORITY:
        raise CannotTravel(
            f"its priority is {request.priority}, and none beyond {MAX_PRIORITY} can be kept"
        )


def from_value(value: RequestValue, spider: Spider) -> Request:
    """Return the request that `to_value` described.

    Raises:
        CannotTravel: the spider has no such rule or method.
    """
    meta = _unpack(value.get("meta", {}), spider)
    callback, errback = _find_callbacks(value, spider, meta)
    return _make_request(value, spider, meta, callback, errback)


def plain_request(value: RequestValue) -> Request:
    """Return the same without its callbacks, where there is no spider."""
    return _make_request(value, None, _unpack(value.get("meta", {}), None))


def _make_request(
    value: RequestValue,
    spider: Spider | None,
    meta: dict[str, Any],
    callback: Any = None,
    errback: Any = None,
) -> Request:
    # Most requests have an address and little else: only what is there is looked at.
    given: dict[str, Any] = {}
    for name in _AS_THEY_ARE:
        if name in value:
            given[name] = value[name]
    for name in _PACKED:
        if name in value:
            given[name] = _unpack(value[name], spider)
    if ALIASES in value:
        _restore_aliases(value[ALIASES], meta, given.get("cb_kwargs", {}), spider)
    if "headers" in value:
        headers = given["headers"] = {}
        for name, items in value["headers"].items():
            headers[name.encode("latin-1")] = [item.encode("latin-1") for item in items]
    if "flags" in value:
        given["flags"] = list(value["flags"])
    return Request(value["url"], callback=callback, errback=errback, meta=meta, **given)


def _restore_aliases(
    aliases: Any, meta: dict[str, Any], arguments: dict[str, Any], spider: Spider | None
) -> None:
    """Let meta and cb_kwargs hold the same objects in all places where they did."""
    try:
        restore_aliases({"meta": meta, "cb_kwargs": arguments}, aliases)
    except NoSuchPlace as error:
        if spider is not None:  # without the project, items are left as they came
            raise CannotTravel(str(error)) from error


def add_cookies(
    value: RequestValue, request: Request, cookies: list[dict[str, Any]]
) -> RequestValue:
    """Return the value of a request with more cookies.

    Those that the request has itself go before them.
    """
    own = request.cookies
    if not isinstance(own, list):
        own = [{"name": name, "value": text} for name, text in own.items()]
    return {**value, "cookies": _pack([*cookies, *own], "cookies")}


def pack_attributes(spider: Spider, names: Iterable[str]) -> RequestValue:
    """Return those of these attributes that the spider has, as a field of a request's value.

    Raises:
        CannotTravel: one has no JSON form.
    """
    packed = {}
    for name in names:
        if hasattr(spider, name):
            packed[name] = _pack(getattr(spider, name), f"{name} (an attribute of the spider)")
    if not packed:
        return {}
    return {ATTRIBUTES: packed}


def set_attributes(value: RequestValue, spider: Spider) -> None:
    """Give the spider those attributes that came with a request and that its own settings name."""
    packed = value.get(ATTRIBUTES, {})
    for name in spider.settings.getlist("DISTRIBUTED_SPIDER_ATTRIBUTES"):
        if name in packed:
            setattr(spider, name, _unpack(packed[name], spider))


def rule_of(request: Request, spider: Spider) -> int | None:
    """Return the number of the CrawlSpider rule that made this request, or None."""
    # The callback is how Scrapy marks the requests of rules.
    if isinstance(spider, CrawlSpider) and request.callback == spider._callback:  # noqa: SLF001
        rule = request.meta.get("rule")
        if isinstance(rule, int):
            return rule
    return None


def own_errback(request: Request) -> Callable[..., Any] | None:
    """Return the errback that the spider gave the request."""
    errback = request.errback
    while isinstance(errback, WatchedDict):
        errback = errback.args[-1]
    return errback


def _default_callback(spider: Spider) -> str:
    if isinstance(spider, CrawlSpider):
        return CRAWL_SPIDER_CALLBACK
    return DEFAULT_CALLBACK


def method_name(method: Callable[..., Any] | None, spider: Spider) -> str:
    """Return the name by which the spider has this method; empty if it has not.

    It may be another than that of the method's function.
    """
    name = str(getattr(method, "__name__", ""))
    if not inspect.ismethod(method) or method.__self__ is not spider:
        return ""
    if getattr(spider, name, None) == method:
        return name
    kind: Any = type(spider)
    return _find_attribute(kind, method.__func__)


@lru_cache(maxsize=256)
def _find_attribute(kind: Any, function: Any) -> str:
    """Return the attribute of the class that holds this function; empty if none does.

    Scrapy's own serializer looks for it in the same way.
    """
    for name in dir(kind):
        if inspect.getattr_static(kind, name, None) is function:
            return name
    return ""


def _require_name(method: Callable[..., Any], spider: Spider) -> str:
    name = method_name(method, spider)
    if not name:
        raise CannotTravel(
            f"{getattr(method, '__qualname__', method)} is not a method of the spider"
        )
    return name


def _find_callbacks(value: RequestValue, spider: Spider, meta: dict[str, Any]) -> tuple[Any, Any]:
    """Return callback and errback; None for those that a request need not name."""
    if "rule" in value:
        return _find_rule_callbacks(value, spider, meta)
    default = _default_callback(spider)
    name = value.get("callback", default)
    callback = None
    if name != default:
        callback = _find_method(name, spider)
    return callback, _find_method(value.get("errback"), spider)


def _find_rule_callbacks(
    value: RequestValue, spider: Spider, meta: dict[str, Any]
) -> tuple[Any, Any]:
    number = value["rule"]
    rules = getattr(spider, "rules", ())
    if not isinstance(spider, CrawlSpider) or not 0 <= number < len(rules):
        raise CannotTravel(f"the spider {spider.name} has no rule {number}")
    meta["rule"] = number
    meta.setdefault("link_text", "")
    # Where Scrapy itself looks for what a request does not name; it has no other name for them.
    errback = spider._errback  # noqa: SLF001
    if "errback" in value:
        errback = _find_method(value["errback"], spider)
    return spider._callback, errback  # noqa: SLF001


def _find_method(name: Any, spider: Spider) -> Any:
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
        if spider is None:  # without the project, what is not called is of no matter
            return item
        raise CannotTravel(str(error)) from error
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise CannotTravel(f"it has a value that cannot be made here: {error}") from error
