"""Decides which requests are for the fleet: by rule number, by callback name, or by request meta.

Part of the worker half (a worker asks who takes a bare URL): Scrapy and the standard library only.
"""

import inspect
import logging
import shlex
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.spiders import CrawlSpider, SitemapSpider

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.near_names import did_you_mean
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.related_names import META, meta_answer
from scrapyd_dist.settings import SettingReader

from .assignment import follows_strategy
from .codec import DEFAULT_CALLBACK, method_name, rule_of

logger = logging.getLogger(__name__)
#: request meta that marks a target request whatever its callback: True, or the other spider that
#: it is for
MARK = "distribute"
#: the setting that names callbacks of other spiders
SPIDER_CALLBACKS = "DISTRIBUTED_SPIDER_CALLBACKS"
#: the setting that says that no target was named, and the spider's only other callback was taken
GUESSED = "SCRAPYD_DIST_GUESSED_TARGET"


class NoTarget(ConfigError):
    """Nothing says which requests of a spider go to the nodes."""


@dataclass(frozen=True)
class Target:
    """Says what makes a request a target request."""

    rules: frozenset[int] = frozenset()  #: their numbers
    callbacks: frozenset[str] = frozenset()  #: their names
    how: str = ""  #: how it was found, in words
    seeds: bool = False  #: start requests are for the fleet too
    follows: bool = False  #: what the spider's rules find on target pages is for the fleet too

    def methods(self, spider: Spider) -> frozenset[str]:
        """Return the names of the callbacks that get target pages.

        Some may be known only in the crawl.
        """
        rules = _rules(spider)
        return self.callbacks | {_callback_name(rules[number]) for number in self.rules}

    def unfollowed_rules(self, spider: Spider) -> list[int]:
        """Return the numbers of its rules that follow links, which the workers do not."""
        if self.follows:
            return []
        following = []
        for number, rule in enumerate(_rules(spider)):
            if number in self.rules and rule.follow:
                following.append(number)
        return following

    def rule_hooks(self, spider: Spider) -> frozenset[str]:
        """Return the names of the methods to which rules give the links of target pages."""
        names = set()
        for rule in _rules(spider) if self.follows else ():
            for hook in (rule.process_links, rule.process_request):
                names.add(getattr(hook, "__name__", str(hook)))
        return frozenset(names)

    def takes(self, request: Request, spider: Spider, *, start: bool = False) -> bool:
        """Tell whether this request, or start request, is for the fleet."""
        if request.meta.get(MARK) or (start and self.seeds):
            return True
        if not META.keys().isdisjoint(request.meta):
            for key in META.keys() & request.meta.keys():
                _warn_of_key(key)
        rule = rule_of(request, spider)
        if rule is not None and rule in self.rules:
            return True
        return callback_name(request, spider) in self.callbacks


@dataclass(frozen=True)
class LinkTarget(Target):
    """Says what makes a request a link for a crawling strategy.

    A rule has made it, or the target takes it.
    """

    every: bool = False  #: no target is named: all requests of callbacks are links

    def takes(self, request: Request, spider: Spider, *, start: bool = False) -> bool:
        """Tell whether this request, or start request, is a link."""
        if self.every or rule_of(request, spider) is not None:
            return True
        return super().takes(request, spider, start=start)


@cache
def _warn_of_key(key: str) -> None:
    """Warn once of a key in meta that marks requests in a related system."""
    logger.warning("%s", meta_answer(key))


def callback_name(request: Request, spider: Spider) -> str:
    """Return the name of what a request's page goes to.

    Of a rule's request it is the name of the rule's callback, and empty if there is no such rule.
    """
    rule = rule_of(request, spider)
    if rule is not None:
        rules = _rules(spider)
        if not 0 <= rule < len(rules):
            return ""
        return _callback_name(rules[rule])
    if request.callback is None:
        return DEFAULT_CALLBACK
    return method_name(request.callback, spider) or getattr(request.callback, "__name__", "")


