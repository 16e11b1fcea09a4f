"""The listening socket and the uvicorn server of an app, driven by whoever launches it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket; port 0 takes a free one. Raises OSError that names host and port where that cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as failure:
        raise OSError(failure.errno, f"cannot listen on {host}:{port}: {failure.strerror}") from failure
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as failure:
        listener.close()
        raise OSError(failure.errno, f"cannot listen on {host}:{port}: {failure.strerror}") from failure
    return listener


class Server(uvicorn.Server):
    """Serves `app` until `should_exit` is set. Signals are the launcher's: it drains the engine first.

    Run it with `await server.serve(sockets=[listen(host, port)])`; `started` tells when it answers.
    """

    def __init__(self, app: FastAPI, log_level: str = "warning") -> None:
        super().__init__(uvicorn.Config(app, log_level=log_level, access_log=False, lifespan="on"))

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
