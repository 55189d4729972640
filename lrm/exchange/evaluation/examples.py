"""Multiple-choice questions about Python, and what checks their answers."""

from __future__ import annotations

import ast
import json
import keyword
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lrm.plan.evaluation import CHOICES

# Modules that do something when they are imported.
_NOISY = {"antigravity", "this", "idlelib", "turtledemo", "test", "tests", "__main__"}
# Seconds for one import, and for all of them.
_ONE, _ALL = 20, 900
_WORD = re.compile(r"\b[a-z]{3,9}\b")


@dataclass(frozen=True)
class Example:
    """``query`` is continued by one of ``choices``; that at ``gold`` is right.

    ``checked`` where code was executed to know it, not only read.
    """

    query: str
    choices: tuple[str, ...]
    gold: int
    checked: bool


@dataclass(frozen=True)
class Material:
    """What questions are made of: the documents that are Python, with their syntax trees.

    ``names`` are short words of all documents that may name a variable, sorted. ``packages`` may be
    imported. ``context`` is how many characters stand before a question, at most.
    """

    documents: tuple[tuple[str, ast.Module], ...]
    names: tuple[str, ...]
    packages: tuple[str, ...]
    context: int

    @classmethod
    def of(cls, texts: Sequence[str], packages: tuple[str, ...], context: int) -> Material:
        """Of held-out documents."""
        trees = ((text, _compiled(text, ast.PyCF_ONLY_AST)) for text in texts)
        words = {word for text in texts for word in _WORD.findall(text)}
        return cls(
            tuple((text, tree) for text, tree in trees if tree is not None),
            tuple(sorted(word for word in words if not keyword.iskeyword(word))),
            packages,
            context,
        )


def example(
    draw: random.Random, query: str, right: str, wrong: Sequence[str], checked: bool
) -> Example:
    """The example with its choices in random order."""
    choices = [right, *wrong]
    draw.shuffle(choices)
    return Example(query, tuple(choices), choices.index(right), checked)


def others_like(
    draw: random.Random, right: str, wrong: Collection[str], often: Mapping[str, float]
) -> list[str]:
    """So many of ``wrong`` as a question needs, about as long as ``right``; none where too few.

    Else the shortest choice would often be the likeliest. Each is drawn as ``often`` as it is the
    answer of other questions. Else a model would be right that knows common words and no question.
    """
    if len(wrong) < CHOICES:
        return []
    apart = {other: abs(len(other) - len(right)) for other in sorted(wrong)}
    widest = sorted(apart.values())[min(len(apart), 4 * CHOICES) - 1]
    # The largest of these keys are a sample without replacement, by weight (Efraimidis, Spirakis).
    keys = {other: draw.random() ** (1 / often[other])
            for other, far in apart.items() if far <= widest}  # fmt: skip
    return sorted(keys, key=keys.__getitem__)[1 - CHOICES :]


def _compiled(code: str, flags: int = 0) -> Any:
    """``code`` compiled by Python; none where it cannot be."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what Python no longer likes in old documents
        try:
            return compile(code, "<example>", "exec", flags)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def compiles(code: str) -> bool:
    """Whether ``code`` is Python."""
    return _compiled(code) is not None


def before(text: str, place: int, context: int) -> str:
    """At most ``context`` characters in front of ``place``, from the beginning of a line."""
    window = text[max(0, place - context) : place]
    if place > context and "\n" in window:
        window = window.partition("\n")[2]
    return window


def importable(modules: Collection[str], packages: Collection[str]) -> list[str]:
    """Those of ``modules`` that may be imported: the standard library's and those of packages."""
    allowed = (sys.stdlib_module_names | {"builtins", *packages}) - _NOISY
    return sorted(m for m in modules if m.split(".")[0] in allowed and not _NOISY & {*m.split(".")})


def look_up(modules: Sequence[str]) -> dict[str, dict[str, list[str] | None]]:
    """By module the names that it has, found by importing it in another process.

    Each name has the parameters of what is called by it: None where it has no signature or takes
    any. Modules that cannot be imported are missing. A process that dies, or takes too long for
    all, leaves those before.
    """
    if not modules:
        return {}
    try:
        said = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _LOOK_UP.format(seconds=_ONE)],
            input=json.dumps(list(modules)).encode(), capture_output=True, timeout=_ALL,
        ).stdout  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
    whole = said[: said.rfind(b"\n") + 1].splitlines()
    lines = (line for line in whole if line.startswith(b'{"module": '))
    found = (json.loads(line) for line in lines)
    return {record["module"]: record["names"] for record in found}


_LOOK_UP = """
import importlib, inspect, json, pkgutil, signal, sys
def late(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, late)
def parameters(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except BaseException:
        return None
    if any(p.kind is p.VAR_KEYWORD for p in found):
        return None
    return [p.name for p in found if p.kind is not p.POSITIONAL_ONLY]
modules = json.load(sys.stdin)
out = sys.stdout
sys.stdout = sys.stderr
for name in modules:
    signal.alarm({seconds})
    try:
        module = importlib.import_module(name)
        names = {{n: parameters(getattr(module, n, None)) for n in dir(module)}}
        # Submodules can be imported from it too, whether or not something has done so.
        for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
            names.setdefault(found.name, None)
    except BaseException:
        continue
    finally:
        signal.alarm(0)
    print(json.dumps({{"module": name, "names": names}}), file=out, flush=True)
"""
