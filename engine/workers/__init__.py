"""The model runner of one rank: from the members of a batch to hidden states or tokens."""

from headway.engine.workers.build import DeviceMemoryError, build_worker
from headway.engine.workers.worker import Work, Worker

__all__ = ["DeviceMemoryError", "Work", "Worker", "build_worker"]
