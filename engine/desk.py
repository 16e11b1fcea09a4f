"""Rank 0's end of the wire to the API process."""

from __future__ import annotations

import msgspec
import zmq

from headway.engine.messages import Intake, Report


class ZmqDesk:
    """Takes intake messages and hands out reports, in order, over two zmq sockets."""

    def __init__(self, intake: str, reports: str) -> None:
        self._context = zmq.Context()
        self._intake = self._context.socket(zmq.PULL)
        self._reports = self._context.socket(zmq.PUSH)
        for socket, endpoint in ((self._intake, intake), (self._reports, reports)):
            socket.set_hwm(0)
            socket.connect(endpoint)
        self._decoder = msgspec.msgpack.Decoder(Intake)
        self._encoder = msgspec.msgpack.Encoder()

    def wait(self) -> list[Intake]:
        """Sleep until something is there; take it all."""
        first = self._decoder.decode(self._intake.recv())
        return [first, *self.poll()]

    def poll(self) -> list[Intake]:
        """Take what is there."""
        taken: list[Intake] = []
        while self._intake.poll(0):
            taken.append(self._decoder.decode(self._intake.recv()))
        return taken

    def report(self, reports: list[Report]) -> None:
        """Hand out reports; the socket's queue has no limit, so this never waits."""
        for report in reports:
            self._reports.send(self._encoder.encode(report))

    def close(self) -> None:
        """Close once everything has been handed over, within a second."""
        self._context.destroy(linger=1000)
