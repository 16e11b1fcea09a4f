"""`njit`: numba's compiler with a cache on disk, or plain Python where numba is not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    HAS_NUMBA = False

    def njit(function: F) -> F:
        """The function itself."""
        return function

    def inline(function: F) -> F:
        """The function itself."""
        return function

else:
    HAS_NUMBA = True

    def njit(function: F) -> F:
        """Compiled at its first call, without the interpreter lock, and kept on disk."""
        compiled: F = numba.njit(cache=True, nogil=True)(function)
        return compiled

    def inline(function: F) -> F:
        """As `njit`, pasted into its callers."""
        compiled: F = numba.njit(cache=True, nogil=True, inline="always")(function)
        return compiled
