"""Questions of knowledge: what a module has, what a function takes, what a docstring speaks of.

Each function yields examples without end of material, from held-out documents, in random order.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections import defaultdict
from collections.abc import Iterator

from lrm.exchange.evaluation.examples import (
    Example,
    Material,
    before,
    example,
    importable,
    look_up,
    others_like,
)

_THE_WORD = re.compile(r"\b(?:the|a|an|of|its) ([a-z]{5,12})\b")


def imports(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which of four names can be imported from a module."""
    found: dict[str, set[str]] = defaultdict(set)
    for _, tree in material.documents:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found[node.module] |= {each.name for each in node.names if each.name != "*"}
    there = look_up(importable(found, material.packages))
    pairs = sorted((module, name) for module, names in found.items() for name in names)
    draw.shuffle(pairs)
    others = sorted({name for names in found.values() for name in names})
    for module, name in pairs:
        has = there.get(module)
        if has is not None and name not in has:
            continue
        there_too = found[module] | (has or {}).keys()
        lacks = [other for other in others if other not in there_too]
        if wrong := [f" {other}" for other in others_like(draw, name, lacks)]:
            query = f"from {module} import"
            yield example(draw, query, f" {name}", wrong, has is not None)


def arguments(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which of four keyword arguments a function takes that is called by the document."""
    calls = [call for text, tree in material.documents for call in _calls(text, tree)]
    there = look_up(importable({module for module, *_ in calls}, material.packages))
    used: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, name, argument, _, _ in calls:
        used[module, name].add(argument)
    every = sorted({argument for _, _, argument, _, _ in calls})
    draw.shuffle(calls)
    for module, name, argument, text, place in calls:
        takes = there.get(module, {}).get(name)
        if takes is not None and argument not in takes:
            continue
        taken = used[module, name] | set(takes or ())
        lacks = [other for other in every if other not in taken]
        if wrong := [f"{other}=" for other in others_like(draw, argument, lacks)]:
            query = before(text, place, material.context)
            yield example(draw, query, f"{argument}=", wrong, takes is not None)


def _calls(text: str, tree: ast.Module) -> Iterator[tuple[str, str, str, str, int]]:
    """Module, name and keyword argument of each call of what is imported or built in.

    With the text, and the place of the argument in it. Places are counted in bytes, so that only
    plain text is read.
    """
    if not text.isascii():
        return
    modules: dict[str, str] = {}
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    defined = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id not in defined:
            whose = names.get(called.id, ("builtins", called.id))
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            if called.value.id not in modules:
                continue
            whose = modules[called.value.id], called.attr
        else:
            continue
        if whose[0] == "builtins" and not hasattr(builtins, whose[1]):
            continue
        for argument in node.keywords:
            if argument.arg:
                yield *whose, argument.arg, text, starts[argument.lineno - 1] + argument.col_offset


def docstrings(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which of four words a docstring goes on with, after "the", "a" or "of"."""
    found = []
    for text, tree in material.documents:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                said = ast.get_docstring(node, clean=False)
                place = text.find(said) if said else -1
                if place >= 0:
                    found.append((text, place, said))
    words = sorted({word for _, _, said in found for word in _THE_WORD.findall(said)})
    draw.shuffle(found)
    for text, place, said in found:
        # A word that the docstring has said before asks for no knowledge.
        new = [m for m in _THE_WORD.finditer(said) if m[1] not in said[: m.start(1)]]
        if not new:
            continue
        match = draw.choice(new)
        unsaid = [word for word in words if word not in said]
        if wrong := [f" {word}" for word in others_like(draw, match[1], unsaid)]:
            query = before(text, place + match.start(1) - 1, material.context)
            yield example(draw, query, f" {match[1]}", wrong, False)
