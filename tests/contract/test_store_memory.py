"""The contract of the store on a third engine, in memory, which is named in one place: the table of engines."""

import itertools

import pytest
import test_store_steps  # type: ignore[import-not-found]
from rig.memory_engine import MEMORY_ENGINE
from test_store import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_fair import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_frontier import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_jobs import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_steps import *  # noqa: F403 - the same contract
from test_store_strategy import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract
from test_store_throttle import *  # type: ignore[import-not-found]  # noqa: F403 - the same contract

from scrapyd_dist.store import engines

out = test_store_steps.out  # a fixture, whose name another file has for something else
_numbers = itertools.count(1)
#: they are about several processes, or about what lies on a Redis server or in a file
for name in (
    "test_of_several_processes_that_make_the_same_step_exactly_one_succeeds",
    "test_two_processes_share_a_third_joins_and_one_dies",
    "test_a_job_that_others_wrote_on_a_server_is_left_out",
    "test_a_change_by_an_older_version_of_this_program_is_one_of_all",
    "test_a_name_that_no_domain_has_is_noted_as_all_of_them",
    "test_of_a_domain_that_has_gone_no_key_stays",
    "test_a_step_is_one_command_however_many_permits",
    "test_a_look_at_rules_that_have_not_changed_is_one_plain_read",
    "test_every_key_but_rules_and_version_goes_by_itself",
    "test_what_does_not_count_any_more_is_forgotten",
    "test_a_clock_that_was_set_back_keeps_nobody_waiting",
    "test_processes_that_ask_for_few_domains_look_at_all_of_them_together",
):
    del globals()[name]


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty store."""
    monkeypatch.setattr(engines, "ENGINES", (*engines.ENGINES, MEMORY_ENGINE))
    return f"memory://{next(_numbers)}"
