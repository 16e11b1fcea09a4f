"""What bindings must not do, read from their source: wait, read a clock, draw a lot, wait for a device, order by a set.

A local row's answer must follow from its inputs, and must not wait for anything that the table does not know of. What
is allowed all the same is listed by file, function and name, with the reason; an entry that nothing needs is an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

CLOCKS = ("time", "datetime")
CHANCE = ("random", "secrets", "uuid")
OUTSIDE = ("os", "subprocess", "socket", "select", "shutil", "signal", "threading", "multiprocessing", "asyncio")
BLOCKING = ("open", "input", "print")
METHODS = {
    **dict.fromkeys(("wait", "acquire", "sleep", "recv", "send", "poll", "select"), "may wait for somebody"),
    **dict.fromkeys(("read_text", "write_text", "read_bytes", "write_bytes"), "touches a file"),
    **dict.fromkeys(("item", "tolist", "cpu", "numpy", "nonzero", "synchronize"), "may wait for the device"),
    **dict.fromkeys(("isend", "irecv", "barrier", "all_reduce", "broadcast", "all_gather"), "uses a wire"),
}
SETS = ("set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet")
ORDERLESS = ("sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool")


@dataclass(frozen=True)
class Impurity:
    """Something that a function does: its file, qualified name and line, what it is, and why it is not allowed."""

    file: str
    function: str
    line: int
    name: str
    reason: str

    def words(self) -> str:
        """In one line."""
        return f"{self.file}:{self.line}, {self.function}: {self.name} {self.reason}"


Allowed = Mapping[tuple[str, str, str], str]  # (file, function, name) -> reason


def impurities(sources: Mapping[str, str], allowed: Allowed) -> list[Impurity]:
    """What files (name -> source) do that is neither pure nor allowed, and what is allowed but done nowhere."""
    found = [each for file, source in sources.items() for each in _file(file, ast.parse(source, file))]
    needed = {(each.file, each.function, each.name) for each in found}
    unused = [
        Impurity(file, function, 0, name, "is allowed, but not done")
        for file, function, name in allowed
        if (file, function, name) not in needed
    ]
    return [each for each in found if (each.file, each.function, each.name) not in allowed] + unused


def _file(file: str, tree: ast.Module) -> Iterator[Impurity]:
    modules = dict(_modules(tree))
    sets = _names_of_sets(tree)
    for function, node in _by_function(tree):
        for name, reason in _judge(node, modules, sets):
            yield Impurity(file, function, node.lineno if isinstance(node, ast.expr) else 0, name, reason)


def _modules(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names in the file that stand for a module or something of it, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _by_function(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node with the qualified name of the function that it is in ("" outside of all)."""

    def visit(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from visit(child, f"{name}.{child.name}".lstrip("."), not isinstance(child, ast.ClassDef))
            else:
                yield name if inside else "", child
                yield from visit(child, name, inside)

    return visit(tree, "", False)


def _judge(node: ast.AST, modules: Mapping[str, str], sets: frozenset[str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Call):
        yield from _judge_call(node, modules)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "reversed"):
            for argument in node.args:
                if _is_set(argument, sets):
                    yield ast.unparse(argument), "is a set, whose order is no part of the inputs"
        if isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and _is_set(node.func.value, sets):
            yield ast.unparse(node.func.value), "is a set, whose order is no part of the inputs"
    elif isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter, sets):
        yield ast.unparse(node.iter), "is a set, whose order is no part of the inputs"
    elif isinstance(node, ast.Starred) and _is_set(node.value, sets):
        yield ast.unparse(node.value), "is a set, whose order is no part of the inputs"


def _judge_call(node: ast.Call, modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    called = ast.unparse(node.func)
    root = called.split(".")[0]
    known = root in modules
    module = modules.get(root, "")
    full = module + called[len(root) :] if known else called
    top = full.split(".")[0]
    if known and top in CLOCKS:
        yield called, "reads a clock or waits for one"
    elif known and ((top in CHANCE and full != "random.Random") or ".random." in full or full == "os.urandom"):
        yield called, "draws a lot"
    elif known and top in OUTSIDE:
        yield called, "reaches out of the process"
    elif (known and "distributed" in full) or (not known and called in BLOCKING):
        yield called, "may wait for somebody"
    elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield called, METHODS[node.func.attr]
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "join" and not node.args:
        yield called, "may wait for somebody"


def _names_of_sets(tree: ast.Module) -> frozenset[str]:
    """Variables and attributes (as written, such as `self._left`) that are given or declared a set somewhere."""
    found: set[str] = set()
    for _ in range(2):  # once more for names that are given other names of sets
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _is_set(node.value, frozenset(found)):
                found |= {ast.unparse(target) for target in node.targets}
            elif isinstance(node, ast.AnnAssign) and (
                _declares_set(node.annotation) or (node.value is not None and _is_set(node.value, frozenset(found)))
            ):
                found |= {ast.unparse(node.target), f"self.{ast.unparse(node.target)}"}
            elif isinstance(node, ast.arg) and node.annotation is not None and _declares_set(node.annotation):
                found.add(node.arg)
    return frozenset(found)


def _declares_set(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return ast.unparse(outer).split(".")[-1] in SETS


def _is_set(node: ast.expr, sets: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in ("set", "frozenset")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left, sets) or _is_set(node.right, sets)
    return ast.unparse(node) in sets
