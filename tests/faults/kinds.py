"""The kinds of trouble: each is a crawl's setting, and what happens to it at a moment that the dice choose."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import page_strikes
from faults.answer_strikes import ANSWERS, move_address, spoil, spoil_all, spoil_parts
from faults.checkout_strikes import NAME, stop_namesake
from faults.folder_strikes import (
    damage_home,
    fill_disk,
    lose_parts,
    remove_eggs,
    remove_files,
    remove_home,
    remove_logs,
    small_disk,
)
from faults.page_strikes import nothing
from faults.process_strikes import (
    hang_worker,
    kill_all_in_turn,
    kill_daemon,
    kill_machine,
    kill_producer,
    kill_producer_thrice,
    kill_watcher,
    kill_worker,
    restart_machines_in_turn,
    stop_machine,
)
from faults.store_strikes import (
    cap_files,
    empty_redis,
    fail_disk,
    failing_disk,
    kill_redis,
    lose_rules,
    move_slot,
    redis_away,
    redis_fails_over,
    redis_full,
    store_away,
    store_away_until_goal,
)
from faults.trial import Limit, Trial
from rig import proxy

#: where Debian has the library that shifts a process's clock
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
#: a trial whose nodes are reached through proxies
PROXIED = {"proxied": True}
#: seconds in which a crawl is over whatever breaks it, on a machine that other programs use, too
BOUND = 120.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of trouble."""

    name: str
    strike: Callable[[Trial], None]  #: what happens, after `begin`
    redis: bool | None = None  #: whether it needs a Redis server, or the file; None for either
    trial: Mapping[str, Any] = field(default_factory=dict)  #: arguments of `Trial`
    around: Callable[[Trial], Any] | None = None  #: a context that stands around the whole trial
    bound: float = BOUND  #: seconds from the start of the crawl to the end of its last command


_CLOCK = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+1h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
_BEHIND = {**_CLOCK, "FAKETIME": "-1h"}
STALL = {"DISTRIBUTED_STALL_TIMEOUT": 3}
#: a page that ends its job is alone after few attempts
CUT = {
    "items": 120,
    "settings": {**STALL, "DISTRIBUTED_BATCH_SIZE": 8, "DISTRIBUTED_MAX_ATTEMPTS": 2},
}
#: a site that the throttle lets go on for some seconds
THROTTLED = {
    "items": 100,
    "limit": Limit(hits=10, window=2.0),
    "settings": {"DISTRIBUTED_BATCH_SIZE": 10},
}
#: fewer than the site has
GOAL = 150
ONLY = {"words": ("--max-requests", str(GOAL)), "goal": GOAL}

KINDS = (
    Kind(name="a worker killed", strike=kill_worker),
    Kind(name="Scrapyd killed, its workers orphans", strike=kill_daemon),
    Kind(name="a machine killed, back with an empty job list", strike=kill_machine),
    Kind(
        name="machines restarted in turn",
        strike=restart_machines_in_turn,
        trial={"settings": {"DISTRIBUTED_MAX_ATTEMPTS": 2}},
    ),
    Kind(name="the producer killed", strike=kill_producer),
    Kind(name="the watcher killed", strike=kill_watcher),
    Kind(name="Redis killed, restarted with its file", strike=kill_redis, redis=True),
    Kind(name="a machine stopped, and going on later", strike=stop_machine),
    Kind(
        name="schedule.json: reset or cut in its answer",
        strike=spoil(proxy.CUT, proxy.RESET),
        trial=PROXIED,
    ),
    Kind(
        name="schedule.json: an answer past the time-out", strike=spoil(proxy.LATE), trial=PROXIED
    ),
    Kind(
        name="schedule.json: HTTP 500 and HTML, taken or not", strike=spoil(*ANSWERS), trial=PROXIED
    ),
    Kind(name="any page: reset, cut, 500, HTML", strike=spoil_all, trial=PROXIED),
    Kind(name="a full disk under a node's files", strike=fill_disk, around=small_disk),
    Kind(name="a node's parts and reports removed", strike=remove_files),
    Kind(name="a node's log folder deleted", strike=remove_logs),
    Kind(name="a node's eggs deleted", strike=remove_eggs),
    Kind(name="the crawl's own folder deleted", strike=remove_home),
    Kind(name="parts at home damaged", strike=damage_home),
    Kind(name="parts damaged at home, and gone on the nodes", strike=lose_parts),
    Kind(name="the store away and back", strike=redis_away, redis=True),
    Kind(name="Redis full for a while", strike=redis_full, redis=True),
    Kind(name="Redis failed over, its last steps lost", strike=redis_fails_over, redis=True),
    Kind(name="a clock an hour ahead", strike=nothing, trial={"node_env": {0: _CLOCK}}),
    Kind(name="a clock an hour behind", strike=kill_worker, trial={"node_env": {0: _BEHIND}}),
    Kind(name="worker, machine and producer, in turn", strike=kill_all_in_turn),
    Kind(
        name="a hanging page",
        strike=nothing,
        around=page_strikes.hanging_page,
        trial=CUT,
    ),
    Kind(name="a hanging worker, its loop turning", strike=hang_worker, trial={"settings": STALL}),
    Kind(name="a node's parts not found", strike=spoil_parts(proxy.NOT_FOUND), trial=PROXIED),
    Kind(name="a node's parts corrupted", strike=spoil_parts(proxy.GARBLED), trial=PROXIED),
    Kind(name="a node's address leads to another", strike=move_address, trial=PROXIED),
    Kind(
        name="a callback that never returns",
        strike=nothing,
        around=page_strikes.blocking_page,
        trial={**CUT, "spider": page_strikes.ODD},
        bound=180,
    ),
    Kind(
        name="a callback that raises no Exception",
        strike=nothing,
        around=page_strikes.raising_page,
        trial={"spider": page_strikes.ODD},
    ),
    Kind(
        name="a callback that ends its process by SIGTERM",
        strike=nothing,
        around=page_strikes.ending_page,
        trial={"spider": page_strikes.ODD},
    ),
    Kind(
        name="an idle handler that never lets go",
        strike=nothing,
        around=page_strikes.open_spider,
        trial={"items": 120, "spider": page_strikes.OPEN},
        bound=240,
    ),
    Kind(name="a throttle's store away and back", strike=store_away, trial=THROTTLED),
    Kind(name="a throttle's rules lost, and set again", strike=lose_rules, trial=THROTTLED),
    Kind(name="a throttle's store emptied", strike=empty_redis, trial=THROTTLED, redis=True),
    Kind(name="a goal of requests, the store away", strike=store_away_until_goal, trial=ONLY),
    Kind(
        name="a namesake in another checkout stopped",
        strike=stop_namesake,
        trial={"words": ("--name", NAME)},
    ),
    Kind(name="files of the producer capped (EFBIG)", strike=cap_files, redis=False),
    Kind(
        name="the disk under the store fails (EIO)",
        strike=fail_disk,
        around=failing_disk,
        redis=False,
    ),
    Kind(name="a cluster's slot moves", strike=move_slot, redis=True, trial={"cluster": True}),
)

#: hours of work at a slow site, minutes here; not one of the kinds that take turns
LONG = Kind(
    name="50,000 pages, killed and resumed three times",
    strike=kill_producer_thrice,
    bound=1800,
    trial={
        "items": 50_000,
        "latency": 0.0,
        "patience": 1800.0,
        "settings": {"DISTRIBUTED_BATCH_SIZE": 1000, "CONCURRENT_REQUESTS_PER_DOMAIN": 16},
    },
)
