"""Guards and effects mean one thing: what the engine compiles does what `spec.language.evaluate` says."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from headway.engine.loop import BrokenLaw, Endpoints, compile_program
from headway.engine.loop.expressions import python_source
from headway.engine.loop.run import link
from headway.spec.language import (
    TRUE,
    Bool,
    Const,
    Domain,
    Enum,
    Environment,
    Expr,
    Got,
    Identity,
    Op,
    Param,
    PassNumber,
    Past,
    Posted,
    Range,
    Scope,
    Slot,
    ThisPass,
    Value,
    Var,
    conjunction,
    domain_type,
    evaluate,
    ite,
    show,
    static_value,
    type_of,
    unify,
)
from headway.spec.table import (
    Await,
    Channel,
    Fields,
    Local,
    Post,
    Protocol,
    Receive,
    Role,
    Row,
    Variable,
    domain_values,
)
from headway.verification.model import Model

MOODS = Enum(("calm", "busy", "closed"))
VARIABLES: dict[str, Domain] = {
    "ready": Bool(),
    "late": Bool(),
    "count": Range(0, Param("L")),
    "debt": Range(-2, 2),
    "mood": MOODS,
    "name": Identity(3),
    "born": PassNumber(),
}
RETURNS: dict[str, Domain] = {"done": Bool(), "left": Range(0, 3), "mood": MOODS, "name": Identity(3)}
LAGS: tuple[Expr, ...] = (Const(0), Const(1), Const(2), Param("P") - 1, Param("L"))


class Generator:
    """Random well-typed expressions that read `variables`, `fields` and whether `channel` is posted."""

    def __init__(self, random: random.Random, variables: dict[str, Domain], channel: str = "word") -> None:
        self.random, self.variables, self.channel = random, variables, channel

    def expression(self, domain: Domain, depth: int, fields: dict[str, Domain] | None = None) -> Expr:
        """An expression of the type of `domain`."""
        choose, kind = self.random.choice, domain.kind
        if depth == 0 or self.random.random() < 0.2:
            return self._leaf(domain, fields or {})

        def part(of: Domain) -> Expr:
            return self.expression(of, depth - 1, fields)

        if kind == "bool":
            operator = choose(("not", "and", "or", "eq", "eq", "lt", "le", "ite"))
            if operator == "not":
                return ~part(domain)
            if operator in ("and", "or"):
                return Op(operator, (part(domain), part(domain)))
            if operator in ("lt", "le"):
                return Op(operator, (part(Range(0, 1)), part(Range(0, 1))))
            if operator == "eq":
                of = choose((Bool(), Range(0, 1), *self.variables.values()))
                return part(of).eq(part(of))
        if kind == "int" and self.random.random() < 0.7:
            return Op(choose(("add", "sub")), (part(domain), part(domain)))
        return ite(part(Bool()), part(domain), part(domain))

    def _leaf(self, domain: Domain, fields: dict[str, Domain]) -> Expr:
        names = [name for name, of in self.variables.items() if of.kind == domain.kind]
        leaves: list[Expr] = [Var(name) for name in names]
        leaves += [Past(name, self.random.choice(LAGS)) for name in names]
        leaves += [Got(name) for name, of in fields.items() if of.kind == domain.kind]
        if domain.kind == "bool":
            leaves += [Const(self.random.random() < 0.5), Posted(self.channel)]
        elif domain.kind == "int":
            leaves += [Const(self.random.randint(-2, 3)), Slot(), *(Param(name) for name in "PLR")]
        elif domain.kind == "pass":
            leaves += [ThisPass(), ThisPass() - self.random.randint(0, 2), ThisPass() + (Param("P") - 1)]
        else:
            leaves.append(Const(self.random.choice(domain_values(domain, {}))))
        return self.random.choice(leaves)

    def within(self, domain: Domain, fields: dict[str, Domain], name: str) -> Expr:
        """An effect on variable `name` that stays in its domain."""
        value = self.expression(domain, 3, fields)
        if not isinstance(domain, Range):
            return value
        low, high = (Const(bound) if isinstance(bound, int) else bound for bound in (domain.low, domain.high))
        return ite(low.le(value) & value.le(high), value, Var(name))


def any_value(random: random.Random, domain: Domain, parameters: dict[str, int]) -> Value:
    """A value of a domain; passes and identities as large as production's."""
    if isinstance(domain, Identity):
        return random.choice((0, 1, 2, 2**63 - 1, random.getrandbits(63)))
    if isinstance(domain, PassNumber):
        return random.choice((0, 1, 5, 1_000_000))
    return random.choice(domain_values(domain, parameters))


