"""What `sdist config` shows holds no secret."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapyd_dist.cli.config_command import masked


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("ftp://me:hush@host/a", "ftp://me:***@host/a"),
        ("redis://:hush@host:1/0", "redis://:***@host:1/0"),
        (["me:hush@host:6800", "web1"], ["me:***@host:6800", "web1"]),
        ("curl https://me:hush@h/ -H 'X: Bearer hush'", "curl https://me:***@h/ -H 'X: Bearer ***"),
        ("https://h/?token=hush&page=1", "https://h/?token=***&page=1"),
        ({"password": "hush", "category": "books"}, {"password": "***", "category": "books"}),
        (30, 30),
        (None, None),
        ("http://h/a@b", "http://h/a@b"),
    ],
)  # fmt: skip
def test_secrets_are_replaced(value: Any, shown: Any) -> None:
    assert masked(value) == shown


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="@"), min_size=3))
def test_no_password_of_a_url_is_ever_shown(password: str) -> None:
    assert f":{password}@" not in masked(f"ftp://me:{password}@host/") or password == "***"
