"""Questions of knowledge: what a module has, what a function takes, what a docstring speaks of.

Each function yields examples without end of material, from held-out documents, in random order.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
from collections import Counter, defaultdict
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
    """Which of four names can be imported from a module; it is imported to know them."""
    found: dict[str, set[str]] = defaultdict(set)
    for _, tree in material.documents:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found[node.module] |= {each.name for each in node.names if each.name != "*"}
    there = look_up(importable(found, material.packages))
    pairs = sorted((module, name) for module, names in found.items() for name in names)
    pairs = [(module, name) for module, name in pairs if name in there.get(module, {})]
    draw.shuffle(pairs)
    often = Counter(name for _, name in pairs)
    for module, name in pairs:
        query = f"from {module} import"
        if _says(query, name):
            continue
        lacks = often.keys() - found[module] - there[module].keys()
        if wrong := [f" {other}" for other in others_like(draw, name, lacks, often)]:
            yield example(draw, query, f" {name}", wrong, True)


def arguments(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which of four keyword arguments a function takes that is called by the document.

    Of functions whose parameters can be looked up, and that take no others.
    """
    calls = [call for text, tree in material.documents for call in _calls(text, tree)]
    there = look_up(importable({module for module, *_ in calls}, material.packages))
    calls = [call for call in calls
             if call[2] in (there.get(call[0], {}).get(call[1]) or ())]  # fmt: skip
    calls = [call for call in calls if not _says(before(*call[3:], material.context), call[2])]
    draw.shuffle(calls)
    # Of each function's argument one call: some are in every tenth call.
    calls = list({call[:3]: call for call in calls}.values())
    often = Counter(argument for _, _, argument, _, _ in calls)
    for module, name, argument, text, place in calls:
        lacks = often.keys() - set(there[module][name])
        if wrong := [f"{other}=" for other in others_like(draw, argument, lacks, often)]:
            query = before(text, place, material.context)
            yield example(draw, query, f"{argument}=", wrong, True)


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
            place = starts[argument.lineno - 1] + argument.col_offset
            # Some write spaces around the sign, which no choice has.
            if argument.arg and text.startswith(f"{argument.arg}=", place):
                yield *whose, argument.arg, text, place


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
    draw.shuffle(found)
    asked = []
    for text, place, said in found:
        # A word that the docstring has said before asks for no knowledge.
        new = [m for m in _THE_WORD.finditer(said) if m[1] not in said[: m.start(1)]]
        if new:
            asked.append((text, place, said, draw.choice(new)))
    often = Counter(match[1] for *_, match in asked)
    for text, place, said, match in asked:
        query = before(text, place + match.start(1) - 1, material.context)
        if _says(query, match[1]):
            continue
        unsaid = {word for word in often if word not in said}
        if wrong := [f" {word}" for word in others_like(draw, match[1], unsaid, often)]:
            yield example(draw, query, f" {match[1]}", wrong, False)


def _says(query: str, word: str) -> bool:
    """Whether a question has its answer in it: copying is no knowledge."""
    return re.search(rf"\b{re.escape(word)}\b", query) is not None
