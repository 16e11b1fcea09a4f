"""What a launcher tells a rank, and where the files of a running pipeline lie."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from headway.engine.scheduling import Limits


class RankConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's settings. `pages` is the size of its own KV pool, 0 for as many as fit into its GPU's memory, and then
    `limits.pages` counts for nothing; `refuse` plants refusals for tests.

    `devices` has the device of every rank, such as `cpu` or `cuda:1`; `memory_share` is the fraction of its device's
    memory that this rank may use. The trace goes to the folder `traces`, or to `directory` when that is empty.
    """

    rank: int
    ranks: int
    directory: str
    table: str
    fingerprint: str
    model: str
    limits: Limits
    pages: int
    devices: list[str]
    intake: str
    reports: str
    load_format: Literal["auto", "dummy"] = "auto"
    kernels: str = "reference"
    graphs: bool = True
    dtype: str = "float32"
    seed: int = 0
    memory_share: float = 1.0
    threads: int = 1
    gate_bound: float = 60.0
    refuse: list[int] = []
    traces: str = ""

    @property
    def device(self) -> str:
        """This rank's device."""
        return self.devices[self.rank]

    @property
    def trace_directory(self) -> Path:
        """Where the ranks' traces lie."""
        return Path(self.traces or self.directory)


class Layout:
    """Names of the files in a pipeline's directory."""

    def config(self, directory: Path, rank: int) -> Path:
        """The rank's settings."""
        return directory / f"rank{rank}.json"

    def ready(self, directory: Path, rank: int) -> Path:
        """Exists once the rank runs its table; says how many KV pages the pipeline has."""
        return directory / f"rank{rank}.ready"

    def announce(self, directory: Path, rank: int, pages: int) -> None:
        """Make the file `ready`, at once and whole."""
        draft = directory / f"rank{rank}.draft"
        draft.write_text(str(pages))
        draft.rename(self.ready(directory, rank))

    def error(self, directory: Path, rank: int) -> Path:
        """One line: why the rank ended."""
        return directory / f"rank{rank}.error"

    def log(self, directory: Path, rank: int) -> Path:
        """What the rank wrote to its standard streams."""
        return directory / f"rank{rank}.log"


LAYOUT = Layout()
