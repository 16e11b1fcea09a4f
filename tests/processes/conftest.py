"""Real servers for the tests of this folder: `headway serve` in a process group of its own, and what one asks of it."""

from __future__ import annotations

import glob
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

START_BOUND = 180.0
END_BOUND = 60.0
# The processes of one server leave the machine's other core to the tests that run beside it.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@dataclass
class Answer:
    """What came of one request: its tokens, why it ended, its text, or the error that ended it."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    text: str = ""
    error: str = ""


def command(*arguments: str, prelude: str = "") -> list[str]:
    """The command line of `headway`; `prelude` is Python that runs before it in the same process."""
    code = f"{prelude}\nfrom headway.cli import main\nmain({list(arguments)!r})"
    return [sys.executable, "-c", code] if prelude else [sys.executable, "-m", "headway", *arguments]


class Served:
    """A running server. `ranks` are the process ids of its ranks, by rank; `replay` checks their traces at the end."""

    def __init__(self, replay: Callable[..., Any], *arguments: str, prelude: str = "") -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._replay, self._traces = replay, tempfile.TemporaryDirectory(prefix="headway-traces-")
        self._table = arguments[arguments.index("--table") + 1] if "--table" in arguments else "serving"
        words = command("serve", "--port", "0", "--trace-dir", self._traces.name, *arguments, prelude=prelude)
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )
        said: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=[said], daemon=True).start()
        try:
            self.banner = said.get(timeout=START_BOUND)
        except queue.Empty:
            self.banner = ""
        address = re.search(r"http://[\d.]+:\d+", self.banner)
        if address is None:
            self.kill()
            raise AssertionError(f"no server: {self.banner}\n{self.stderr()}")
        self.url = address[0]
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)
        self.ranks = [pid for _, pid in sorted(self._rank_processes())]

    def _read(self, said: queue.Queue[str]) -> None:
        for line in self._process.stdout or ():
            said.put(line)
        said.put("")

    def processes(self) -> list[int]:
        """Process ids of everything in the server's group that still runs."""
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                state, _, group = Path(path).read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue  # it has ended in the meantime
            if int(group) == self._process.pid and state != "Z":
                found.append(int(path.split("/")[2]))
        return found

    def _rank_processes(self) -> Iterator[tuple[int, int]]:
        for pid in self.processes():
            rank = re.search(rb"rank(\d+)\.json", Path(f"/proc/{pid}/cmdline").read_bytes())
            if rank is not None:
                yield int(rank[1]), pid

    def busy_seconds(self) -> float:
        """Processor time that all its threads have taken, now."""
        tasks = [task for pid in self.processes() for task in glob.glob(f"/proc/{pid}/task/*/schedstat")]
        return sum(int(Path(task).read_text().split()[0]) for task in tasks) / 1e9

    def gauges(self) -> dict[str, float]:
        """The samples of /metrics that have no labels, by name."""
        text = httpx.get(f"{self.url}/metrics").text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return {sample.name: sample.value for sample in samples if not sample.labels}

    def await_rest(self, bound: float = 20.0) -> dict[str, float]:
        """The gauges once nothing runs or waits and all pages are free; fails when that takes longer than `bound`."""
        deadline = time.monotonic() + bound
        while True:
            gauges = self.gauges()
            if "headway_requests_running" in gauges:  # rank 0 reports once it has begun its first pass
                busy = gauges["headway_requests_running"] + gauges["headway_requests_waiting"]
                if not busy and gauges["headway_kv_pages_free"] == gauges["headway_kv_pages"]:
                    return gauges
            assert time.monotonic() < deadline, gauges
            time.sleep(0.05)

    def generate(self, prompt: Sequence[int], count: int, stream: bool = True, **options: Any) -> Answer:
        """Up to `count` tokens after the token ids of `prompt`, greedy unless `options` say otherwise."""
        answer = Answer()
        try:
            for choice in self.pieces(prompt, count, stream, **options):
                answer.tokens += choice.token_ids
                answer.text += choice.text
                answer.finish = choice.finish_reason or answer.finish
        except openai.APIError as error:
            answer.error = str(error)
        return answer

    def pieces(self, prompt: Sequence[int], count: int, stream: bool = True, **options: Any) -> Iterator[Any]:
        """The choices of a completion, as they come."""
        extra = {"return_token_ids": True, **options.pop("extra", {})}
        options = {"temperature": 0, **options}
        completion = self.client.completions.create(
            model="smollm2", prompt=list(prompt), max_tokens=count, stream=stream, extra_body=extra, **options
        )
        for part in completion if stream else [completion]:
            yield from part.choices

    def together(self, jobs: Sequence[Callable[[], Answer]]) -> list[Answer]:
        """The answers of jobs that run at the same time."""
        with ThreadPoolExecutor(len(jobs)) as pool:
            return list(pool.map(lambda job: job(), jobs))

    def signal(self, number: int) -> None:
        """Send a signal to the server, as a terminal or a supervisor would."""
        self._process.send_signal(number)

    def ended(self, bound: float = END_BOUND) -> int:
        """The exit status; fails when it takes longer than `bound` seconds or leaves a process behind."""
        status = self._process.wait(bound)
        assert self.processes() == []
        return status

    def stderr(self) -> str:
        """What it has written to its standard error so far."""
        self._errors.seek(0)
        return self._errors.read()

    def kill(self) -> None:
        """End whatever is left, and replay what the ranks did against their table."""
        if self.processes():
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self.banner:
            self._replay(Path(self._traces.name), self._table)
        self._traces.cleanup()


class Servers:
    """Keeps the server that was asked for last, so that tests in a row share it."""

    def __init__(self, replay: Callable[..., Any]) -> None:
        self._replay = replay
        self._arguments: tuple[str, ...] = ()
        self._served: Served | None = None

    def get(self, *arguments: str) -> Served:
        """A server with these arguments, which must be at rest."""
        if self._served is None or self._arguments != arguments:
            self.close()
            self._served, self._arguments = Served(self._replay, *arguments), arguments
        return self._served

    def close(self) -> None:
        """End it as a user would; it must end well."""
        if self._served is not None:
            served, self._served = self._served, None
            try:
                served.signal(signal.SIGTERM)
                assert served.ended() == 0, served.stderr()
            finally:
                served.kill()


@pytest.fixture(scope="session")
def servers(replayed_traces: Callable[..., Any]) -> Iterator[Servers]:
    """Shared servers. Tests that share one have the same xdist group, so that one worker runs them."""
    shared = Servers(replayed_traces)
    yield shared
    shared.close()


@pytest.fixture
def serving(replayed_traces: Callable[..., Any]) -> Callable[..., Any]:
    """A context with a server of the test's own, ended by force if the test leaves it running."""

    @contextmanager
    def own(*arguments: str, prelude: str = "") -> Iterator[Served]:
        served = Served(replayed_traces, *arguments, prelude=prelude)
        try:
            yield served
        finally:
            served.kill()

    return own


@pytest.fixture
def headway() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a `headway` command to its end."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(*arguments), capture_output=True, text=True, env=ENVIRONMENT, timeout=END_BOUND)

    return run
