"""Decides where a found request goes, and what makes it known again.

It goes into the slots that the settings name, or to another spider.
Part of the worker half: imports Scrapy and the standard library only.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scrapy import Request
from scrapy.settings import BaseSettings

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import OTHER_SPIDER
from scrapyd_dist.frontier.slots import SITE, WAYS, SlotRule, slot_of_spider, spider_of_slot
from scrapyd_dist.settings import SettingReader

from .assignment import follows_strategy
from .codec import FINGERPRINT, NUMBER, PREFIX, CannotTravel
from .engine_compat import spider_loader
from .targets import MARK, SPIDER_CALLBACKS

#: what may stand beside each other in meta["distribute"]
ADDRESS = frozenset({"spider", "project", "callback"})


class Undeliverable(CannotTravel):
    """No spider can take this request for another one; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Addressee:
    """Names another spider that a request is for."""

    spider: str
    project: str = ""  #: "" for the sender's own
    #: the name of its method; None: the name that the sender's callback has
    callback: str | None = None

    @classmethod
    def named_by(cls, request: Request) -> Addressee | None:
        """Return the one that the request's own meta names; None if it names none.

        Raises:
            Undeliverable: what it names is no spider's address.
        """
        address = request.meta.get(MARK)
        if not address or address is True:
            return None
        return cls.read(address)

    @classmethod
    def read(cls, address: Any) -> Addressee:
        """Read `"login"` or `{"spider": "login", "project": …, "callback": …}`.

        Raises:
            Undeliverable: it is neither.
        """
        fields = {"spider": address} if isinstance(address, str) else address
        if not _has_texts_only(fields):
            raise Undeliverable(
                f"its address {address!r} is no spider's: give a name, or spider, project and"
                " callback"
            )
        if not fields.get("spider") or fields.keys() - ADDRESS:
            raise Undeliverable(
                f"its address {dict(fields)!r} needs a spider, and may have project and callback"
            )
        return cls(**fields)


def _has_texts_only(fields: Any) -> bool:
    """Tell whether this is a mapping whose values are texts."""
    if not isinstance(fields, Mapping):
        return False
    return all(isinstance(text, str) for text in fields.values())


@dataclass(frozen=True, kw_only=True)
class SlotRouting:
    """Chooses the slots of the requests of one process."""

    usual: SlotRule = field(default_factory=SlotRule)
    #: callback's name -> its own slots
    callbacks: Mapping[str, SlotRule] = field(default_factory=dict)
    #: callback's name -> the spider that has it
    spiders: Mapping[str, Addressee] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()  #: of the spider, which travel with each request
    project: str = ""  #: whose the ordinary slots of the frontier are; "" where that is not known
    spider: str = ""  #: the same
    own: str = ""  #: the slot that a worker for another spider works on: what it finds goes there
    known: SpiderAddresses | None = None  #: the project's spiders; None where none is checked

    @classmethod
    def from_settings(cls, settings: BaseSettings, **more: str) -> SlotRouting:
        """Return the slots that the settings name, with `more` fields.

        Raises:
            ConfigError: a value is not of its kind.
        """
        read = SettingReader(settings).value
        is_by_site = settings.get("DISTRIBUTED_FAIR") or follows_strategy(settings)
        by = str(settings.get("DISTRIBUTED_SLOT_BY") or (SITE if is_by_site else WAYS[0]))
        prefix = read("DISTRIBUTED_SLOT_PREFIX")
        number = read("DISTRIBUTED_SLOTS")
        usual = SlotRule(prefix=prefix, number=number, by=by)
        callbacks = {}
        for name, text in read("DISTRIBUTED_CALLBACK_SLOTS").items():
            callbacks[name] = SlotRule.parse(str(text), by=by)
        spiders = {}
        for name, address in read(SPIDER_CALLBACKS).items():
            spiders[name] = _read_addressee(name, address)
        return cls(
            usual=usual,
            callbacks=callbacks,
            spiders=spiders,
            attributes=read("DISTRIBUTED_SPIDER_ATTRIBUTES"),
            known=SpiderAddresses(settings),
            **more,
        )

    def addressee(self, request: Request, callback: str) -> Addressee | None:
        """Return the other spider that a request with a callback of this name is for.

        Raises:
            Undeliverable: there is none such.
        """
        to = Addressee.named_by(request) or self.spiders.get(callback)
        if to is None:
            return None
        return self._resolve(to)

    def _resolve(self, to: Addressee) -> Addressee | None:
        """Return it with its project's name where that is another one.

        None for the frontier's own spider in its own slots.
        """
        worked_for, _ = spider_of_slot(self.own)
        project = to.project or worked_for
        if project == self.project:
            project = ""
        if project == worked_for:
            self._check_known(to.spider)
        if not project and to.spider == self.spider and not self.own:
            return None
        return Addressee(spider=to.spider, project=project, callback=to.callback)

    def _check_known(self, spider: str) -> None:
        if self.known is None:
            return
        if spider not in self.known:
            raise Undeliverable(
                f"there is no spider {spider!r} in this project; there are: {self.known}"
            )
        if self.known.hides_us(spider):
            raise Undeliverable(
                f"the custom_settings of the spider {spider} set ADDONS, which hides the add-on"
                ' that its workers need: add "scrapyd_dist.Addon": 500 to it there'
            )

    def slot(
        self, request: Request, callback: str, to: Addressee | None, fingerprint: bytes
    ) -> str:
        """Return the slot of a request with a callback of this name.

        Raises:
            CannotTravel: its meta asks for impossible slots.
        """
        try:
            if to is None:
                return self.own or self._frontier_slot(request, callback, fingerprint)
            if to.project or to.spider != self.spider:
                return slot_of_spider(to.spider, to.project)
            return self._frontier_slot(request, callback, fingerprint)
        except ConfigError as error:
            raise CannotTravel(str(error).rstrip(".")) from error

    def _frontier_slot(self, request: Request, callback: str, fingerprint: bytes) -> str:
        """Return the slot of a request for the frontier's own spider."""
        slots = self.callbacks.get(callback, self.usual)
        prefix = request.meta.get(PREFIX, slots.prefix)
        number = request.meta.get(NUMBER, slots.number)
        if not isinstance(prefix, str) or type(number) is not int:
            raise ConfigError(
                f"its meta {PREFIX} is {prefix!r} and {NUMBER} {number!r}: a text and a number."
            )
        if (prefix, number) != (slots.prefix, slots.number):
            slots = SlotRule(prefix=prefix, number=number, by=self.usual.by)
        return slots.slot_for(request.url, fingerprint)


