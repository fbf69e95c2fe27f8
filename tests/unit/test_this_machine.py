"""Which hosts are this machine."""

import socket

import pytest

from scrapyd_dist.this_machine import is_here, is_loopback


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("localhost", True), ("192.0.2.7", False),
     ("no.such.host.invalid", False)],
)  # fmt: skip
def test_which_hosts_are_this_machine(host: str, here: bool) -> None:
    assert is_here(host) is here


def test_an_own_address_is_this_machine() -> None:
    own = {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    assert own
    assert all(is_here(address) for address in own)


def test_which_hosts_are_loopback_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "shop.localhost", "127.0.0.7", "::1")))
    assert not any(map(is_loopback, ("web1", "10.0.0.1", "localhost.example")))
