"""Which requests are for the fleet: by rule number, by callback name, or by request meta.

Part of the worker half (a worker asks who takes a bare URL): Scrapy and the standard library only.
"""

import difflib
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
from scrapyd_dist.payload import RequestValue
from scrapyd_dist.related_names import META, meta_answer
from scrapyd_dist.settings import SettingReader

from .assignment import follows_strategy
from .codec import DEFAULT_CALLBACK, method_name, rule_of

logger = logging.getLogger(__name__)
#: request meta that marks a target request whatever its callback: True, or the other spider that it is for
MARK = "distribute"
#: the setting that names callbacks of other spiders
SPIDER_CALLBACKS = "DISTRIBUTED_SPIDER_CALLBACKS"


#: the setting that says that no target was named, and that the spider's only other callback was taken
GUESSED = "SCRAPYD_DIST_GUESSED_TARGET"


class NoTarget(ConfigError):
    """Nothing says which requests of a spider go to the nodes."""


@dataclass(frozen=True)
class Target:
    """What makes a request a target request."""

    rules: frozenset[int] = frozenset()
    callbacks: frozenset[str] = frozenset()
    how: str = ""  #: how it was found, in words
    seeds: bool = False  #: start requests are for the fleet too
    follows: bool = False  #: what the spider's rules find on target pages is for the fleet too

    def methods(self, spider: Spider) -> frozenset[str]:
        """The names of the callbacks that get target pages, as far as they are known before the crawl."""
        rules = _rules(spider)
        return self.callbacks | {_callback_name(rules[number]) for number in self.rules}

    def takes(self, request: Request, spider: Spider, *, start: bool = False) -> bool:
        """Whether this request, or start request, is for the fleet."""
        if request.meta.get(MARK) or (start and self.seeds):
            return True
        if not META.keys().isdisjoint(request.meta):
            for key in META.keys() & request.meta.keys():
                _answer(key)
        rule = rule_of(request, spider)
        return (rule is not None and rule in self.rules) or callback_name(
            request, spider
        ) in self.callbacks


@dataclass(frozen=True)
class LinkTarget(Target):
    """What makes a request a link for a crawling strategy: a rule has made it, or the target takes it."""

    every: bool = False  #: no target is named: all requests of callbacks are links

    def takes(self, request: Request, spider: Spider, *, start: bool = False) -> bool:
        return (
            self.every
            or rule_of(request, spider) is not None
            or super().takes(request, spider, start=start)
        )


@cache
def _answer(key: str) -> None:
    """Warn once of a key in meta that marks requests in a related system."""
    logger.warning("%s", meta_answer(key))


def callback_name(request: Request, spider: Spider) -> str:
    """The name of what a request's page goes to; of a rule's request, the name of the rule's callback."""
    rule = rule_of(request, spider)
    if rule is not None:
        rules = _rules(spider)
        return _callback_name(rules[rule]) if 0 <= rule < len(rules) else ""
    if request.callback is None:
        return DEFAULT_CALLBACK
    return method_name(request.callback, spider) or getattr(request.callback, "__name__", "")


def find_target(spider: Spider, settings: BaseSettings) -> Target:
    """The target that the settings name, or the only one that can be meant.

    Raises:
        NoTarget: there is none.
        ConfigError: the settings name what there is not.
    """
    others, seeds = (
        frozenset(SettingReader(settings).value(SPIDER_CALLBACKS)),
        settings.getbool("DISTRIBUTED_SEEDS"),
    )
    target = _own_target(spider, settings, others)
    own = (method_name(getattr(spider, name, None), spider) or name for name in target.callbacks)
    return replace(target, callbacks=frozenset(own) | others, seeds=seeds)


