"""`njit`: numba's compiler with a cache on disk, or plain Python where numba is not installed."""

from __future__ import annotations

from typing import Any

try:
    import numba
except ImportError:
    HAS_NUMBA = False
else:
    HAS_NUMBA = True


def njit(function: Any) -> Any:
    """The function, compiled at its first call if numba is there; it then runs without the interpreter lock."""
    return numba.njit(cache=True, nogil=True)(function) if HAS_NUMBA else function
