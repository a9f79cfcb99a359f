"""Ports for the servers of tests."""

import random
import socket
from contextlib import ExitStack

BELOW_OUTGOING = range(20_000, 32_000, 2)
"""Kernels give ports from 32768 on to outgoing connections: any of those may be taken before a server binds it."""


def free_port() -> int:
    """A port of 127.0.0.1 that is free, as is the next one, where `make up` serves the reports."""
    for port in random.SystemRandom().sample(BELOW_OUTGOING, 100):
        try:
            with ExitStack() as bound:
                for each in (port, port + 1):
                    bound.enter_context(socket.create_server(("127.0.0.1", each)))
        except OSError:
            continue
        return port
    raise AssertionError("of 100 ports none is free")