def find_target(spider: Spider, settings: BaseSettings) -> Target:
    """Return the target that the settings name, or the only one that can be meant.

    Raises:
        NoTarget: there is none.
        ConfigError: the settings name what there is not.
    """
    others = frozenset(SettingReader(settings).value(SPIDER_CALLBACKS))
    seeds = settings.getbool("DISTRIBUTED_SEEDS")
    target = _own_target(spider, settings, others)
    callbacks = set(others)
    for name in target.callbacks:
        callbacks.add(method_name(getattr(spider, name, None), spider) or name)
    return replace(target, callbacks=frozenset(callbacks), seeds=seeds)


def find_crawl_target(spider: Spider, settings: BaseSettings) -> Target:
    """Return the target of a crawl: all rules, where its pages lead on by rules.

    A callback is named for what becomes of its pages, and with `follow=True` that is links, too. A
    rule is named by its number for its pages alone.

    Raises:
        NoTarget: there is none.
        ConfigError: the settings name what there is not.
    """
    target = find_target(spider, settings)
    rules = _rules(spider)
    if target.follows or not rules:
        return target
    leading_on = set(target.unfollowed_rules(spider))
    leading_on.discard(SettingReader(settings).value("DISTRIBUTED_TARGET_RULE"))
    if not leading_on and not target.seeds:
        return target
    pages = f"pages of {target.how}" if leading_on else "start pages, which go there,"
    how = (
        f"all requests of the rules of {spider.name}, since {pages} lead on by rules: the workers"
        " follow them"
    )
    return replace(target, rules=frozenset(range(len(rules))), how=how, follows=True)


def find_links(spider: Spider, settings: BaseSettings) -> LinkTarget:
    """Return what this crawl's strategy gets as links.

    Raises:
        ConfigError: the settings name what there is not.
    """
    read = SettingReader(settings).value
    is_named = read("DISTRIBUTED_TARGET_RULE") >= 0 or read("DISTRIBUTED_TARGET_CALLBACKS")
    if not is_named and not settings.getbool("DISTRIBUTED_TARGET_BY_META"):
        return LinkTarget(every=True)
    named = find_target(spider, settings)
    return LinkTarget(named.rules, named.callbacks, named.how)


def _own_target(spider: Spider, settings: BaseSettings, others: frozenset[str]) -> Target:
    """Return the target without callbacks of other spiders, which are `others`."""
    number = SettingReader(settings).value("DISTRIBUTED_TARGET_RULE")
    callbacks = SettingReader(settings).value("DISTRIBUTED_TARGET_CALLBACKS")
    if number < 0 and not callbacks:
        return _unnamed_target(spider, settings, others)
    numbers = set[int]()
    if number >= 0:
        _check_rule(spider, number)
        numbers.add(number)
    rules = _rules(spider)
    for name in callbacks:
        if not callable(getattr(spider, name, None)):
            raise ConfigError(
                f"The spider {spider.name} has no method {name!r} to be the target callback."
                f"{_private_name(spider, name)}{callbacks_of(spider, name)}{_list_rules(spider)}"
            )
        numbers |= _numbers_with(name, rules)
    words = [f"rule {found}" for found in sorted(numbers)]
    words += [f"callback {name}" for name in callbacks]
    how = f"{' and '.join(words)} of {spider.name}"
    return Target(frozenset(numbers), frozenset(callbacks), how)


def _private_name(spider: Spider, name: str) -> str:
    """Say what Python calls a private method, if there is one of this name; else nothing."""
    for kind in type(spider).__mro__:
        private = f"_{kind.__name__.lstrip('_')}{name}"
        if name.startswith("__") and callable(getattr(spider, private, None)):
            return f" Python's name of this private method is {private}: type that."
    return ""


def _check_rule(spider: Spider, number: int) -> None:
    rules = _rules(spider)
    if number >= len(rules):
        known = _list_rules(spider) or callbacks_of(spider)
        raise ConfigError(f"The spider {spider.name} has no rule {number}.{known}")
    if not rules[number].callback:
        raise ConfigError(
            f"Rule {number} of the spider {spider.name} has no callback, so its pages give"
            f" nothing.{_list_rules(spider)}"
        )


