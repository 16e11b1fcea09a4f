"""The production ranks in one process, under virtual time and one seed: to find failures, to replay them, to plan."""

from headway.engine.simulation.hub import Hub, Stand
from headway.engine.simulation.pipeline import Simulation
from headway.engine.simulation.run import Outcome, build, run_schedule, shrink
from headway.engine.simulation.schedule import TENSOR_TRANSPORTS, Client, Kill, Pause, Schedule, draw

__all__ = [
    "TENSOR_TRANSPORTS",
    "Client",
    "Hub",
    "Kill",
    "Outcome",
    "Pause",
    "Schedule",
    "Simulation",
    "Stand",
    "build",
    "draw",
    "run_schedule",
    "shrink",
]
