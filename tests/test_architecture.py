"""The plan of the house, read from the syntax trees: who imports whom, who may send, where nothing may branch."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {  # room: the rooms that it may import besides itself
    "spec": (),
    "verification": ("spec",),
    "engine": ("spec", "kernels", "models"),
    "kernels": (),
    "models": ("kernels",),
    "cli": ("spec", "verification", "engine", "kernels", "models"),
}
FILES = {path: ast.parse(path.read_text(), str(path)) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}
COMMUNICATION = {
    *("isend", "irecv", "batch_isend_irecv", "P2POp", "send_object_list", "recv_object_list", "monitored_barrier"),
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single"),
    *("broadcast_object_list", "reduce_scatter", "reduce_scatter_tensor", "init_process_group", "new_group"),
}
# Where a branch on them would be a second copy of the protocol. Roles enter through compiled rows alone.
FREE_OF_BRANCHES = ("engine/loop/run.py", "engine/bindings.py", "engine/scheduling/", "engine/workers/")
PROTOCOL_WORDS = {"rank", "ranks", "role", "roles", "place", "pass"}
USUAL_LINES, MOST_LINES = 400, 600


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute; empty for anything else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def wrong_imports(path: Path, tree: ast.AST) -> list[str]:
    own = room(path)
    found = []
    for line, module in imports(tree):
        parts = module.split(".")
        if parts[0] == "headway" and len(parts) > 1 and parts[1] not in (own, *ROOMS[own]):
            found.append(f"{name(path)}:{line} imports {module}")
        if own == "spec" and parts[0] not in (*sys.stdlib_module_names, "headway", "networkx"):
            found.append(f"{name(path)}:{line} imports {module}")
    return found


def communication(path: Path, tree: ast.AST) -> list[str]:
    """Uses of `torch.distributed`, and of anything named as its operations, outside engine/wires."""
    if name(path).startswith("engine/wires/"):
        return []
    modules = [module for _, module in imports(tree)]
    found = [f"{name(path)} imports {module}" for module in modules if module.startswith("torch.distributed")]
    others = any(module.split(".")[0] in ("zmq", "multiprocessing") for module in modules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            word = node.attr if isinstance(node, ast.Attribute) else node.id
            if word in COMMUNICATION or dotted(node) == "torch.distributed":
                found.append(f"{name(path)}:{node.lineno} uses {word}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            word, owner = node.func.attr, dotted(node.func.value)
            if word in ("send", "recv", "barrier") and not others and not owner.endswith("desk"):
                found.append(f"{name(path)}:{node.lineno} calls {word}")
            # Whoever waits in the loop's world waits for the outside world alone.
            if word == "wait" and name(path).startswith(FREE_OF_BRANCHES) and owner != "self._desk":
                found.append(f"{name(path)}:{node.lineno} waits for {owner}")
    return found


def deciders(tree: ast.AST) -> Iterator[ast.expr]:
    """Every expression that decides which way the program goes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject
            yield from (case.guard for case in node.cases if case.guard is not None)
        elif isinstance(node, ast.BoolOp):
            yield from node.values
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Tuple | ast.List | ast.Dict):
            yield node.slice


def protocol_branches(path: Path, tree: ast.AST) -> list[str]:
    found = []
    for test in deciders(tree):
        for node in ast.walk(test):
            word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if PROTOCOL_WORDS & set(word.lower().strip("_").split("_")):
                found.append(f"{name(path)}:{test.lineno} decides by {word}")
    return found


def sloppiness(path: Path, tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            found.append(f"{name(path)}:{node.lineno} asserts")
        elif isinstance(node, ast.ExceptHandler) and node.type is None:
            found.append(f"{name(path)}:{node.lineno} excepts everything")
        elif isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) == 3:
            found.append(f"{name(path)}:{node.lineno} gets an attribute with a default")
    return found


@pytest.mark.parametrize("find", [wrong_imports, communication, sloppiness])
def test_the_house_is_built_as_planned(find):
    assert len(FILES) > 50
    assert [line for path, tree in FILES.items() for line in find(path, tree)] == []


