"""The processes of a pipeline: started together, watched, and ended together when one of them ends."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from headway.engine.config import LAYOUT, RankConfig
from headway.engine.recorder import RingReader, TraceError, trace_path
from headway.engine.watchdog import Position, Stall, diagnose, positions
from headway.engine.wiring import boot_directory, make_pipes
from headway.spec.boot import boot_table
from headway.spec.table import Protocol

STALL_BOUNDS: Mapping[str, float] = {"wire": 120.0, "compute": 300.0, "step": 60.0}
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "is gone",
    "Read error",
    "Write error",
)


class LaunchError(RuntimeError):
    """A rank did not come up; the message says which and why."""


class RankGroup:
    """P rank processes in one directory. `on_failure` is called once, from the watching thread, with the reason."""

    def __init__(
        self,
        protocol: Protocol,
        configs: Sequence[RankConfig],
        on_failure: Callable[[str], None],
        bounds: Mapping[str, float] = STALL_BOUNDS,
        on_stall: Callable[[Stall], None] = lambda stall: None,
    ) -> None:
        self._protocol, self._configs, self._bounds = protocol, configs, bounds
        self._on_failure, self._on_stall = on_failure, on_stall
        self._directory = Path(configs[0].directory)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[RingReader] = []
        self._stopping = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self, bound: float = 600.0) -> None:
        """Start all ranks; wait until each runs its table. Raises `LaunchError` if one ends or `bound` seconds pass."""
        ranks = len(self._configs)
        make_pipes(self._protocol, self._configs[0].devices, self._directory)
        for config in self._configs:
            path = LAYOUT.config(self._directory, config.rank)
            path.write_bytes(msgspec.json.encode(config))
            with open(LAYOUT.log(self._directory, config.rank), "wb") as log:
                command = [sys.executable, "-m", "headway.engine.rank", str(path)]
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        deadline = time.monotonic() + bound
        while not all(LAYOUT.ready(self._directory, rank).exists() for rank in range(ranks)):
            if (dead := self._first_dead()) is not None or time.monotonic() > deadline:
                reason = self._why(dead) if dead is not None else self._unready(bound)
                self.kill()
                raise LaunchError(reason)
            time.sleep(0.02)
        self._readers = [RingReader(trace_path(c.trace_directory, c.rank)) for c in self._configs]
        self._watching.start()

    @property
    def pages(self) -> int:
        """How many KV pages the pipeline has, once it runs."""
        return int(LAYOUT.ready(self._directory, 0).read_text())

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes]

    def positions(self) -> list[Position]:
        """Where every rank stands now."""
        return positions(self._protocol, self._readers, time.monotonic_ns())

    def wait(self, bound: float) -> bool:
        """Wait for the clean end of all ranks after a stop message; False when `bound` seconds pass first."""
        self._stopping.set()
        deadline = time.monotonic() + bound
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return False
        return all(process.returncode == 0 for process in self._processes)

    def kill(self) -> None:
        """End all ranks now."""
        self._stopping.set()
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _first_dead(self) -> int | None:
        return next((rank for rank, process in enumerate(self._processes) if process.poll() is not None), None)

    def _why(self, dead: int) -> str:
        """Why the group ended: the rank whose own fault it was, rather than one that lost its neighbour."""
        time.sleep(0.3)  # let the others notice, so that all reasons are there
        reasons = {rank: self._reason(rank) for rank, p in enumerate(self._processes) if p.poll() is not None}
        own = [rank for rank, reason in reasons.items() if not any(text in reason for text in _LOST_PEER)]
        rank = dead if dead in own or not own else own[0]
        return f"rank {rank} {reasons[rank]}"

    def _unready(self, bound: float) -> str:
        """Where the ranks stand in the boot table when a start takes too long."""
        paths = [trace_path(boot_directory(self._directory), config.rank) for config in self._configs]
        missing = [str(rank) for rank, path in enumerate(paths) if not path.exists()]
        if missing:
            return f"not all ranks were ready within {bound:g} s: not at the boot table yet: rank {', '.join(missing)}"
        where = positions(boot_table(), [RingReader(path) for path in paths], time.monotonic_ns())
        return f"not all ranks were ready within {bound:g} s: {'; '.join(p.words() for p in where)}"

    def _reason(self, rank: int) -> str:
        error = LAYOUT.error(self._directory, rank)
        if error.exists():
            return f"stopped: {error.read_text()}"
        code = self._processes[rank].returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}; its log is {LAYOUT.log(self._directory, rank)}"

    def _watch(self) -> None:
        while not self._stopping.wait(0.1):
            if (dead := self._first_dead()) is not None:
                reason = self._why(dead)
                self.kill()
                self._on_failure(reason)
                return
            stall = diagnose(self.positions(), self._bounds)
            if stall is not None:
                self._on_stall(stall)
                self.kill()
                self._on_failure(stall.words())
                return


def make_directory() -> Path:
    """A fresh directory for one pipeline's files."""
    return Path(tempfile.mkdtemp(prefix="headway-"))


def remove_directory(directory: Path) -> None:
    """Remove a pipeline's files after a clean end; after a failure they are kept for `headway inspect`."""
    shutil.rmtree(directory)


def read_positions(protocol: Protocol, directory: Path, ranks: int, now_ns: int) -> list[Position]:
    """Where the ranks of a pipeline stand, or stood when they ended. Raises `TraceError`."""
    readers = [RingReader(trace_path(directory, rank)) for rank in range(ranks)]
    if any(reader.header.fingerprint != protocol.fingerprint for reader in readers):
        raise TraceError(f"{directory}: traces of another table than {protocol.name!r} ({protocol.fingerprint[:12]})")
    return positions(protocol, readers, now_ns)
