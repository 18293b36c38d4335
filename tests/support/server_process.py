"""The addresses at which processes can be reached from other machines."""

import contextlib

import psutil


def list_open_addresses(processes):
    """Return name, address and port of each socket at which processes listen for other machines."""
    found = []
    for process in processes:
        # Some end meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            name, sockets = process.name(), process.net_connections("inet")
            found += [(name, *each.laddr) for each in sockets if _is_open(each)]
    return found


def _is_open(connection):
    return connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.endswith("127.0.0.1")
