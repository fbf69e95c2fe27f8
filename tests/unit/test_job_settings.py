"""What jobs get as settings: each row of the registry says it, and a new row is all that a new setting needs."""

import ast
import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapyd_dist.deploy.egg import WORKER_MODULES, WORKER_PACKAGES
from scrapyd_dist.middlewares.assignment import Assignment
from scrapyd_dist.middlewares.producer.job_settings import JobSettings, make_job_settings
from scrapyd_dist.middlewares.producer.producer_options import read_options
from scrapyd_dist.middlewares.slot_routing import SlotRouting
from scrapyd_dist.middlewares.throttle.throttle_options import ThrottleOptions

from scrapyd_dist.goals import Goals
from scrapyd_dist.settings import (
    PREFIX,
    SETTINGS,
    Setting,
    Travels,
    ValueKind,
    limits_in,
    travelling,
)

ROOT = Path(__file__).parents[2]
#: a value of each kind that is no default, as an option or -s gives it
VALUES: dict[ValueKind, Any] = {
    ValueKind.YES_NO: "1", ValueKind.WHOLE: "7", ValueKind.SECONDS: "77", ValueKind.NUMBER: "3", ValueKind.TEXT: "text",
    ValueKind.LIST: ["a", "b"], ValueKind.MAPPING: {"parse": "p/4"}, ValueKind.FILES: [{"path": "a.jl"}],
}  # fmt: skip
#: way -> whether jobs of the crawl's project get it, workers that lease, workers of other projects
REACHES = {
    Travels.NOWHERE: (False, False, False), Travels.CALL: (False, False, False), Travels.JOBS: (True, True, False),
    Travels.FLEET: (True, True, True), Travels.LIMITS: (True, True, True), Travels.LEASING: (False, True, False),
    Travels.SLOTS: (False, True, True),
}  # fmt: skip
#: settings that travel in the job's call -> where they are in it, if that is no field of their name
IN_CALL = {
    "SPIDER_ARGS": "the job's arguments",
    "STORE": "store, store_sealed: see store/reach",
    **{f"GOAL_{field.name.upper()}": "goals" for field in fields(Goals)},
}
#: settings that the worker half reads in processes that are no workers
NOT_IN_WORKERS = {"ENABLED", "FRONTIER", "SEEDS", "CRAWL", "STORE"}


def settings(priority: str = "project", **values: Any) -> Settings:
    made = Settings()
    for name, value in values.items():
        made.set(f"{PREFIX}{name}", value, priority=priority)
    return made


def make(
    made: Settings,
    given: dict[str, str] | None = None,
    limits: dict[str, str] | None = None,
    *,
    leases: bool = True,
) -> JobSettings:
    return make_job_settings(made, given=given or {}, limits=limits or {}, leases=leases)


def own(made: Settings, given: dict[str, str] | None = None, *, leases: bool = True) -> Any:
    """What jobs of the crawl's project get, but for the profile, which they always get."""
    sent = dict(make(made, given, leases=leases).own)
    assert sent.pop(f"{PREFIX}PROFILE")
    return sent


def value_of(row: Setting) -> Any:
    if row.kind is ValueKind.CHOICE:
        return row.choices[-1]
    return VALUES[row.kind]


@pytest.mark.parametrize("row", SETTINGS.values(), ids=list(SETTINGS))
def test_what_the_command_line_says_goes_where_its_row_says(row: Setting) -> None:
    made = settings("cmdline", THROTTLE=True)
    made.set(row.name, value_of(row), priority="cmdline")
    sent, leased = make(made, leases=False), make(made)
    found = (row.name in sent.own, row.name in leased.own, bool(leased.foreign.get(row.name)))
    assert found == REACHES[row.travels]
    back = Settings(dict(leased.own)).get(row.name)
    assert back is None or row.judged(back) == row.judged(value_of(row))


