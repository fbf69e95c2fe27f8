"""Where a found request goes, into the slots that the settings name or to another spider; what makes it known again.

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
from scrapy.utils.misc import load_object

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.frontier.backlog import OTHER_SPIDER
from scrapyd_dist.frontier.slots import SITE, WAYS, SlotRule, slot_of_spider, spider_of_slot
from scrapyd_dist.settings import SettingReader

from .assignment import follows_strategy
from .codec import FINGERPRINT, NUMBER, PREFIX, CannotTravel
from .targets import MARK, SPIDER_CALLBACKS

#: what may stand beside each other in meta["distribute"]
ADDRESS = frozenset({"spider", "project", "callback"})


class Undeliverable(CannotTravel):
    """A request for another spider that none can take; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Addressee:
    """Another spider that a request is for."""

    spider: str
    project: str = ""  #: "" for the sender's own
    callback: str | None = (
        None  #: the name of its method; None: the name that the sender's callback has
    )

    @classmethod
    def of(cls, request: Request) -> Addressee | None:
        """The one that the request's own meta names; Undeliverable as in `read`."""
        said = request.meta.get(MARK)
        return cls.read(said) if said and said is not True else None

    @classmethod
    def read(cls, said: Any) -> Addressee:
        """From `"login"` or `{"spider": "login", "project": …, "callback": …}`; Undeliverable if it is neither."""
        fields = {"spider": said} if isinstance(said, str) else said
        if not isinstance(fields, Mapping) or not all(
            isinstance(text, str) for text in fields.values()
        ):
            raise Undeliverable(
                f"its address {said!r} is no spider's: give a name, or spider, project and callback"
            )
        if not fields.get("spider") or fields.keys() - ADDRESS:
            raise Undeliverable(
                f"its address {dict(fields)!r} needs a spider, and may have project and callback"
            )
        return cls(**fields)


@dataclass(frozen=True, kw_only=True)
class SlotRouting:
    """The slots of one process."""

    usual: SlotRule = field(default_factory=SlotRule)
    callbacks: Mapping[str, SlotRule] = field(
        default_factory=dict
    )  #: callback's name -> its own slots
    spiders: Mapping[str, Addressee] = field(
        default_factory=dict
    )  #: callback's name -> the spider that has it
    attributes: tuple[str, ...] = ()  #: of the spider, which travel with each request
    project: str = ""  #: whose the ordinary slots of the frontier are; "" where that is not known
    spider: str = ""  #: the same
    own: str = ""  #: the slot that a worker for another spider works on: what it finds goes there
    known: SpiderAddresses | None = None

    @classmethod
    def from_settings(cls, settings: BaseSettings, **more: str) -> SlotRouting:
        """The slots that the settings name, with `more` fields; ConfigError if a value is not of its kind."""
        read = SettingReader(settings).value
        by_site = settings.get("DISTRIBUTED_FAIR") or follows_strategy(settings)
        by = str(settings.get("DISTRIBUTED_SLOT_BY") or (SITE if by_site else WAYS[0]))
        return cls(
            usual=SlotRule(
                prefix=read("DISTRIBUTED_SLOT_PREFIX"), number=read("DISTRIBUTED_SLOTS"), by=by
            ),
            callbacks={
                name: SlotRule.parse(str(text), by=by)
                for name, text in read("DISTRIBUTED_CALLBACK_SLOTS").items()
            },
            spiders={name: _addressee(name, said) for name, said in read(SPIDER_CALLBACKS).items()},
            attributes=read("DISTRIBUTED_SPIDER_ATTRIBUTES"),
            known=SpiderAddresses(settings),
            **more,
        )

    def addressee(self, request: Request, callback: str) -> Addressee | None:
        """The other spider that a request with a callback of this name is for; Undeliverable if there is none such."""
        to = Addressee.of(request) or self.spiders.get(callback)
        return None if to is None else self._checked(to)

    def _checked(self, to: Addressee) -> Addressee | None:
        """With its project's name where that is another one; None for the frontier's own spider in its own slots."""
        of_own = spider_of_slot(self.own)
        project = to.project or of_own[0]
        project = "" if project == self.project else project
        if project == of_own[0] and self.known is not None and to.spider not in self.known:
            raise Undeliverable(
                f"there is no spider {to.spider!r} in this project; there are: {self.known}"
            )
        if project == of_own[0] and self.known is not None and self.known.hides_us(to.spider):
            raise Undeliverable(
                f"the custom_settings of the spider {to.spider} set ADDONS, which hides the add-on that its workers"
                ' need: add "scrapyd_dist.Addon": 500 to it there'
            )
        if not project and to.spider == self.spider and not self.own:
            return None
        return Addressee(spider=to.spider, project=project, callback=to.callback)

    def slot(
        self, request: Request, callback: str, to: Addressee | None, fingerprint: bytes
    ) -> str:
        """The slot of a request with a callback of this name; CannotTravel if its meta asks for impossible slots."""
        try:
            if to is not None:
                ours = not to.project and to.spider == self.spider
                return (
                    self._ours(request, callback, fingerprint)
                    if ours
                    else slot_of_spider(to.spider, to.project)
                )
            return self.own or self._ours(request, callback, fingerprint)
        except ConfigError as error:
            raise CannotTravel(str(error).rstrip(".")) from error

    def _ours(self, request: Request, callback: str, fingerprint: bytes) -> str:
        slots = self.callbacks.get(callback, self.usual)
        prefix, number = (
            request.meta.get(PREFIX, slots.prefix),
            request.meta.get(NUMBER, slots.number),
        )
        if not isinstance(prefix, str) or type(number) is not int:
            raise ConfigError(
                f"its meta {PREFIX} is {prefix!r} and {NUMBER} {number!r}: a text and a number."
            )
        if (prefix, number) != (slots.prefix, slots.number):
            slots = SlotRule(prefix=prefix, number=number, by=self.usual.by)
        return slots.of(request.url, fingerprint)