def test_compiled_expressions_are_the_evaluated_ones(seed: int):
    """2,000 expressions, each in 5 random states of random instances: 10,000 evaluations."""
    chance = random.Random(seed)
    generator = Generator(chance, VARIABLES)
    scope = Scope(VARIABLES, RETURNS, frozenset({"word"}))
    kinds: dict[str, set[Value]] = {}
    for _ in range(2000):
        domain = chance.choice((Bool(), Bool(), *VARIABLES.values()))
        expr = generator.expression(domain, chance.randint(1, 5), RETURNS)
        assert unify(type_of(expr, scope), domain_type(domain)), show(expr)
        for _ in range(5):
            ranks = chance.randint(1, 5)
            parameters = {"P": ranks, "L": ranks + chance.randint(0, 2), "R": chance.randrange(ranks)}
            depth = max(static_value(lag, parameters) for lag in LAGS)
            values = {name: any_value(chance, of, parameters) for name, of in VARIABLES.items()}
            history = {
                name: [any_value(chance, of, parameters) for _ in range(depth)] for name, of in VARIABLES.items()
            }
            got = {name: any_value(chance, of, parameters) for name, of in RETURNS.items()}
            held, this_pass = chance.random() < 0.5, chance.choice((0, 1, 7, 1_000_000))

            def past(name: str, lag: int, history: dict[str, list[Value]] = history) -> Value:
                return history[name][lag - 1]

            env = Environment(values, parameters, got, past, lambda _, held=held: held, this_pass)
            state = SimpleNamespace(
                n=this_pass,
                held_word=held,
                **{f"v_{name}": value for name, value in values.items()},
                **{f"h_{name}": deque(old) for name, old in history.items()},
            )
            names = {"s": state, **{f"got_{name}": value for name, value in got.items()}}
            compiled = eval(python_source(expr, parameters), names)
            expected = evaluate(expr, env)
            assert (compiled, type(compiled)) == (expected, type(expected)), f"{show(expr)} under {env}"
            kinds.setdefault(domain.kind, set()).add(expected)
    assert all(len(values) > 1 for values in kinds.values())


# --- whole tables ------------------------------------------------------------------------------------------

WORD = Channel("word", "forward", "control", (("late", Bool()), ("born", PassNumber()), ("mood", MOODS)), "note")
BACK = Channel("back", "closing", "control", (("done", Bool()), ("name", Identity(3)), ("mood", MOODS)), "note")
# What the guards read is kept small, so that the check for gaps and overlaps can enumerate it.
GUARDED: dict[str, Domain] = {"ready": Bool(), "late": Bool(), "mood": MOODS}
PASSES = 5  # fewer than half a window: within it the model's passes are exact


def random_table(chance: random.Random) -> Protocol:
    """A well-formed table whose first role has a ring of random rows, with up to three branches at a location."""
    generator, guards = Generator(chance, VARIABLES), Generator(chance, GUARDED)

    def effects(fields: dict[str, Domain]) -> Fields:
        targets = chance.sample(list(VARIABLES), chance.randint(0, 4))
        return tuple((name, generator.within(VARIABLES[name], fields, name)) for name in targets)

    def call(at: str) -> tuple[Local, dict[str, Domain]]:
        fields = dict(chance.sample(list(RETURNS.items()), chance.randint(0, 3)))
        read = generator.expression(chance.choice(list(VARIABLES.values())), 3)
        return Local("step", ("note", read), ("note",), tuple(fields.items())), fields

    def take(at: str) -> tuple[Receive, dict[str, Domain]]:
        expect = (("done", generator.expression(Bool(), 2)),) if chance.random() < 0.1 else ()
        return Receive("back", expect), dict(BACK.fields)

    def nothing(at: str) -> tuple[None, dict[str, Domain]]:
        return None, {}

    rows: list[Row] = []
    for at, to, operate in (
        ("call", "post", call),
        ("post", "take", None),
        ("take", "call again", take),
        ("call again", "await", call),
        ("await", "turn", None),
        ("turn", "call", nothing),
    ):
        if operate is None:
            held = Posted("word") if at == "post" else ~Posted("word")
            if at == "await":
                held = held | guards.expression(Bool(), 2)
            fields = tuple((name, generator.expression(of, 3)) for name, of in WORD.fields)
            operation = Post("word", fields) if at == "post" else Await("word")
            rows += [Row(at, at, ~held, operation, to, effects({})), Row(f"no {at}", at, held, None, to, effects({}))]
            continue
        split = [guards.expression(Bool(), 2) for _ in range(chance.randint(0, 2))]
        for branch in range(len(split) + 1):
            guard = conjunction(*(~earlier for earlier in split[:branch]), *split[branch : branch + 1])
            operation, returned = operate(at)
            rows.append(Row(f"{at} {branch}", at, guard, operation, to, effects(returned), to == "call"))
    variables = tuple(Variable(name, of, domain_values(of, {"L": 9}, 1)[0]) for name, of in VARIABLES.items())
    ending = (("done", TRUE), ("name", Const(1)), ("mood", Const("calm")))
    late = (("late", TRUE), ("born", ThisPass()), ("mood", Const("calm")))
    roles = [Role("first", "first", variables, tuple(rows), "call")]
    for place, post in (("middle", Post("word", late)), ("last", Post("back", ending))):
        others = (
            Row("receive", "receive", TRUE, Receive("word"), "give"),
            Row("give", "give", TRUE, post, "settle"),
            Row("settle", "settle", TRUE, Await(post.channel), "receive", advances=True),
        )
        roles.append(Role(place, place, (), others, "receive"))
    return Protocol("random", (WORD, BACK), ("note",), tuple(roles))


