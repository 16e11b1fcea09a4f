"""The live wait-for graph: which rank is at which row, waiting on whom; read from the rings, so all may hang."""

from headway.engine.watchdog.diagnosis import Position, Stall, diagnose, positions

__all__ = ["Position", "Stall", "diagnose", "positions"]
