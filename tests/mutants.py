"""Mutants of the judging functions, and the share of them that the planted worlds notice.

``python tests/mutants.py`` changes each function of ``analysis/claims`` that judges, one small
change at a time, and runs the tests of that experiment's worlds against it. A mutant that no test
notices survives. It prints the survivors, and fails where fewer than 95% are killed; those that
cannot be told from the original are listed, with the reason, in ``EQUIVALENT``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
LEAST = 0.95
MAKERS = {"at_least", "at_most", "within"}
# (experiment, change, code as unparsed) of mutants that compute the same: the reason.
EQUIVALENT: dict[tuple[str, str, str], str] = {}


class Mutation:
    """One place of a syntax tree, what is done to it, and how it then reads.

    ``function`` is the name of the function around it.
    """

    def __init__(self, tree: ast.Module, place: int, change: str, function: str):
        self.function = function
        self.tree, self.place, self.change = copy.deepcopy(tree), place, change
        node = list(ast.walk(self.tree))[place]
        self.line = node.lineno
        self.before = ast.unparse(node)
        getattr(self, f"_{change}")(node)
        self.code = compile(ast.fix_missing_locations(self.tree), "<mutant>", "exec")

    def __str__(self) -> str:
        return f"line {self.line}, {self.change}: {self.before[:150]}"

    def _deleted(self, node: ast.AST) -> None:
        """A part that always holds stands for one that is not asked for."""
        node.args[1] = ast.parse("[0.0, 0.0, 0.0] * 40", mode="eval").body
        node.args[2:] = [ast.Constant(0.0)] * (2 if node.func.id == "within" else 1) + node.args[
            4 if node.func.id == "within" else 3 :
        ]
        # Zeros would lie below what matters, and the part would not hold.
        node.keywords = [each for each in node.keywords if each.arg != "matters"]

    def _zeroed(self, node: ast.AST) -> None:
        node.args[1] = ast.BinOp(node.args[1], ast.Mult(), ast.Constant(0.0))

    def _negated(self, node: ast.AST) -> None:
        node.args[1] = ast.UnaryOp(ast.USub(), node.args[1])

    def _reversed(self, node: ast.AST) -> None:
        """at_least becomes at_most, and the reverse."""
        node.func.id = {"at_least": "at_most", "at_most": "at_least"}[node.func.id]

    def _exchanged(self, node: ast.AST) -> None:
        """The two sides of a difference, a quotient or a pair of names."""
        if isinstance(node, ast.BinOp):
            node.left, node.right = node.right, node.left
        else:
            node.elts[0], node.elts[1] = node.elts[1], node.elts[0]

    def _shifted(self, node: ast.AST) -> None:
        """A threshold moves far to the permissive side."""
        permissive = -1e6 if node.func.id == "at_least" else 1e6
        node.args[2] = ast.Constant(permissive)
        if node.func.id == "within":
            node.args[2], node.args[3] = ast.Constant(-1e6), ast.Constant(1e6)


def mutations(source: str) -> Iterator[Mutation]:
    """Every mutation of the functions of a judging module."""
    tree = ast.parse(source)
    inside = {
        id(node): function.name
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    sizes = {  # |a − b| is |b − a|
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "abs"
    }
    for place, node in enumerate(ast.walk(tree)):
        if id(node) not in inside or id(node) in sizes:
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in MAKERS:
                yield Mutation(tree, place, "deleted", inside[id(node)])
                yield Mutation(tree, place, "zeroed", inside[id(node)])
                yield Mutation(tree, place, "negated", inside[id(node)])
                yield Mutation(tree, place, "shifted", inside[id(node)])
            if node.func.id in MAKERS - {"within"}:
                yield Mutation(tree, place, "reversed", inside[id(node)])
        elif _is_gap(node) or _is_pair(node):
            yield Mutation(tree, place, "exchanged", inside[id(node)])


def _is_gap(node: ast.AST) -> bool:
    """A difference or a quotient."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div)


def _is_pair(node: ast.AST) -> bool:
    """Two names that are assigned together: ``without, learned = …``."""
    if not (isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store)):
        return False
    return len(node.elts) == 2 and all(isinstance(name, ast.Name) for name in node.elts)


class Worlds:
    """The tests of an experiment's worlds, collected once, so that a mutant costs only the calls.

    They have parameters and no fixtures, and keep their worlds.
    """

    def __init__(self, experiment: str):
        path = ROOT / "tests" / "worlds" / f"test_{experiment}.py"
        self.items: list[pytest.Item] = []
        options = ["--collect-only", "-q", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            pytest.main([*options, str(path)], plugins=[self])

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """pytest calls this."""
        self.items = session.items

    def run(self, function: str = "") -> None:
        """All of them, those named by the claim that ``function`` judges first.

        Raises what the first that fails raises.
        """
        for item in sorted(self.items, key=lambda item: function not in _as_function(item.name)):
            item.obj(**(item.callspec.params if hasattr(item, "callspec") else {}))


def _as_function(name: str) -> str:
    return name.lower().replace(".", "_")


def survivors(experiment: str, found: list[Mutation], workers: int) -> list[Mutation]:
    """Those on which the tests of the experiment's worlds pass, each in a process of its own."""
    module = importlib.import_module(f"analysis.claims.{experiment}")
    worlds = Worlds(experiment)
    warnings.simplefilter("ignore")
    worlds.run()
    running: dict[int, Mutation] = {}
    alive, left = [], list(reversed(found))
    while left or running:
        while left and len(running) < workers:
            mutation = left.pop()
            running[_tried(worlds, module, mutation)] = mutation
        process, status = os.wait()
        mutation = running.pop(process)
        if os.WIFSIGNALED(status):  # by the system, and by no test
            raise RuntimeError(f"{mutation}: ended by signal {os.WTERMSIG(status)}")
        if status == 0:
            alive.append(mutation)
    return sorted(alive, key=lambda mutation: mutation.line)


def _tried(worlds: Worlds, module: ModuleType, mutation: Mutation) -> int:
    """Start the tests on a mutant; the process, whose code is 0 where nothing was noticed."""
    process = os.fork()
    if process:
        return process
    code = 1  # code that cannot run is noticed
    with contextlib.suppress(BaseException):
        exec(mutation.code, module.__dict__)
        worlds.run(mutation.function)
        code = 0
    os._exit(code)


def main() -> int:
    """Print each experiment's share of killed mutants, and the survivors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("experiments", nargs="*")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    every = sorted(path.stem[5:] for path in (ROOT / "tests" / "worlds").glob("test_*.py"))
    killed = total = 0
    for experiment in options.experiments or every:
        source = Path(importlib.import_module(f"analysis.claims.{experiment}").__file__)
        found = list(mutations(source.read_text(encoding="utf-8")))
        alive = survivors(experiment, found, options.workers)
        told = [m for m in alive if (experiment, m.change, m.before) not in EQUIVALENT]
        count = len(found) - (len(alive) - len(told))
        print(f"{experiment}: {count - len(told)} of {count} killed", flush=True)
        for mutant in told:
            print(f"  survives: {mutant}", flush=True)
        killed, total = killed + count - len(told), total + count
    share = killed / max(total, 1)  # a judge that only calls another's has no mutants of its own
    print(f"{killed} of {total} mutants killed, {share:.1%}; {LEAST:.0%} are asked for")
    return 0 if killed >= LEAST * total else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
