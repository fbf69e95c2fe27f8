"""Which hosts share one budget: those of one registered domain, by the public suffix list, without a look-up."""

import pytest

from scrapyd_dist.frontier.slots import site_of
from scrapyd_dist.store import Store
from scrapyd_dist.throttle.permits import Limit, PermitRequest

LIMIT = Limit(hits=1, window=1000.0)


def waits(store: Store, *urls: str) -> list[float]:
    """How long a request to each of them has to wait, one after the other."""
    found = []
    for url in urls:
        taken = store.take_permits([PermitRequest(key=site_of(url), domain=site_of(url), limit=LIMIT)])
        (permit,) = taken.answers[0].permits
        found.append(permit.at - taken.now)
    return found


@pytest.mark.parametrize(
    ("one", "other", "is_shared"),
    [
        ("http://a.x.co.uk/", "https://b.X.co.uk:8443/page", True),
        ("http://x.com.br/", "http://www.x.com.br/", True),
        ("http://localhost:1/", "http://localhost:2/", True),
        ("http://127.0.0.1:1/", "http://127.0.0.1:2/", True),
        ("http://x.com.br/", "http://y.com.br/", False),
        ("http://x.co.uk/", "http://x.org.uk/", False),
        ("http://127.0.0.1/", "http://127.0.0.2/", False),
    ],
)
def test_hosts_of_one_domain_share_a_budget_and_others_do_not(
    store: Store, one: str, other: str, *, is_shared: bool
) -> None:
    """C8: a public suffix is no domain."""
    first, second = waits(store, one, other)
    assert first == 0.0
    assert second == (pytest.approx(LIMIT.window, abs=100.0) if is_shared else 0.0)
