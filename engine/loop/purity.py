"""Watches bindings while they run: a row that is a mere step must not wait, read a clock, or wait for a device.

Every call into C is seen, whoever makes it, through the interpreter's profiling hook; so a test is the place for this.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from headway.engine.loop.compile import Program
from headway.spec.table import Local

_CLOCKS = {name for name in dir(time) if callable(getattr(time, name))}
_SYNCHRONISES = {"item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"}
_WAITS = {"acquire", "recv", "recv_into", "accept", "connect", "sendall", "select", "poll", "read", "readinto", "write"}
_WIRES = {"isend", "irecv", "send", "recv_anysource", "barrier", "allreduce", "broadcast", "allgather"}
_OPENS = {"open", "fork", "system", "posix_spawn", "fork_exec"}


class ImpureError(RuntimeError):
    """A binding did what it must not; the message names the binding, its row's nature, and what it did."""


def guarded(program: Program, bindings: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The bindings with those of mere steps watched; rows that compute or idle may wait for what they are for."""
    steps = {
        row.operation.binding
        for row in program.role.rows
        if isinstance(row.operation, Local) and row.operation.nature == "step"
    }
    return {name: _watched(name, call) if name in steps else call for name, call in bindings.items()}


def _watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        found: list[str] = []

        def see(frame: FrameType, event: str, called: Any) -> None:
            if event == "c_call" and (what := _impurity(called)):
                found.append(f"{what} in {frame.f_code.co_qualname}, {frame.f_code.co_filename}:{frame.f_lineno}")

        before = sys.getprofile()
        sys.setprofile(see)
        try:
            result = call(*inputs)
        finally:
            sys.setprofile(before)
        if found:
            raise ImpureError(f"binding {name!r}, of a step row: {found[0]}")
        return result

    return run


def _impurity(called: Any) -> str:
    """What is wrong with a call into C, empty if nothing is."""
    name, module, owner = called.__name__, called.__module__, called.__self__
    if module == "time" and name in _CLOCKS:
        return f"time.{name} reads a clock"
    if owner is random._inst:  # the shared generator behind `random.random()`
        return f"random.{name} draws a lot"
    if isinstance(owner, torch.Tensor) and name in _SYNCHRONISES and owner.device.type != "cpu":
        return f"Tensor.{name} waits for the device"
    if isinstance(owner, torch.Tensor) and name == "item":  # lists of host memory are fine
        return f"Tensor.{name} would wait for the device, were it on one"
    if name.endswith("synchronize") and (module or "").startswith("torch"):
        return f"{name} waits for the device"
    if name in _OPENS and module in ("io", "_io", "posix", "_posixsubprocess"):
        return f"{name} reaches out of the process"
    if name in _WAITS and type(owner).__module__ in ("_socket", "_thread", "select", "_io", "posix"):
        return f"{name} may wait for somebody"
    if name in _WIRES and "distributed" in type(owner).__module__:
        return f"{name} uses a wire"
    return ""
