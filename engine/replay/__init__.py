"""Takes ranks through an interleaving that a search found: over simulated wires, or as real processes over gloo."""

from headway.engine.replay.processes import HeldProcesses
from headway.engine.replay.script import ReplayError, Script, ScriptStep, executable
from headway.engine.replay.simulated import SteppedRanks, replay_simulated

__all__ = ["HeldProcesses", "ReplayError", "Script", "ScriptStep", "SteppedRanks", "executable", "replay_simulated"]
