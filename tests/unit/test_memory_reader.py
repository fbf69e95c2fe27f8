"""What code remembers in objects, closures, defaults and generators, and what it holds back, by its source."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapyd_dist.middlewares.producer.difference_finder import find_differences, kept_by_callbacks

NAME = "remembering_project"
REMEMBERED = "what code remembers"
ATTRIBUTES = "attributes that target callbacks set"
HELD_BACK = "what code holds back"

HELPERS = """
    import functools
    import itertools
    from collections import deque
    from dataclasses import dataclass, field
    from functools import cache, cached_property, lru_cache
    from types import SimpleNamespace

    from scrapy import Spider


    class Quota:
        def __init__(self, most=16):
            self.most, self.used = most, {}

        def allow(self, key):
            n = self.used[key] = self.used.get(key, 0) + 1
            return n <= self.most


    class Bloom:
        def __init__(self):
            self.bits = 0

        def fresh(self, key):
            new = not self.bits & 1 << key
            self.bits |= 1 << key
            return new


    class Unique(set):
        def is_first(self, key):
            if key in self:
                return False
            self.add(key)
            return True


    @dataclass
    class Seen:
        known: set = field(default_factory=set)

        def __contains__(self, key):
            return key in self.known

        def remember(self, key):
            self.known.add(key)


    class Outer:
        def __init__(self):
            self.quota = Quota()

        def __call__(self, key):
            return self.quota.allow(key)


    class Latest:
        last = ""

        def is_later(self, time):
            found = time > self.last
            self.last = time
            return found


    class Numbers:
        n = 0

        @classmethod
        def make(cls):
            cls.n += 1
            return cls.n


    class Chunks:
        def __init__(self):
            self.rows = []

        def add(self, row):
            self.rows.append(row)
            if len(self.rows) < 10:
                return []
            full = self.rows
            self.rows = []
            return full


    class Metrics:
        def __init__(self):
            self.times = {}

        def hit(self, key):
            self.times[key] = self.times.get(key, 0) + 1


    class Database:
        def __init__(self, url):
            self.url = url
            self.connection = None
            self.rows = []

        def save(self, row):
            self.rows.append(row)
            if len(self.rows) > 100:
                self.flush()

        def flush(self):
            try:
                self.reach().write(self.rows)
            except OSError:
                self.connection = reach(self.url)
            self.rows = []

        def reach(self):
            if self.connection is None:
                self.connection = reach(self.url)
            return self.connection


    def numbers():
        n = 0
        while True:
            n += 1
            yield n


    def make_check():
        seen = set()

        def check(key):
            if key in seen:
                return False
            seen.add(key)
            return True

        return check


    def at_most(number):
        left = number

        def decorate(callback):
            @functools.wraps(callback)
            def call(self, response):
                nonlocal left
                left -= 1
                if left > 0:
                    yield from callback(self, response)

            return call

        return decorate


    def timed(label):
        options = {"label": label}
        calls = []

        def decorate(callback):
            @functools.wraps(callback)
            def call(self, response):
                calls.append(1)
                for item in callback(self, response):
                    yield {**item, **options}

            return call

        return decorate


    def number_of(key, known={}):
        return known.setdefault(key, len(known))


    def with_more(item, more={}):
        merged = dict(more)
        merged["item"] = item
        return merged


    def next_id():
        next_id.n = getattr(next_id, "n", 0) + 1
        return next_id.n


    @lru_cache
    def get_seen():
        return set()


    @cache
    def get_quota():
        return Quota()


    @dataclass
    class Thing:
        url: str
        tags: list = field(default_factory=list)
        id: int = field(default_factory=lambda: next(ids))

        def add(self, tag):
            self.tags.append(tag)
            return len(self.tags)


    class Row(dict):
        def __init__(self, url):
            self["url"] = url
            self["again"] = self["url"]


    bloom = Bloom()
    is_first = make_check()
    take = numbers().__next__
    ids = itertools.count(1)
    rows = []
    latest = Latest()
    LIMITS = {"a": 1}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Any]:
    """Make a module of the helpers and of what else is given."""
    folder = tmp_path / "project"
    folder.mkdir()

    def load(source: str) -> ModuleType:
        file = folder / f"{NAME}.py"
        file.write_text(dedent(HELPERS) + "\n\n" + dedent(source), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(NAME, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[NAME] = module
        spec.loader.exec_module(module)
        return module

    yield load
    del sys.modules[NAME]


def component(body: str, hook: str = "process_spider_output(self, response, result)") -> str:
    """A component: what is before the line of dashes makes it, the rest is its hook."""
    making, _, work = dedent(body).rpartition("---\n")
    lines = ["class Component:", *(f"    {line}" for line in making.splitlines())]
    return "\n".join(
        [*lines, f"    def {hook}:", *(f"        {line}" for line in work.splitlines())]
    )


def callback(body: str, before: str = "", arguments: str = "self, response") -> str:
    """A spider with this target callback."""
    lines = [f"    {line}" for line in dedent(before).splitlines()]
    work = [f"        {line}" for line in dedent(body).splitlines()]
    return "\n".join(["class Own(Spider):", *lines, f"    def parse_item({arguments}):", *work])


IN_INIT = "def __init__(self): self.helper = {}\n"
FILTER = """\
---
for output in result:
    if self.helper.allow(output):
        yield output
"""
COMPONENTS = {
    "object": (IN_INIT.format("Quota(16)") + FILTER, "helper"),
    "or-default": (IN_INIT.format("None or Quota()") + FILTER, "helper"),
    "class-attribute": ("helper = Quota()\n" + FILTER, "helper"),
    "annotation": ("def __init__(self, given: Quota): self.helper = given\n" + FILTER, "helper"),
    "given-by-from-crawler": (
        "def __init__(self, given): self.helper = given\n"
        "@classmethod\n"
        "def from_crawler(cls, crawler): return cls(Quota(3))\n" + FILTER,
        "helper",
    ),
    "set-by-from-crawler": (
        "@classmethod\n"
        "def from_crawler(cls, crawler):\n"
        "    component = cls()\n"
        "    component.helper = Quota()\n"
        "    return component\n" + FILTER,
        "helper",
    ),
    "variable": (
        IN_INIT.format("Quota()")
        + "---\nhelper = self.helper\nreturn filter(helper.allow, result)\n",
        "helper",
    ),
    "passed-on": (
        IN_INIT.format("Outer()") + "---\nreturn filter(self.helper, result)\n",
        "helper",
    ),
    "called": (
        IN_INIT.format("Outer()") + "---\nreturn [one for one in result if self.helper(one)]\n",
        "helper",
    ),
    "searched": (
        IN_INIT.format("Seen()") + "---\n"
        "for one in result:\n    if one not in self.helper:\n        self.helper.remember(one)\n"
        "        yield one\n",
        "helper",
    ),
    "made-from-a-set": (
        IN_INIT.format("Unique()") + "---\nreturn filter(self.helper.is_first, result)\n",
        "helper",
    ),
    "another-library": (
        IN_INIT.format("BloomFilter(10)") + "---\n"
        "for one in result:\n    if one not in self.helper:\n        self.helper.add(one)\n"
        "        yield one\n",
        "helper",
    ),
    "namespace": (
        IN_INIT.format("SimpleNamespace(n=0)") + "---\nself.helper.n += 1\nyield self.helper.n\n",
        "helper.n",
    ),
    "own-class": (
        "n = 0\n---\ntype(self).n = type(self).n + 1\nyield Component.n\n",
        "n",
    ),
    "cached-property": (
        (
            "@cached_property\ndef helper(self): return set()\n---\n"
            "for one in result:\n    if one not in self.helper:\n        self.helper.add(one)\n"
            "        yield one\n"
        ),
        "helper",
    ),
    "counts-only": (IN_INIT.format("Metrics()") + "---\nself.helper.hit(1)\nreturn result\n", None),
    "database": (
        IN_INIT.format("Database('x')") + "---\n"
        "for one in result:\n    self.helper.save(one)\n    yield one\n",
        None,
    ),
}


def rows_of(kind: type, setting: str = "SPIDER_MIDDLEWARES") -> dict[str, list[str]]:
    """The rows about what a component does, by name."""
    found = find_differences(Settings({setting: {kind: 500}}), Spider)
    rows = {row.difference.name: list(row.found) for row in found}
    return {name: rows[name] for name in (REMEMBERED, HELD_BACK) if name in rows}


@pytest.mark.parametrize("name", COMPONENTS)
def test_what_objects_of_a_component_remember_is_named(project: Any, name: str) -> None:
    body, found = COMPONENTS[name]
    rows = rows_of(project(component(body)).Component)
    assert rows == ({REMEMBERED: [f"Component.{found}"]} if found else {})


IF_TRUE = "if {}:\n    yield response\n"
CALLBACKS = {
    "object-of-module": (callback(IF_TRUE.format("bloom.fresh(1)")), {REMEMBERED: ["bloom"]}),
    "value-learned": (callback(IF_TRUE.format("latest.is_later(1)")), {REMEMBERED: ["latest"]}),
    "object-of-spider": (
        callback(IF_TRUE.format("self.quota.allow(1)"), "quota = Quota()"),
        {ATTRIBUTES: ["quota"]},
    ),
    "class-method": (callback("yield Numbers.make()"), {REMEMBERED: ["Numbers"]}),
    "count-of-spider": (
        callback("yield next(self.ids)", "ids = itertools.count(1)"),
        {ATTRIBUTES: ["ids"]},
    ),
    "next-of-spider": (
        callback("yield self.ids()", "ids = itertools.count(1).__next__"),
        {ATTRIBUTES: ["ids"]},
    ),
    "generator-of-spider": (
        callback("yield next(self.ids)", "def __init__(self): self.ids = numbers()"),
        {ATTRIBUTES: ["ids"]},
    ),
    "dict-of-spider": (
        callback("yield vars(self).setdefault('known', {})"),
        {ATTRIBUTES: ["__dict__"]},
    ),
    "next-of-module": (callback("yield take()"), {REMEMBERED: ["take"]}),
    "attribute-of-function": (callback("yield next_id()"), {REMEMBERED: ["next_id.n"]}),
    "default": (
        callback(
            "if response not in seen:\n    seen.add(response)\n    yield response",
            arguments="self, response, seen=set()",
        ),
        {REMEMBERED: ["seen"]},
    ),
    "default-of-function": (callback("yield number_of(response)"), {REMEMBERED: ["known"]}),
    "closure": (callback(IF_TRUE.format("is_first(response)")), {REMEMBERED: ["seen"]}),
    "decorator": (callback("yield response", "@at_most(3)"), {REMEMBERED: ["left"]}),
    "cached-container": (
        callback("s = get_seen()\nif response not in s:\n    s.add(response)\n    yield response"),
        {REMEMBERED: ["get_seen"]},
    ),
    "cached-object": (
        callback("quota = get_quota()\n" + IF_TRUE.format("quota.allow(1)")),
        {REMEMBERED: ["get_quota()"]},
    ),
    "field-of-item": (callback("yield Thing(response.url)"), {REMEMBERED: ["ids"]}),
    "item-with-methods": (
        callback("row = Row(1)\nrow['a'] = row['url']\nrow.update(a=1)\nyield row"),
        {},
    ),
    "decorator-that-reports": (callback("yield {}", "@timed('a')"), {}),
    "default-that-stays": (
        callback("yield with_more(extra | LIMITS)", arguments="self, response, extra={}"),
        {},
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_target_callbacks_remember_outside_of_attributes_is_named(
    project: Any, name: str
) -> None:
    source, rows = CALLBACKS[name]
    found = kept_by_callbacks(project(source).Own, ["parse_item"])
    assert {row.difference.name: list(row.found) for row in found} == rows


WAIT = "def __init__(self): self.wait = []\n---\n"
BUFFERS = {
    "all-at-once": (
        WAIT + "for one in result:\n    self.wait.append(one['url'])\n"
        "    if len(self.wait) == 4:\n        yield {'urls': sorted(self.wait)}\n"
        "        self.wait = []\n",
        "wait",
    ),
    "one-by-one": (
        WAIT + "for one in result:\n    self.wait.append(one)\n"
        "    if len(self.wait) == 15:\n        for item in self.wait:\n"
        "            yield {**item, 'looked': 1}\n        self.wait.clear()\n",
        "wait",
    ),
    "in-order": (
        (
            "def __init__(self): self.wait = deque()\n---\n"
            "for one in result:\n    self.wait.append(one)\n    while len(self.wait) > 10:\n"
            "        yield self.wait.popleft()\n"
        ),
        "wait",
    ),
    "in-another-method": (
        (
            "def __init__(self): self.wait = []\n"
            "def flush(self):\n    full, self.wait = self.wait, []\n    yield from full\n---\n"
            "for one in result:\n    self.wait.append(one)\n    yield from self.flush()\n"
        ),
        "wait",
    ),
    "in-an-object": (
        (
            "def __init__(self): self.wait = Chunks()\n---\n"
            "for one in result:\n    yield from self.wait.add(one)\n"
        ),
        "wait",
    ),
    "written-elsewhere": (
        (
            "def __init__(self, database):\n    self.database = database\n    self.wait = []\n---\n"
            "for one in result:\n    self.wait.append(one)\n    if len(self.wait) > 10:\n"
            "        self.database.insert(self.wait)\n        self.wait = []\n    yield one\n"
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_what_a_spider_middleware_holds_back_is_named(project: Any, name: str) -> None:
    body, found = BUFFERS[name]
    rows = rows_of(project(component(body)).Component)
    assert rows == ({HELD_BACK: [f"Component.{found}"]} if found else {})


def test_a_pipeline_that_gathers_items_holds_nothing_back(project: Any) -> None:
    body = (
        WAIT + "self.wait.append(item)\nif len(self.wait) > 5:\n    self.wait = []\nreturn item\n"
    )
    kind = project(component(body, "process_item(self, item)")).Component
    assert rows_of(kind, "ITEM_PIPELINES") == {}


HELD = {
    "module": (
        "rows.append(response)\nif len(rows) > 9:\n    yield list(rows)\n    rows.clear()",
        "rows",
    ),
    "partner": (
        (
            "other = self.half.pop(response.key, None)\nif other:\n    yield {**other}\n"
            "else:\n    self.half[response.key] = {}"
        ),
        "half",
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_what_target_callbacks_hold_back_is_named_once(project: Any, name: str) -> None:
    body, found = HELD[name]
    rows = kept_by_callbacks(project(callback(body, "half = {}")).Own, ["parse_item"])
    assert {row.difference.name: list(row.found) for row in rows} == {HELD_BACK: [found]}