@pytest.mark.parametrize("row", SETTINGS.values(), ids=list(SETTINGS))
def test_what_settings_py_says_is_in_the_egg_and_goes_only_where_its_row_says(row: Setting) -> None:
    made = Settings({row.name: value_of(row)})
    sent = make(made)
    assert (row.name in sent.own) is row.in_force
    expected = row.travels is Travels.SLOTS or (row.in_force and row.travels is Travels.FLEET)
    if row.travels is not Travels.LIMITS:
        assert bool(sent.foreign.get(row.name)) is expected


def test_a_setting_that_is_a_field_of_the_assignment_says_that_it_travels_in_the_call() -> None:
    known = {field.name.upper() for field in fields(Assignment)}
    said = {
        name.removeprefix(PREFIX) for name, row in SETTINGS.items() if row.travels is Travels.CALL
    }
    assert said - known <= IN_CALL.keys()
    in_both = {name for name in known if PREFIX + name in SETTINGS} - said
    # FAIR is a setting of slots, and a term of the lease as well; SLOTS there is a list of names.
    assert in_both == {"FAIR", "SLOTS"}
    assert {f"GOAL_{name.upper()}" for name in asdict(Goals())} & {
        name.removeprefix(PREFIX) for name in SETTINGS
    } <= said


def test_what_workers_read_travels() -> None:
    folders = {
        package: ROOT / package.replace("scrapyd_dist.middlewares", "middlewares").replace(".", "/")
        for package in (*WORKER_MODULES, *WORKER_PACKAGES)
    }
    files = [folders[name] / f"{one}.py" for name, some in WORKER_MODULES.items() for one in some]
    files += [path for name in WORKER_PACKAGES for path in folders[name].glob("*.py")]
    table = ROOT / "scrapyd_dist" / "settings_table.py"
    read = {
        node.value
        for path in files
        if path != table
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in SETTINGS
    }
    assert len(read) > 20
    in_call = {Travels.NOWHERE, Travels.CALL}
    stays = {str(name) for name in read if SETTINGS[str(name)].travels in in_call}
    assert stays == {PREFIX + name for name in NOT_IN_WORKERS}


def test_what_belongs_to_the_producers_process_stays_there() -> None:
    given = {
        "LOG_FILE": "x",
        "FEEDS": "{}",
        "JOBDIR": "d",
        "ADDONS": "{}",
        "DISTRIBUTED_PAGES": "3",
        "DISTRIBUTED_NO_SUCH": "3",
        "DOWNLOAD_DELAY": "1",
        "DISTRIBUTED_KEEP_DAYS": "2",
        "DISTRIBUTED_THROTTLE_HITS": "60",
    }
    travels = ("DOWNLOAD_DELAY", "DISTRIBUTED_KEEP_DAYS", "DISTRIBUTED_THROTTLE_HITS")
    made = Settings()
    made.setdict(given, priority="cmdline")
    assert own(made, given) == {name: given[name] for name in travels}


def test_of_what_was_given_on_the_command_line_workers_get_what_they_need_to_find_targets() -> None:
    made = settings(TARGET_RULE=1)
    given = {
        "DISTRIBUTED_TARGET_CALLBACKS": ["parse_item", "parse_more"],
        "DISTRIBUTED_CALLBACK_SLOTS": {"parse_item": "p/4"},
        "DISTRIBUTED_SLOTS": "8",
        "DISTRIBUTED_STORE": "redis://:secret@host/0",
    }
    for name, value in given.items():
        made.set(name, value, priority="cmdline")
    sent = own(made)
    assert sent == {
        "DISTRIBUTED_TARGET_CALLBACKS": "parse_item,parse_more",
        "DISTRIBUTED_CALLBACK_SLOTS": '{"parse_item": "p/4"}',
        "DISTRIBUTED_SLOTS": "8",
    }
    received = Settings(sent)
    assert received.getlist("DISTRIBUTED_TARGET_CALLBACKS") == given["DISTRIBUTED_TARGET_CALLBACKS"]
    assert json.loads(received["DISTRIBUTED_CALLBACK_SLOTS"]) == given["DISTRIBUTED_CALLBACK_SLOTS"]
    assert own(made, leases=False) == {}