def find_links(spider: Spider, settings: BaseSettings) -> LinkTarget:
    """What the strategy of this crawl is told of as links; ConfigError if the settings name what there is not."""
    read = SettingReader(settings).value
    is_named = read("DISTRIBUTED_TARGET_RULE") >= 0 or read("DISTRIBUTED_TARGET_CALLBACKS")
    if not is_named and not settings.getbool("DISTRIBUTED_TARGET_BY_META"):
        return LinkTarget(every=True)
    named = find_target(spider, settings)
    return LinkTarget(named.rules, named.callbacks, named.how)


def _own_target(spider: Spider, settings: BaseSettings, others: frozenset[str]) -> Target:
    """The target without callbacks of other spiders, which are `others`."""
    rule = SettingReader(settings).value("DISTRIBUTED_TARGET_RULE")
    callbacks = SettingReader(settings).value("DISTRIBUTED_TARGET_CALLBACKS")
    if rule < 0 and not callbacks:
        return _plain_target(spider, settings, others)
    known = _rules(spider)
    if rule >= len(known):
        raise ConfigError(
            f"The spider {spider.name} has no rule {rule}.{_known(spider) or callbacks_of(spider)}"
        )
    if rule >= 0 and not known[rule].callback:
        raise ConfigError(
            f"Rule {rule} of the spider {spider.name} has no callback, so its pages give nothing.{_known(spider)}"
        )
    rules = {rule} if rule >= 0 else set[int]()
    for name in callbacks:
        if not callable(getattr(spider, name, None)):
            raise ConfigError(
                f"The spider {spider.name} has no method {name!r} to be the target callback."
                f"{callbacks_of(spider, name)}{_known(spider)}"
            )
        rules |= {number for number, one in enumerate(known) if _callback_name(one) == name}
    named = [f"rule {number}" for number in sorted(rules)] + [
        f"callback {name}" for name in callbacks
    ]
    return Target(frozenset(rules), frozenset(callbacks), f"{' and '.join(named)} of {spider.name}")


def only_rule(spider: Spider | None) -> int | None:
    """The number of a CrawlSpider's only rule with a callback that does not follow, if there is just one."""
    fitting = [
        number for number, rule in enumerate(_rules(spider)) if rule.callback and not rule.follow
    ]
    return fitting[0] if len(fitting) == 1 else None


def with_target(value: RequestValue, crawler: Crawler) -> RequestValue:
    """A bare URL (the book's form) is taken by the project's own target settings."""
    if "rule" in value or "callback" in value:
        return value
    settings, spider = crawler.settings, crawler.spider
    if follows_strategy(settings) and has_parse(spider):
        return _with_pattern(value, spider)
    rule = settings.getint("DISTRIBUTED_TARGET_RULE", -1)
    if rule >= 0 and isinstance(spider, CrawlSpider):
        return {"rule": rule, **value}
    if callbacks := settings.getlist("DISTRIBUTED_TARGET_CALLBACKS"):
        return {"callback": callbacks[0], **value}
    only = only_rule(spider)
    return value if only is None else {"rule": only, **value}


def has_parse(spider: Spider | None) -> bool:
    """Whether the spider has a callback for pages of no other: seeds of a strategy are such."""
    kind = type(spider)
    own = (
        getattr(kind, name, None) is not getattr(Spider, name, None) for name in ("parse", "_parse")
    )
    return any(own)


def _with_pattern(value: RequestValue, spider: Spider | None) -> RequestValue:
    """A bare URL with the first rule whose link extractor names URLs like it: that would have found it."""
    for number, rule in enumerate(_rules(spider)):
        extractor = rule.link_extractor
        if getattr(extractor, "allow_res", None) and extractor.matches(value["url"]):
            return {"rule": number, **value}
    return value


