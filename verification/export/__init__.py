"""The same table for checkers that somebody else wrote."""

from headway.verification.export.promela import promela
from headway.verification.export.spin import SpinError, SpinResult, run_spin, spin_installed

__all__ = ["SpinError", "SpinResult", "promela", "run_spin", "spin_installed"]