def test_the_limits_of_jobs_go_to_every_job_those_of_other_projects_as_well() -> None:
    limits = limits_in({"store": "x", "stall_timeout": "90", "job_timeout": "30"})
    made = settings(STALL_TIMEOUT=5)  # of settings.py: it is in the egg
    assert make(made).foreign.keys() & limits.keys() == set()
    made.set("DISTRIBUTED_JOB_TIMEOUT", 60.0, priority="cmdline")
    expected = {"DISTRIBUTED_JOB_TIMEOUT": "60.0", "DISTRIBUTED_STALL_TIMEOUT": "90"}
    for leases in (False, True):
        sent = make(made, limits=limits, leases=leases)
        for jobs in (sent.own, sent.foreign):
            assert {name: jobs[name] for name in limits} == expected


def test_an_address_with_a_password_stays_in_the_egg() -> None:
    for url in ("ftp://h/%(batch)s.jl", "ftp://me@host/x"):
        made = settings(TARGET_FEED_URL=url)
        assert own(made) == {"DISTRIBUTED_TARGET_FEED_URL": url}
    assert own(settings(TARGET_FEED_URL="ftp://me:s3cret@host/%(batch)s.jl")) == {}


def test_workers_of_another_project_get_the_slots_and_the_limits_of_the_crawl_and_nothing_else() -> (
    None
):
    slots: dict[str, Any] = {"SLOTS": 4, "CALLBACK_SLOTS": {"parse_item": "p/4"}}
    made = settings(
        **slots, TARGET_CALLBACKS=["parse_item"], LOGIN="log_in", FAIR="", THROTTLE_MODERATED=False
    )
    made.set("QUEUE_WINDOW", 30, priority="project")
    of_slots = {"DISTRIBUTED_SLOTS": "4", "DISTRIBUTED_CALLBACK_SLOTS": '{"parse_item": "p/4"}'}
    of_slots |= dict.fromkeys(
        ("DISTRIBUTED_FAIR", "DISTRIBUTED_SLOT_PREFIX", "DISTRIBUTED_SLOT_BY"), ""
    )
    assert make(made).foreign == of_slots
    made.set("DISTRIBUTED_THROTTLE_HITS", 60, priority="cmdline")  # now there are limits
    limits = {"DISTRIBUTED_THROTTLE_HITS": "60", "DISTRIBUTED_THROTTLE_MODERATED": "False"}
    limits["DISTRIBUTED_THROTTLE_WINDOW"] = "30"
    assert make(made).foreign == {**of_slots, **limits}


def test_what_another_project_says_of_its_own_slots_and_limits_does_not_count_for_workers_of_this_crawl() -> (
    None
):
    crawl = settings(THROTTLE=True)
    crawl.setdict(
        {"QUEUE_HITS": 60, "PUBLIC_IP_URL": "https://me:secret@ip.example/"}, priority="project"
    )
    other = settings(
        SLOTS=9, SLOT_PREFIX="b", SLOT_BY="site", CALLBACK_SLOTS={"x": "x/3"}, THROTTLE_HITS=600
    )
    sent = make(crawl).foreign
    assert "secret" not in str(sent)  # the arguments of a job are for every user of the node to see
    other.setdict(sent, priority="cmdline")
    assert replace(SlotRouting.from_settings(other), known=None) == replace(
        SlotRouting.from_settings(crawl), known=None
    )
    limit = ThrottleOptions.from_settings(other).limit
    assert limit is not None and limit.hits == 60


def test_a_throttle_that_is_off_is_off_for_workers_of_other_projects_too() -> None:
    assert make(settings(THROTTLE=False)).foreign["DISTRIBUTED_THROTTLE"] == "False"
    assert "DISTRIBUTED_THROTTLE" not in make(settings()).foreign


def test_the_terms_of_workers_are_read_by_the_same_names() -> None:
    made = settings(MODE="pull", IDLE=7, START="first", MAX_BATCHES=3)
    terms = asdict(read_options(made).scaling.terms)
    assert (terms["idle"], terms["start"], terms["max_batches"]) == (7.0, "first", 3)
    assert {f"{PREFIX}{name.upper()}" for name in terms} & SETTINGS.keys() <= {
        *travelling(Travels.CALL, Travels.SLOTS)
    }
