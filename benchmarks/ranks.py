"""A pipeline of rank processes without a server: a list of requests in, tokens and times out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import zmq

from headway.engine.config import RankConfig
from headway.engine.group import RankGroup, make_directory, remove_directory
from headway.engine.messages import Generated, Report, Stop, Submit
from headway.engine.placement import memory_shares
from headway.engine.scheduling import Limits
from headway.spec.catalog import load_table
from headway.spec.serving import passes_ahead


@dataclass
class Answer:
    """What one request got: its tokens, and seconds from the start of all to its first and its last token."""

    tokens: list[int] = field(default_factory=list)
    finish: str = ""
    first: float = 0.0
    last: float = 0.0


class Ranks:
    """P ranks, one on each of `devices`. `pages` 0 means as many as fit; `options` are fields of `RankConfig`."""

    def __init__(
        self,
        model: str,
        devices: Sequence[str],
        *,
        pages: int,
        max_context: int,
        max_batch_tokens: int = 2048,
        max_batch_rows: int = 256,
        utilization: float = 0.9,
        table: str = "serving",
        **options: Any,
    ) -> None:
        ranks, protocol = len(devices), load_table(table)
        self.directory = make_directory()
        limits = Limits(
            slots=ranks,
            pages=pages or 1,
            page_size=16,
            max_batch_tokens=max_batch_tokens,
            max_batch_rows=max_batch_rows,
            max_context=max_context,
            ahead=passes_ahead(protocol, ranks, ranks),
        )
        shares = memory_shares(devices, utilization)
        configs = [
            RankConfig(
                rank=rank,
                ranks=ranks,
                directory=str(self.directory),
                table=table,
                fingerprint=protocol.fingerprint,
                model=model,
                limits=limits,
                pages=pages,
                devices=list(devices),
                memory_share=shares[rank],
                intake=f"ipc://{self.directory}/intake",
                reports=f"ipc://{self.directory}/reports",
                threads=max(1, (os.cpu_count() or 1) // ranks),
                **options,
            )
            for rank in range(ranks)
        ]
        self._context = zmq.Context()
        self._intake, self._reports = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        for socket, name in ((self._intake, "intake"), (self._reports, "reports")):
            socket.set_hwm(0)
            socket.bind(f"ipc://{self.directory}/{name}")
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Report)
        self._failed, self._submitted = threading.Event(), 0
        self.failure = ""
        self.failed_at = 0.0
        self.group = RankGroup(protocol, configs, self._fail)
        try:
            self.group.start()
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _fail(self, reason: str) -> None:
        self.failure, self.failed_at = reason, time.perf_counter()
        self._failed.set()

    def submit(self, requests: Sequence[Submit]) -> list[int]:
        """Hand in requests; returns the numbers that they are given, since a number is never used twice."""
        numbers = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        for number, request in zip(numbers, requests, strict=True):
            self._intake.send(self._encoder.encode(msgspec.structs.replace(request, request=number)))
        return numbers

    def generate(self, requests: Sequence[Submit]) -> list[Answer]:
        """Run all requests, handed in at once, to their ends. Raises `RuntimeError` when the pipeline fails."""
        start, left = time.perf_counter(), len(requests)
        answers = {number: Answer() for number in self.submit(requests)}
        while left:
            if not self._reports.poll(100):
                if self._failed.is_set():
                    raise RuntimeError(self.failure)
                continue
            report = self._decoder.decode(self._reports.recv())
            if isinstance(report, Generated) and report.request in answers:
                answer, now = answers[report.request], time.perf_counter() - start
                answer.first = answer.first or now
                answer.tokens += report.tokens
                if report.finish:
                    answer.finish, answer.last, left = report.finish, now, left - 1
        return list(answers.values())

    def wait_for_failure(self, bound: float) -> bool:
        """Until the pipeline has failed; False after `bound` seconds."""
        return self._failed.wait(bound)

    def close(self) -> None:
        """Stop cleanly, or end what is left; raises `RuntimeError` when the ranks do not stop."""
        clean = self._failed.is_set()
        if not clean:
            self._intake.send(self._encoder.encode(Stop()))
            clean = self.group.wait(30.0)
        self.group.kill()
        self._context.destroy(linger=0)
        if not clean:
            raise RuntimeError(f"the ranks did not stop; their files are in {self.directory}")
        remove_directory(Path(self.directory))
