"""The live wait-for graph: which rank is at which row, waiting on whom; read from the rings, so all may hang."""

from headway.engine.watchdog.diagnosis import Stall, diagnose, explain, wait_cycle
from headway.engine.watchdog.position import Position, position, positions

__all__ = ["Position", "Stall", "diagnose", "explain", "position", "positions", "wait_cycle"]