def _numbers_with(callback: str, rules: list[Any]) -> set[int]:
    """Return the numbers of the rules with this callback."""
    return {number for number, rule in enumerate(rules) if _callback_name(rule) == callback}


def only_rule(spider: Spider | None) -> int | None:
    """Return the number of a CrawlSpider's only rule with a callback that does not follow.

    None if there is none, or more than one.
    """
    fitting = []
    for number, rule in enumerate(_rules(spider)):
        if rule.callback and not rule.follow:
            fitting.append(number)
    if len(fitting) != 1:
        return None
    return fitting[0]


def with_target(value: RequestValue, crawler: Crawler) -> RequestValue:
    """Give a bare URL (the book's form) what the project's own target settings name."""
    if "rule" in value or "callback" in value:
        return value
    settings = crawler.settings
    spider = crawler.spider
    if follows_strategy(settings) and has_parse(spider):
        return _with_pattern(value, spider)
    rule = settings.getint("DISTRIBUTED_TARGET_RULE", -1)
    if rule >= 0 and isinstance(spider, CrawlSpider):
        return {"rule": rule, **value}
    callbacks = settings.getlist("DISTRIBUTED_TARGET_CALLBACKS")
    if callbacks:
        return {"callback": callbacks[0], **value}
    only = only_rule(spider)
    if only is None:
        return value
    return {"rule": only, **value}


def has_parse(spider: Spider | None) -> bool:
    """Tell whether the spider has a callback for pages of no other: a strategy's seeds are such."""
    kind = type(spider)
    for name in ("parse", "_parse"):
        if getattr(kind, name, None) is not getattr(Spider, name, None):
            return True
    return False


def _with_pattern(value: RequestValue, spider: Spider | None) -> RequestValue:
    """Give a bare URL the first rule whose link extractor would have found it."""
    for number, rule in enumerate(_rules(spider)):
        extractor = rule.link_extractor
        if getattr(extractor, "allow_res", None) and extractor.matches(value["url"]):
            return {"rule": number, **value}
    return value


def _unnamed_target(spider: Spider, settings: BaseSettings, others: frozenset[str]) -> Target:
    """Return the only target that can be meant; `others` are callbacks of other spiders."""
    number = only_rule(spider)
    if number is not None:
        name = _callback_name(_rules(spider)[number])
        return Target(
            frozenset({number}),
            how=f"rule {number} of {spider.name} ({name}), its only rule that ends at a page",
        )
    if settings.getbool("DISTRIBUTED_TARGET_BY_META"):
        return Target(how=f"requests with meta {MARK!r}")
    if others:
        return Target(how=f"callbacks of other spiders ({', '.join(sorted(others))})")
    rules = _rules(spider)
    if _all_follow(rules):  # as genspider writes it
        how = (
            f"all requests of the rules of {spider.name}, each of which follows links:"
            " so do the workers"
        )
        return Target(frozenset(range(len(rules))), how=how, follows=True)
    if isinstance(spider, SitemapSpider):
        names = _sitemap_callbacks(spider)
        how = f"pages of the sitemaps of {spider.name} ({', '.join(sorted(names))})"
        return Target(callbacks=names, how=how)
    if settings.getbool("DISTRIBUTED_SEEDS"):
        return Target(how="start requests")
    raise NoTarget(_describe_missing_target(spider))


def _all_follow(rules: list[Any]) -> bool:
    """Tell whether all rules follow links, and any has a callback."""
    has_callback = False
    for rule in rules:
        if not rule.follow:
            return False
        if rule.callback:
            has_callback = True
    return has_callback


def _sitemap_callbacks(spider: SitemapSpider) -> frozenset[str]:
    names = set()
    for _, callback in spider.sitemap_rules:
        names.add(callback if isinstance(callback, str) else callback.__name__)
    return frozenset(names)


