"""Decides which hosts are this machine, so that what is only here can be reached there."""

import ipaddress
import socket
from contextlib import closing


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, or a name of one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_here(host: str) -> bool:
    """Return whether a host is this machine: all its addresses are this machine's own."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    addresses = {str(info[4][0]) for info in infos}
    return bool(addresses) and all(map(_is_own, addresses))


def _is_own(address: str) -> bool:
    """Return whether the address can be bound: only one of this machine can."""
    bare = address.partition("%")[0]
    if ipaddress.ip_address(bare).is_loopback:
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
