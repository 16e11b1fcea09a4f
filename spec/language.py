"""The expression language of guards and effects: typed, total, over finite domains.

An expression reads this rank's variables, the parameters of the instance (`P` ranks, `L` slots, `R` this rank),
what the operation of the row just obtained (a received message's fields, or what a local step returned), and
values that a variable had in an earlier pass. It reads nothing else: no clock, no queue, no other rank.

Three readers give it meaning and must agree: the explorer (`evaluate`, here), the engine (`engine/loop`
compiles it to Python) and the prover (translates it to Z3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = bool | int | str


class SpecError(ValueError):
    """A table, channel, row or expression that is not well-formed; the message names it."""


# --- domains -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bool:
    """True or False."""

    kind = "bool"


@dataclass(frozen=True)
class Range:
    """Integers from `low` to `high`, both included; the bounds may use parameters (`Param("L")`)."""

    low: Expr | int
    high: Expr | int
    kind = "int"


@dataclass(frozen=True)
class Enum:
    """One of a few names."""

    names: tuple[str, ...]
    kind = "enum"


@dataclass(frozen=True)
class PassNumber:
    """A pass ordinal: unbounded in production; in a finite model modulo a window (see `Protocol.pass_window`).

    Only equality and a difference of fixed size are offered, so that the window is exact.
    """

    kind = "pass"


@dataclass(frozen=True)
class Identity:
    """A value that is only compared for equality, such as a digest of a batch's members.

    In production a 64-bit integer; in a finite model one of `model_values` integers.
    """

    model_values: int = 2
    kind = "identity"


Domain: TypeAlias = Bool | Range | Enum | PassNumber | Identity

# --- expressions -------------------------------------------------------------------------------------------


class Expr:
    """Base of all expressions; the operators build new ones."""

    __slots__ = ()

    def __and__(self, other: Expr) -> Op:
        return Op("and", (self, other))

    def __or__(self, other: Expr) -> Op:
        return Op("or", (self, other))

    def __invert__(self) -> Op:
        return Op("not", (self,))

    def __add__(self, other: Expr | int) -> Op:
        return Op("add", (self, lift(other)))

    def __sub__(self, other: Expr | int) -> Op:
        return Op("sub", (self, lift(other)))

    def eq(self, other: Expr | Value) -> Op:
        """Equality of two values of one type."""
        return Op("eq", (self, lift(other)))

    def ne(self, other: Expr | Value) -> Op:
        """Difference of two values of one type."""
        return Op("not", (self.eq(other),))

    def lt(self, other: Expr | int) -> Op:
        """Less than, for integers."""
        return Op("lt", (self, lift(other)))

    def le(self, other: Expr | int) -> Op:
        """At most, for integers."""
        return Op("le", (self, lift(other)))


@dataclass(frozen=True)
class Const(Expr):
    """A literal."""

    value: Value


@dataclass(frozen=True)
class Var(Expr):
    """A variable of this rank, as it was before the row."""

    name: str


@dataclass(frozen=True)
class Param(Expr):
    """A parameter of the instance: `P` (ranks), `L` (slots) or `R` (this rank's number)."""

    name: str


@dataclass(frozen=True)
class Got(Expr):
    """A field of the message that this row received, or of what its local step returned."""

    field: str


@dataclass(frozen=True)
class Past(Expr):
    """The value that variable `name` had at the end of the pass `lag` passes ago (its initial value before pass 0).

    `lag` is an expression over parameters; lag 0 is the present value.
    """

    name: str
    lag: Expr


@dataclass(frozen=True)
class Posted(Expr):
    """True while this rank holds a handle of `channel` that it has posted and not awaited."""

    channel: str


@dataclass(frozen=True)
class ThisPass(Expr):
    """The ordinal of this rank's pass, from 0."""


@dataclass(frozen=True)
class Slot(Expr):
    """The microbatch slot that this pass serves: the pass ordinal modulo `L`."""


@dataclass(frozen=True)
class Op(Expr):
    """An operator applied to arguments: not, and, or, eq, lt, le, add, sub, ite."""

    kind: str
    args: tuple[Expr, ...]


TRUE = Const(True)
FALSE = Const(False)


def lift(value: Expr | Value) -> Expr:
    """An expression unchanged, a literal as a `Const`."""
    return value if isinstance(value, Expr) else Const(value)


def ite(condition: Expr, then: Expr | Value, otherwise: Expr | Value) -> Op:
    """`then` where `condition` holds, else `otherwise`."""
    return Op("ite", (condition, lift(then), lift(otherwise)))


def conjunction(*parts: Expr) -> Expr:
    """All of `parts`; true when there are none."""
    result: Expr = TRUE
    for part in parts:
        result = part if result == TRUE else result & part
    return result


def walk(expr: Expr) -> Iterator[Expr]:
    """`expr` and everything inside it, outermost first."""
    yield expr
    if isinstance(expr, Op):
        for arg in expr.args:
            yield from walk(arg)
    elif isinstance(expr, Past):
        yield from walk(expr.lag)


def substitute(expr: Expr, replace: Callable[[Expr], Expr | None]) -> Expr:
    """`expr` with every node for which `replace` gives an expression replaced by it, outermost first."""
    new = replace(expr)
    if new is not None:
        return new
    if isinstance(expr, Op):
        return Op(expr.kind, tuple(substitute(arg, replace) for arg in expr.args))
    if isinstance(expr, Past):
        return Past(expr.name, substitute(expr.lag, replace))
    return expr


# --- types -------------------------------------------------------------------------------------------------

_SIGNATURES: dict[str, tuple[int, str, str]] = {
    # operator: (number of arguments, type of each argument ("*" = one shared type), type of the result)
    "not": (1, "bool", "bool"),
    "and": (2, "bool", "bool"),
    "or": (2, "bool", "bool"),
    "eq": (2, "*", "bool"),
    "lt": (2, "int", "bool"),
    "le": (2, "int", "bool"),
}


@dataclass(frozen=True)
class Scope:
    """What the names of an expression may refer to, for type checking."""

    variables: Mapping[str, Domain]
    fields: Mapping[str, Domain]
    channels: frozenset[str]
    parameters: frozenset[str] = frozenset({"P", "L", "R"})


def domain_type(domain: Domain) -> str:
    """The type name of a domain's values: bool, int, pass, identity, or `enum:a|b`."""
    return "enum:" + "|".join(domain.names) if isinstance(domain, Enum) else domain.kind


def type_of(expr: Expr, scope: Scope) -> str:
    """The type of `expr`; raises `SpecError` for an unknown name or operands that do not fit."""
    if isinstance(expr, Const):
        return _const_type(expr.value)
    if isinstance(expr, Var | Past):
        if isinstance(expr, Past):
            _lag_is_static(expr, scope)
        return domain_type(_lookup(scope.variables, expr.name, "variable"))
    if isinstance(expr, Got):
        return domain_type(_lookup(scope.fields, expr.field, "field of this row's operation"))
    if isinstance(expr, Param):
        if expr.name not in scope.parameters:
            raise SpecError(f"unknown parameter {expr.name!r}; known: {', '.join(sorted(scope.parameters))}")
        return "int"
    if isinstance(expr, Posted):
        if expr.channel not in scope.channels:
            raise SpecError(f"unknown channel {expr.channel!r}; known: {', '.join(sorted(scope.channels))}")
        return "bool"
    if isinstance(expr, ThisPass):
        return "pass"
    if isinstance(expr, Slot):
        return "int"
    if isinstance(expr, Op):
        return _op_type(expr, scope)
    raise SpecError(f"not an expression: {expr!r}")


def _const_type(value: Value) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int" if isinstance(value, int) else f"enum={value}"


def _lookup(table: Mapping[str, Domain], name: str, what: str) -> Domain:
    if name not in table:
        raise SpecError(f"unknown {what} {name!r}; known: {', '.join(sorted(table)) or 'none'}")
    return table[name]


def _lag_is_static(expr: Past, scope: Scope) -> None:
    for node in walk(expr.lag):
        if not isinstance(node, Const | Param | Op):
            raise SpecError(f"the lag of Past({expr.name!r}) may use only literals and parameters")
    if type_of(expr.lag, scope) != "int":
        raise SpecError(f"the lag of Past({expr.name!r}) must be an integer")


def unify(left: str, right: str) -> str:
    """The common type of two types; raises `SpecError` when there is none."""
    if left == right:
        return left
    for a, b in ((left, right), (right, left)):
        if a.startswith("enum=") and b.startswith("enum:") and a[5:] in b[5:].split("|"):
            return b
        if a == "int" and b == "identity":  # a literal identity, such as "no batch"
            return b
        if a.startswith("enum=") and b.startswith("enum="):
            return a
    raise SpecError(f"types {left} and {right} do not fit together")


def _op_type(expr: Op, scope: Scope) -> str:
    types = [type_of(arg, scope) for arg in expr.args]
    if expr.kind in ("add", "sub"):
        if len(types) != 2 or types[1] != "int" or types[0] not in ("int", "pass"):
            raise SpecError(f"{show(expr)}: {expr.kind} takes (int, int) or (pass, int), not {types}")
        if types[0] == "pass" and not _is_pass(expr):
            raise SpecError(f"{show(expr)}: only this rank's own pass number can be offset")
        return types[0]
    if expr.kind == "ite":
        if len(types) != 3 or types[0] != "bool":
            raise SpecError(f"{show(expr)}: ite takes a condition and two values, not {types}")
        return unify(types[1], types[2])
    if expr.kind not in _SIGNATURES:
        raise SpecError(f"unknown operator {expr.kind!r}; known: {', '.join([*_SIGNATURES, 'add', 'sub', 'ite'])}")
    count, wanted, result = _SIGNATURES[expr.kind]
    if len(types) != count:
        raise SpecError(f"{show(expr)}: {expr.kind} takes {count} arguments, not {len(types)}")
    if wanted == "*":
        unify(types[0], types[1])
    elif any(actual != wanted for actual in types):
        raise SpecError(f"{show(expr)}: {expr.kind} takes {wanted}, not {types}")
    return result


# --- meaning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """The values that an expression is evaluated under. `past(name, lag)` gives a variable's earlier value.

    `window` is the modulus of pass numbers, or 0 for unbounded ones.
    """

    variables: Mapping[str, Value]
    parameters: Mapping[str, int]
    got: Mapping[str, Value]
    past: Callable[[str, int], Value]
    posted: Callable[[str], bool]
    this_pass: int
    window: int = 0


def evaluate(expr: Expr, env: Environment) -> Value:
    """The value of a well-typed expression; this is the reference meaning of the language."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Var):
        return env.variables[expr.name]
    if isinstance(expr, Param):
        return env.parameters[expr.name]
    if isinstance(expr, Got):
        return env.got[expr.field]
    if isinstance(expr, Past):
        lag = int(evaluate(expr.lag, env))
        return env.variables[expr.name] if lag == 0 else env.past(expr.name, lag)
    if isinstance(expr, Posted):
        return env.posted(expr.channel)
    if isinstance(expr, ThisPass):
        return env.this_pass
    if isinstance(expr, Slot):
        return env.this_pass % env.parameters["L"]
    if isinstance(expr, Op):
        return _evaluate_op(expr, env)
    raise SpecError(f"not an expression: {expr!r}")


def _evaluate_op(expr: Op, env: Environment) -> Value:
    kind, args = expr.kind, expr.args
    if kind == "not":
        return not evaluate(args[0], env)
    if kind == "and":
        return bool(evaluate(args[0], env)) and bool(evaluate(args[1], env))
    if kind == "or":
        return bool(evaluate(args[0], env)) or bool(evaluate(args[1], env))
    if kind == "eq":
        return evaluate(args[0], env) == evaluate(args[1], env)
    if kind == "ite":
        return evaluate(args[1] if evaluate(args[0], env) else args[2], env)
    left, right = int(evaluate(args[0], env)), int(evaluate(args[1], env))
    if kind == "lt":
        return left < right
    if kind == "le":
        return left <= right
    value = left + right if kind == "add" else left - right
    return value % env.window if env.window and _is_pass(args[0]) else value


def _is_pass(expr: Expr) -> bool:
    """Whether an operand of add or sub is a pass number (only those wrap in a finite model)."""
    while isinstance(expr, Op) and expr.kind in ("add", "sub"):
        expr = expr.args[0]
    return isinstance(expr, ThisPass)


def static_value(expr: Expr | int, parameters: Mapping[str, int]) -> int:
    """The integer value of an expression over parameters and literals, such as a range bound or a lag."""
    if isinstance(expr, int):
        return expr

    def no_past(name: str, lag: int) -> Value:
        raise SpecError(f"{name} is not a parameter")

    def no_channel(channel: str) -> bool:
        raise SpecError(f"{channel} is not a parameter")

    return int(evaluate(expr, Environment({}, parameters, {}, no_past, no_channel, 0)))


# --- text --------------------------------------------------------------------------------------------------

_INFIX = {"and": "and", "or": "or", "eq": "=", "lt": "<", "le": "<=", "add": "+", "sub": "-"}


def show(expr: Expr | int, nested: bool = False) -> str:
    """The expression as readable text."""
    if isinstance(expr, int):
        return str(expr)
    if isinstance(expr, Const):
        return str(expr.value).lower() if isinstance(expr.value, bool) else str(expr.value)
    if isinstance(expr, Var | Param):
        return expr.name
    if isinstance(expr, Got):
        return f"got.{expr.field}"
    if isinstance(expr, Past):
        return f"{expr.name}@(n-{show(expr.lag, True)})"
    if isinstance(expr, Posted):
        return f"posted({expr.channel})"
    if isinstance(expr, ThisPass):
        return "n"
    if isinstance(expr, Slot):
        return "slot"
    if isinstance(expr, Op):
        if expr.kind == "not":
            inner = expr.args[0]
            if isinstance(inner, Op) and inner.kind == "eq":
                text = f"{show(inner.args[0], True)} != {show(inner.args[1], True)}"
                return f"({text})" if nested else text
            return f"not {show(inner, True)}"
        if expr.kind == "ite":
            text = " ".join(
                (
                    "if",
                    show(expr.args[0], True),
                    "then",
                    show(expr.args[1], True),
                    "else",
                    show(expr.args[2], True),
                )
            )
        else:
            text = f" {_INFIX[expr.kind]} ".join(show(arg, True) for arg in expr.args)
        return f"({text})" if nested else text
    raise SpecError(f"not an expression: {expr!r}")