def _describe_missing_target(spider: Spider) -> str:
    likely = other_callbacks(spider)
    name = shlex.quote(spider.name)
    line = ""
    if likely:
        line = f" Type: sdist crawl {name} --callback {likely[0]}."
    elif has_parse(spider):
        line = (
            f" If its first pages are all that there is: sdist crawl {name} -s DISTRIBUTED_SEEDS=1."
        )
    return (
        f"Nothing says which requests of the spider {spider.name} go to the nodes.{line} They can"
        " be named by rule (--rule N, DISTRIBUTED_TARGET_RULE), by callback (--callback NAME,"
        " DISTRIBUTED_TARGET_CALLBACKS), or marked in the spider with"
        f" meta={{{MARK!r}: True}}, where DISTRIBUTED_TARGET_BY_META is set."
        f"{callbacks_of(spider)}{_list_rules(spider)}"
    )


def take_only_callback(spider: Spider, settings: BaseSettings) -> None:
    """Let the spider's only callback besides parse() be the target of a crawl that has none.

    That is for a crawl that was asked for.
    """
    try:
        find_target(spider, settings)
    except NoTarget:
        others = other_callbacks(spider)
        if len(others) == 1:
            # As if it had been given on the command line: workers get it, too.
            settings.set("DISTRIBUTED_TARGET_CALLBACKS", others, priority="cmdline")
            settings.set(GUESSED, True, priority="cmdline")
    except ConfigError:
        return  # it is refused, in words


def describe_target(target: Target, settings: BaseSettings) -> list[str]:
    """Return what to say at the start where more goes to the nodes than was named.

    A line, or nothing.
    """
    is_guessed = settings.getbool(GUESSED)
    if not is_guessed and not target.follows:
        return []
    is_named = settings.getlist("DISTRIBUTED_TARGET_CALLBACKS") or target.seeds
    why = "no target is named, so " if is_guessed or not is_named else ""
    only = ", its only one besides parse()" if is_guessed and not target.follows else ""
    return [f"{why}to the nodes go {target.how}{only}"]


def other_callbacks(spider: Spider) -> list[str]:
    """Return the names of the spider's callbacks, the likely ones first.

    Those of its first pages and its login are left out.
    """
    login = (getattr(spider, "settings", None) or {}).get("DISTRIBUTED_LOGIN")
    left_out = {"parse", "parse_start_url", login}
    names = [name for name in _callback_names(type(spider)) if name not in left_out]
    return sorted(names, key=lambda name: not name.startswith("parse"))


def _rules(spider: Spider | None) -> list[Any]:
    return list(spider.rules) if isinstance(spider, CrawlSpider) else []


def _callback_name(rule: Any) -> str:
    callback = rule.callback
    if isinstance(callback, str):
        return callback
    name: str = getattr(callback, "__name__", "")
    return name


def callbacks_of(spider: Spider | type[Spider], wanted: str = "") -> str:
    """Name the spider's callbacks in a sentence, and first the one that is most like `wanted`.

    The text begins with a space.
    """
    kind = spider if isinstance(spider, type) else type(spider)
    known = _callback_names(kind)
    if not known:
        return f" {kind.__name__} has no callback."
    return (
        f"{did_you_mean(wanted, known)} The callbacks of {kind.__name__} are: {', '.join(known)}."
    )


def _callback_names(kind: type[Spider]) -> list[str]:
    methods = inspect.getmembers(kind, callable)
    return sorted(name for name, method in methods if _is_callback(name, method))


def _is_callback(name: str, method: Any) -> bool:
    """Tell whether a method of a spider's class looks like one that takes a page.

    Scrapy's own methods do not count.
    """
    module = getattr(method, "__module__", "scrapy")
    if name.startswith("_") or module.partition(".")[0] == "scrapy":
        return False
    try:
        parameters = list(inspect.signature(method).parameters)[1:2]
    except (TypeError, ValueError):
        return False
    return parameters == ["response"] or (bool(parameters) and name.startswith("parse"))


def _list_rules(spider: Spider) -> str:
    """Name the spider's rules in a sentence that begins with a space; empty if there are none."""
    rules = _rules(spider)
    if not rules:
        return ""
    listed = []
    for number, rule in enumerate(rules):
        callback = _callback_name(rule) or "none"
        follows = "follows" if rule.follow else "does not follow"
        listed.append(f"rule {number}: callback {callback}, {follows}")
    return f" Its rules are: {'; '.join(listed)}."
