"""Guards and effects of a table as Python source, for one instance (P, L and the rank are literals by then)."""

from __future__ import annotations

from collections.abc import Mapping

from headway.spec.language import (
    Const,
    Expr,
    Got,
    Op,
    Param,
    Past,
    Posted,
    Slot,
    SpecError,
    ThisPass,
    Var,
    static_value,
)

_INFIX = {"and": "and", "or": "or", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


def python_source(expr: Expr, parameters: Mapping[str, int]) -> str:
    """The expression as a Python expression over `s` (the rank's state) and `got_<field>` locals.

    Variable v is `s.v_<v>`, its past `s.h_<v>[lag - 1]`, a held handle `s.held_<channel>`, the pass `s.n`.
    """
    if isinstance(expr, Const):
        return repr(expr.value)
    if isinstance(expr, Var):
        return f"s.v_{expr.name}"
    if isinstance(expr, Param):
        return repr(parameters[expr.name])
    if isinstance(expr, Got):
        return f"got_{expr.field}"
    if isinstance(expr, Past):
        lag = static_value(expr.lag, parameters)
        return f"s.h_{expr.name}[{lag - 1}]" if lag else f"s.v_{expr.name}"
    if isinstance(expr, Posted):
        return f"s.held_{expr.channel}"
    if isinstance(expr, ThisPass):
        return "s.n"
    if isinstance(expr, Slot):
        return f"(s.n % {parameters['L']})"
    if isinstance(expr, Op):
        args = [python_source(arg, parameters) for arg in expr.args]
        if expr.kind == "not":
            return f"(not {args[0]})"
        if expr.kind == "ite":
            return f"({args[1]} if {args[0]} else {args[2]})"
        return f"({args[0]} {_INFIX[expr.kind]} {args[1]})"
    raise SpecError(f"not an expression: {expr!r}")