class SlotPlacement:
    """Gives each request its slot and its fingerprint."""

    def __init__(
        self,
        fingerprint: Callable[[Request], bytes],
        slotting: SlotRouting | None,
        *,
        salt: str | None = "",
    ) -> None:
        """Place requests by Scrapy's fingerprint; `slotting` and `salt` as in a `FrontierFeed`."""
        self._fingerprint = fingerprint
        self._slotting = slotting
        self._salt = salt
        self._times: Counter[tuple[bytes, int]] = Counter()  #: of requests with dont_filter

    def place(
        self,
        request: Request,
        callback: str,
        to: Addressee | None,
        where: int = 0,
        *,
        is_new: bool = False,
    ) -> tuple[str, bytes]:
        """Return slot and fingerprint.

        A request with dont_filter has a fingerprint of its own each time that it is found.

        Args:
            request: the one to be placed.
            callback: the name of its callback.
            to: the other spider that it is for; None for the own one.
            where: the shard that it was found in.
            is_new: a filter of the project's own has said so, whatever the fingerprint.

        Raises:
            CannotTravel: its meta asks for what cannot be.
        """
        own = request.meta.get(FINGERPRINT)
        if own is not None and not isinstance(own, str):
            raise CannotTravel(
                f"its meta {FINGERPRINT} is of the type {type(own).__name__}, and must be a str"
            )
        known = _hash(own) if own is not None else self._fingerprint(request)
        slot = ""
        if self._slotting is not None:
            slot = self._slotting.slot(request, callback, to, known)
        if slot.startswith(OTHER_SPIDER):  # two spiders may both want a page
            known = _hash(slot, known)
        if not (request.dont_filter or is_new) or self._salt is None:
            return slot, known
        # It is wanted every time that it is found. The number of that time makes it known all the
        # same when a shard is walked again.
        self._times[known, where] += 1
        return slot, _hash(f"{self._salt}{where}:{self._times[known, where]}", known)


def _hash(text: str, before: bytes = b"") -> bytes:
    # As long as Scrapy's fingerprint.
    return hashlib.sha1(before + text.encode()).digest()  # noqa: S324 - nothing secret


def hides_addon(custom_settings: Mapping[str, Any]) -> bool:
    """Tell whether a spider's own settings replace the add-ons, and do not name ours."""
    addons = custom_settings.get("ADDONS")
    return addons is not None and "scrapyd_dist" not in str(addons)


class SpiderAddresses:
    """Knows the names of the project's spiders, and looks them up when they are needed."""

    def __init__(self, settings: BaseSettings) -> None:
        self._settings = settings

    @cached_property
    def _loader(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the crawl itself has loaded them, and warned
            return spider_loader(self._settings)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._loader.list())

    def __contains__(self, spider: str) -> bool:
        """Tell whether there is one of that name.

        A script without a project cannot know, and says yes.
        """
        return spider in self._names or not self._settings.getlist("SPIDER_MODULES")

    def hides_us(self, spider: str) -> bool:
        """Tell whether a worker of it would not know that it is one.

        It would then enter the spider's own start.
        """
        if spider not in self._names:
            return False
        return hides_addon(self._loader.load(spider).custom_settings or {})

    def __str__(self) -> str:
        return ", ".join(sorted(self._names))


def _read_addressee(callback: str, address: Any) -> Addressee:
    try:
        return Addressee.read(address)
    except Undeliverable as error:
        raise ConfigError(f"{SPIDER_CALLBACKS} for {callback!r}: {error}.") from None
