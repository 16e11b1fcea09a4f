"""The only loop there is: the table, compiled for one rank's role, run over wires and bindings."""

from headway.engine.loop.compile import Program, compile_program
from headway.engine.loop.run import BrokenLaw, Endpoints, run

__all__ = ["BrokenLaw", "Endpoints", "Program", "compile_program", "run"]