class SlotPlacement:
    """The slot and the fingerprint of each request."""

    def __init__(
        self,
        fingerprint: Callable[[Request], bytes],
        slotting: SlotRouting | None,
        *,
        salt: str | None = "",
    ) -> None:
        """Place requests by Scrapy's fingerprint; `slotting` and `salt` as in a `FrontierFeed`."""
        self._fingerprint, self._slotting, self._salt = fingerprint, slotting, salt
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
        """Slot and fingerprint; the latter, of a request with dont_filter, of this time that it was found `where`.

        `is_new`: a filter of the project's own has said so, whatever the fingerprint. CannotTravel if its meta asks for
        what cannot be.
        """
        own = request.meta.get(FINGERPRINT)
        if own is not None and not isinstance(own, str):
            raise CannotTravel(
                f"its meta {FINGERPRINT} is of the type {type(own).__name__}, and must be a str"
            )
        known = _hash(own) if own is not None else self._fingerprint(request)
        slot = "" if self._slotting is None else self._slotting.slot(request, callback, to, known)
        if slot.startswith(OTHER_SPIDER):  # two spiders may both want a page
            known = _hash(slot, known)
        if not (request.dont_filter or is_new) or self._salt is None:
            return slot, known
        # Wanted every time it is found. Which time it is makes it known all the same when a shard is walked again.
        self._times[known, where] += 1
        return slot, _hash(f"{self._salt}{where}:{self._times[known, where]}", known)


def _hash(text: str, before: bytes = b"") -> bytes:
    return hashlib.sha1(before + text.encode()).digest()


def hides_addon(custom_settings: Mapping[str, Any]) -> bool:
    """Whether a spider's own settings replace the add-ons, and ours is not among those that it names."""
    addons = custom_settings.get("ADDONS")
    return addons is not None and "scrapyd_dist" not in str(addons)


class SpiderAddresses:
    """The names of the project's spiders, looked up when they are needed."""

    def __init__(self, settings: BaseSettings) -> None:
        self._settings = settings

    @cached_property
    def _loader(self) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the crawl itself has loaded them, and warned
            return load_object(self._settings["SPIDER_LOADER_CLASS"]).from_settings(self._settings)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._loader.list())

    def __contains__(self, spider: str) -> bool:
        """Whether there is one of that name; a script without a project cannot know, and says yes."""
        return spider in self._names or not self._settings.getlist("SPIDER_MODULES")

    def hides_us(self, spider: str) -> bool:
        """Whether a worker of it would not know that it is one, and enter the spider's own start."""
        return spider in self._names and hides_addon(
            self._loader.load(spider).custom_settings or {}
        )

    def __str__(self) -> str:
        return ", ".join(sorted(self._names))


def _addressee(callback: str, said: Any) -> Addressee:
    try:
        return Addressee.read(said)
    except Undeliverable as error:
        raise ConfigError(f"{SPIDER_CALLBACKS} for {callback!r}: {error}.") from None
