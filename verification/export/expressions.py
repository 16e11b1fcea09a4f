"""Guards and effects as Promela expressions over global variables of one rank."""

from __future__ import annotations

from collections.abc import Mapping

from headway.spec.language import (
    Const,
    Enum,
    Expr,
    Got,
    Op,
    Param,
    Past,
    Posted,
    Slot,
    SpecError,
    ThisPass,
    Value,
    Var,
    static_value,
)

_INFIX = {"and": "&&", "or": "||", "eq": "==", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


class Names:
    """How the values of a model are written: enumerated names become numbers, in order of first mention."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._codes: dict[str, int] = {}

    def number(self, value: Value) -> int:
        """A value as an integer."""
        if isinstance(value, str):
            return self._codes.setdefault(value, len(self._codes))
        return int(value)

    def declare(self, domain: object) -> None:
        """Give the names of an enumeration their numbers."""
        if isinstance(domain, Enum):
            for name in domain.names:
                self.number(name)


def promela_expression(
    expr: Expr, rank: int, parameters: Mapping[str, int], got: Mapping[str, str], names: Names
) -> str:
    """The expression; `got` gives the text of each field that the row's operation obtained."""

    def text(part: Expr) -> str:
        return promela_expression(part, rank, parameters, got, names)

    if isinstance(expr, Const):
        return str(names.number(expr.value))
    if isinstance(expr, Var):
        return f"r{rank}_{expr.name}"
    if isinstance(expr, Param):
        return str(parameters[expr.name])
    if isinstance(expr, Got):
        return got[expr.field]
    if isinstance(expr, Past):
        lag = static_value(expr.lag, parameters)
        return f"r{rank}_{expr.name}_past[{lag - 1}]" if lag else f"r{rank}_{expr.name}"
    if isinstance(expr, Posted):
        return f"r{rank}_held_{expr.channel}"
    if isinstance(expr, ThisPass):
        return f"r{rank}_pass" if names.window > 1 else "0"
    if isinstance(expr, Slot):
        return f"(r{rank}_pass % {parameters['L']})"
    if isinstance(expr, Op):
        return _operator(expr, [text(arg) for arg in expr.args], names)
    raise SpecError(f"not an expression: {expr!r}")


def _operator(expr: Op, args: list[str], names: Names) -> str:
    if expr.kind == "not":
        return f"(!{args[0]})"
    if expr.kind == "ite":
        return f"({args[0]} -> {args[1]} : {args[2]})"
    plain = f"({args[0]} {_INFIX[expr.kind]} {args[1]})"
    if expr.kind in ("add", "sub") and _of_pass(expr):
        return f"(({plain} + {2 * names.window}) % {names.window})"
    return plain


def _of_pass(expr: Expr) -> bool:
    while isinstance(expr, Op) and expr.kind in ("add", "sub"):
        expr = expr.args[0]
    return isinstance(expr, ThisPass)