def _plain_target(spider: Spider, settings: BaseSettings, others: frozenset[str]) -> Target:
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
    if any(rule.callback for rule in rules) and all(
        rule.follow for rule in rules
    ):  # as genspider writes it
        how = f"all requests of the rules of {spider.name}, each of which follows links: so do the workers"
        return Target(frozenset(range(len(rules))), how=how, follows=True)
    if isinstance(spider, SitemapSpider):
        names = frozenset(
            one if isinstance(one, str) else one.__name__ for _, one in spider.sitemap_rules
        )
        return Target(
            callbacks=names,
            how=f"pages of the sitemaps of {spider.name} ({', '.join(sorted(names))})",
        )
    if settings.getbool("DISTRIBUTED_SEEDS"):
        return Target(how="start requests")
    likely = other_callbacks(spider)
    line = (
        f" Type: sdist crawl {shlex.quote(spider.name)} --callback {likely[0]}." if likely else ""
    )
    if not likely and has_parse(spider):
        line = f" If its first pages are all that there is: sdist crawl {shlex.quote(spider.name)} -s DISTRIBUTED_SEEDS=1."
    raise NoTarget(
        f"Nothing says which requests of the spider {spider.name} go to the nodes.{line} They can be named by rule"
        " (--rule N, DISTRIBUTED_TARGET_RULE), by callback (--callback NAME, DISTRIBUTED_TARGET_CALLBACKS), or marked"
        f" in the spider with meta={{{MARK!r}: True}}, where DISTRIBUTED_TARGET_BY_META is set."
        f"{callbacks_of(spider)}{_known(spider)}"
    )


def take_only_callback(spider: Spider, settings: BaseSettings) -> None:
    """Let the spider's only callback besides parse() be the target of a crawl that was asked for, and has none."""
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


def guesses(target: Target, settings: BaseSettings) -> list[str]:
    """What to say at the start where no target was named."""
    how = f"{target.how}, its only one besides parse()" if settings.getbool(GUESSED) else target.how
    guessed = target.follows or settings.getbool(GUESSED)
    return [f"no target is named, so to the nodes go {how}"] if guessed else []


def other_callbacks(spider: Spider) -> list[str]:
    """The names of the spider's callbacks besides those of its first pages and its login; likely ones first."""
    login = (getattr(spider, "settings", None) or {}).get("DISTRIBUTED_LOGIN")
    names = [
        name
        for name in _callback_names(type(spider))
        if name not in {"parse", "parse_start_url", login}
    ]
    return sorted(names, key=lambda name: not name.startswith("parse"))


def _rules(spider: Spider | None) -> list[Any]:
    return list(spider.rules) if isinstance(spider, CrawlSpider) else []


def _callback_name(rule: Any) -> str:
    return (
        rule.callback if isinstance(rule.callback, str) else getattr(rule.callback, "__name__", "")
    )


def callbacks_of(spider: Spider | type[Spider], wanted: str = "") -> str:
    """A sentence that names the spider's callbacks, and first the one that is most like `wanted`."""
    kind = spider if isinstance(spider, type) else type(spider)
    known = _callback_names(kind)
    if not known:
        return f" {kind.__name__} has no callback."
    near = difflib.get_close_matches(wanted, known, 1)
    listed = ", ".join(known)
    return f"{f' Did you mean {near[0]}?' if near else ''} The callbacks of {kind.__name__} are: {listed}."


def _callback_names(kind: type[Spider]) -> list[str]:
    return sorted(
        name for name, method in inspect.getmembers(kind, callable) if _is_callback(name, method)
    )


def _is_callback(name: str, method: Any) -> bool:
    """Whether a method of a spider's class looks like one that takes a page, and is not Scrapy's own."""
    if (
        name.startswith("_")
        or getattr(method, "__module__", "scrapy").partition(".")[0] == "scrapy"
    ):
        return False
    try:
        parameters = list(inspect.signature(method).parameters)[1:2]
    except (TypeError, ValueError):
        return False
    return parameters == ["response"] or (bool(parameters) and name.startswith("parse"))


def _known(spider: Spider) -> str:
    rules = _rules(spider)
    if not rules:
        return ""
    listed = (
        f"rule {number}: callback {_callback_name(rule) or 'none'}, {'follows' if rule.follow else 'does not follow'}"
        for number, rule in enumerate(rules)
    )
    return f" Its rules are: {'; '.join(listed)}."
