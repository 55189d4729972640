"""Which code judges a claim, and whether it is the code that the claim is locked to."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from analysis.claims.judging import Judgement
from analysis.tables.criteria import criteria_of, locks_of
from analysis.tables.find import EXPERIMENTS
from analysis.tables.results import Tables
from lrm.errors import UserError
from lrm.plan.experiment import Experiment, load
from lrm.plan.scales import SCALES

JUDGING = SCALES[1:]  # all but smoke, whose runs show that everything works
Judge = Callable[[Tables, dict], Judgement]


def judge_of(experiment: str, claim: str) -> Judge | None:
    """The function that judges a claim of an experiment; None where nobody has written it."""
    name = f"analysis.claims.{experiment}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None
    return getattr(module, function_name(claim), None)


def function_name(claim: str) -> str:
    """The name of the function that judges a claim: ``m5a_2`` for ``M5a.2``."""
    return claim.lower().replace(".", "_")


def is_locked(experiment: str, claim: str) -> bool:
    """Whether today's code and configuration are those of the claim's lock; true without one."""
    held = locks_of(experiment).get(claim)
    if held is None:
        return True
    at = criteria_of(experiment).get(claim, {}).get("at")
    codes = {held["code"], *held.get("same_as", [])}
    configurations = {held["configuration"], *held.get("grown_to", [])}
    return (
        code_hash(experiment, claim) in codes
        and configuration_hash(experiment, at) in configurations
    )


def code_hash(experiment: str, claim: str) -> str:
    """Identity of the judging function and of all of ``analysis`` that it uses, in any depth.

    Comments, docstrings and formatting do not enter. Raises UserError where nobody judges it.
    """
    judge = judge_of(experiment, claim)
    if judge is None:
        name = function_name(claim)
        raise UserError(f"no function {name} in analysis/claims/{experiment}.py: write it first")
    parts = sorted(set(_used(inspect.unwrap(judge), set())))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def configuration_hash(experiment: str, at: str | None = None) -> str:
    """Identity of all runs of one seed that the experiment's YAML asks for, without a corpus.

    At the scale ``at``, else at the first of those that judge at which the experiment is made.
    """
    path = EXPERIMENTS / experiment / "config.yaml"
    return _runs_hash(path, path.read_bytes(), at)


def judging_scale(experiment: Experiment) -> str:
    """The first of the scales that judge at which the experiment is made."""
    return next(scale for scale in JUDGING if scale in experiment.header.at)


@cache
def _runs_hash(path: Path, text: bytes, at: str | None) -> str:
    """Of the configuration at ``path``, whose ``text`` this is now."""
    loaded = load(path)
    runs = loaded.runs(at or judging_scale(loaded), [0])
    ids = sorted(dataclasses.replace(run, corpus="any").id for run in runs)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]


def _used(thing: Any, seen: set[int]) -> Iterator[str]:
    """Syntax trees, or values, of ``thing`` and of what it names, as far as ``analysis`` has it."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not isinstance(thing, FunctionType | type):
        yield repr(thing)
        return
    if not thing.__module__.startswith("analysis."):
        return
    tree, named = _syntax(thing)
    yield tree
    names = vars(inspect.getmodule(thing))
    for name, attribute in named:
        if attribute is None and name in names:
            yield from _value(names[name], seen)
        elif attribute is not None:
            module = names.get(name)
            if isinstance(module, ModuleType) and module.__name__.startswith("analysis."):
                yield from _value(getattr(module, attribute), seen)


@cache
def _syntax(thing: FunctionType | type) -> tuple[str, list[tuple[str, str | None]]]:
    """The syntax tree of ``thing`` as text, and the names in it: ``a`` as (a, None), ``a.b`` too.

    Claims share most of what judges them.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    named = []
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            node.body = body[1:] or [ast.Pass()]
        if isinstance(node, ast.Name):
            named.append((node.id, None))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named.append((node.value.id, node.attr))
    return dump(tree), list(dict.fromkeys(named))


def dump(node: Any) -> str:
    """``ast.dump`` as Python 3.11 has it: later versions write the same tree in other words."""
    if isinstance(node, ast.AST):
        fields = []
        for name in node._fields:
            value = getattr(node, name, None)
            if (value is None and getattr(type(node), name, ...) is None) or (
                name == "type_params" and not value
            ):
                continue
            fields.append(f"{name}={dump(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(dump, node))}]"
    return repr(node)


def _value(value: Any, seen: set[int]) -> Iterator[str]:
    plain = isinstance(value, str | int | float | tuple | list | dict)
    if plain or (isinstance(value, FunctionType | type) or hasattr(value, "__wrapped__")):
        yield from _used(value, seen)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