def test_nothing_branches_on_rank_role_or_pass():
    watched = [path for path in FILES if name(path).startswith(FREE_OF_BRANCHES)]
    assert {room for room in FREE_OF_BRANCHES if not any(name(p).startswith(room) for p in watched)} == set()
    assert [line for path in watched for line in protocol_branches(path, FILES[path])] == []


@pytest.mark.parametrize(
    ("find", "file", "source"),
    [
        (wrong_imports, "spec/table.py", "import torch"),
        (wrong_imports, "spec/table.py", "def f():\n    from z3 import Solver"),
        (wrong_imports, "spec/table.py", "from headway.engine.loop import run"),
        (wrong_imports, "verification/model.py", "import headway.engine.loop"),
        (wrong_imports, "engine/rank.py", "from headway.verification import model"),
        (wrong_imports, "engine/rank.py", "from headway import cli"),
        (wrong_imports, "kernels/base.py", "from headway.engine import messages"),
        (communication, "engine/bindings.py", "import torch.distributed as dist"),
        (communication, "engine/bindings.py", "from torch import distributed"),
        (communication, "engine/bindings.py", "import torch\ntorch.distributed.barrier()"),
        (communication, "engine/workers/worker.py", "dist.isend(x, 1)"),
        (communication, "engine/workers/worker.py", "work.wait()"),
        (communication, "engine/scheduling/policy.py", "wire.recv(x)"),
        (communication, "models/decoder.py", "group.all_reduce(x)"),
        (protocol_branches, "engine/bindings.py", "if rank == 0: pass"),
        (protocol_branches, "engine/bindings.py", "x = 1 if self._rank else 2"),
        (protocol_branches, "engine/bindings.py", "while this_pass < 3: pass"),
        (protocol_branches, "engine/bindings.py", "match config.role:\n    case 'first': pass"),
        (protocol_branches, "engine/bindings.py", "x = is_first_rank and y"),
        (protocol_branches, "engine/bindings.py", "x = (a, b)[rank]"),
        (protocol_branches, "engine/bindings.py", "x = [y for y in z if y.pass_number > 1]"),
        (sloppiness, "cli/serve.py", "assert x"),
        (sloppiness, "cli/serve.py", "try:\n    f()\nexcept:\n    pass"),
        (sloppiness, "cli/serve.py", "getattr(x, 'y', None)"),
    ],
)
def test_a_breach_is_seen(find, file: str, source: str):
    assert find(ROOT / file, ast.parse(source)) != []


def test_what_is_allowed_is_not_called_a_breach():
    for find, file, source in (
        (communication, "engine/wires/gloo.py", "import torch.distributed as dist\ndist.isend(x, 1)"),
        (communication, "engine/desk.py", "import zmq\nsocket.recv()"),
        (communication, "engine/bindings.py", "self._desk.wait()"),
        (wrong_imports, "spec/table.py", "import networkx\nfrom headway.spec.language import Expr"),
        (protocol_branches, "engine/bindings.py", "if passed or bypass: f(rank, this_pass)"),
        (sloppiness, "cli/serve.py", "try:\n    getattr(x, name)\nexcept ValueError:\n    raise"),
    ):
        assert find(ROOT / file, ast.parse(source)) == []


def test_files_stay_readable():
    paths = [*FILES, *sorted((ROOT / "tests").rglob("*.py"))]
    lengths = {name(path): len(path.read_text().splitlines()) for path in paths}
    long = {path: lines for path, lines in lengths.items() if lines > USUAL_LINES}
    assert {path: lines for path, lines in long.items() if lines > MOST_LINES} == {}
    assert len(long) <= len(lengths) // 20, long


def test_test_files_have_names_of_their_own():
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [each for each, count in names.items() if count > 1] == []


def test_every_folder_is_packaged():
    """A wheel must hold what an editable install finds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = set(project["tool"]["setuptools"]["packages"])
    folders = {name(path.parent) for path in FILES} - {"."}
    assert packaged == {"headway"} | {f"headway.{folder.replace('/', '.')}" for folder in folders}
