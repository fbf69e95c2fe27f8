"""Where a project's store is."""

from pathlib import Path

import pytest

from scrapyd_dist.errors import ConfigError
from scrapyd_dist.store.address import store_address

ROOT = Path("/project")


@pytest.mark.parametrize(
    ("said", "variable", "where"),
    [
        ((), None, "/project/.sdist/store.db"),
        ((None, ""), "  ", "/project/.sdist/store.db"),
        (("mine.db",), None, "/project/mine.db"),
        ((None, "/data/mine.db"), None, "/data/mine.db"),
        (("mine.db", "other.db"), "sqlite:///data/x.db", "/data/x.db"),
        (("sqlite://mine.db",), None, "/project/mine.db"),
        (("mine.db",), "redis://:p@host:1/0?prefix=a:", "redis://:p@host:1/0?prefix=a:"),
        (("unix:///run/redis.sock?db=2",), None, "unix:///run/redis.sock?db=2"),
    ],
)
def test_the_environment_goes_first_then_what_was_said_then_the_projects_own_file(
    said: tuple[str | None, ...], variable: str | None, where: str
) -> None:
    assert (
        store_address(
            ROOT, *said, environment={} if variable is None else {"SDIST_STORE": variable}
        )
        == where
    )


@pytest.mark.parametrize("said", ["$SHOP", "${SHOP}"])
def test_a_setting_may_name_a_variable_and_one_that_is_not_set_is_told(said: str) -> None:
    assert (
        store_address(ROOT, said, environment={"SHOP": "redis://:p@host/0"}) == "redis://:p@host/0"
    )
    with pytest.raises(ConfigError, match="which is not in the environment"):
        store_address(ROOT, said, environment={"SHOP": " "})