class World:
    """Bindings, wires and recorder in one: hands out what the test chose, and notes what the program did."""

    def __init__(self) -> None:
        self.row, self.fields, self.inputs = -1, (), ()
        self.returned: tuple[Any, ...] = ()
        self.message: tuple[int, ...] = ()
        self.waits = 0

    def enter(self, row: int, this_pass: int, *fields: int) -> None:
        self.row, self.fields = row, fields

    def done(self, *fields: int) -> None:
        pass

    def step(self, *inputs: Any) -> Any:
        self.inputs = inputs
        return self.returned if len(self.returned) > 1 else self.returned[0]

    def post(self, fields: tuple[int, ...], payload: Any) -> None:
        assert fields == self.fields

    def wait(self) -> None:
        self.waits += 1

    def gate(self, bound: float) -> bool:
        raise AssertionError("the table has no gate")

    def receive(self) -> tuple[tuple[int, ...], Any]:
        return self.message, "note"


def encoded(fields: tuple[tuple[str, Domain], ...], values: tuple[Value, ...]) -> tuple[int, ...]:
    """Values as they travel."""
    pairs = zip(fields, values, strict=True)
    return tuple(of.names.index(str(value)) if isinstance(of, Enum) else int(value) for (_, of), value in pairs)


def test_compiled_tables_do_what_the_model_does(seed: int):
    """200 random tables, each run for five passes beside the explorer's model of the same rank."""
    chance = random.Random(seed)
    rows_seen: dict[str, int] = {}
    mismatches = 0
    for _ in range(200):
        ranks = chance.randint(2, 4)
        table = random_table(chance)
        slots = ranks + chance.randint(0, 1)
        model, program, world = Model(table, ranks, slots), compile_program(table, 0, ranks, slots), World()
        location, state = link(program, {"step": world.step}, Endpoints({"word": world}, {"back": world}), world)
        mine = model.initial().ranks[0]
        while state.n < PASSES:
            row = model.row_of(mine, 0)
            operation, got, broken = row.operation, {}, None
            env = model.environment(mine, 0, {})
            if isinstance(operation, Local):
                got = {name: chance.choice(domain_values(of, {"L": slots})) for name, of in operation.returns}
                world.returned = ("note", *got.values())
            elif isinstance(operation, Receive):
                got = {name: chance.choice(domain_values(of, {})) for name, of in BACK.fields}
                world.message = encoded(BACK.fields, tuple(got.values()))
                broken = model.mismatch(mine, 0, operation, got)
            waits = world.waits
            if broken is not None:
                mismatches += 1
                with pytest.raises(BrokenLaw, match=f"rank 0, row '{row.name}', pass {state.n}, .*: done is"):
                    location(state)
                break
            location = location(state)
            assert program.role.rows[world.row] is row
            if isinstance(operation, Local):
                read = evaluate(operation.reads[1], env)
                assert world.inputs[1] in (read, read - model.window if isinstance(read, int) else read)
            elif isinstance(operation, Post):
                expected = model.posted_message(mine, 0, operation).values
                late, born, mood = encoded(WORD.fields, expected)
                assert (world.fields[0], world.fields[1] % model.window, world.fields[2]) == (late, born, mood)
                mine = mine._replace(held=("word",))
            elif isinstance(operation, Await):
                assert world.waits == waits + 1
                mine = mine._replace(held=())
            mine = model.moved(mine, 0, row, got)
            assert not isinstance(mine, str), mine
            assert state.n == mine.this_pass
            assert state.held_word == ("word" in mine.held)
            for name, value in zip(VARIABLES, mine.variables, strict=True):
                actual = getattr(state, f"v_{name}")
                assert (actual % model.window if name == "born" else actual) == value, f"{name} after {row.name}"
            rows_seen[row.name] = rows_seen.get(row.name, 0) + 1
    assert mismatches > 5
    assert min(rows_seen.values()) > 50
    assert sum(rows_seen.values()) > 5000
