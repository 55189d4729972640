"""Questions whose answer follows from their own text: brackets, strings, values, blocks.

All answers are checked by compiling or executing code.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from lrm.exchange.evaluation.examples import (
    Example,
    Material,
    before,
    compiles,
    example,
)
from lrm.plan.evaluation import CHOICES

_CLOSES = {"(": ")", "[": "]", "{": "}"}


def brackets(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which closing brackets end an expression, at a depth of three to five."""
    while True:
        depth = draw.randint(3, 5)
        opened = [draw.choice("([{") for _ in range(depth)]
        target, *inner = draw.sample(material.names, depth + 2)
        query = f"{target} = "
        for bracket, name in zip(opened, inner, strict=False):
            query += f"{bracket}{name}: " if bracket == "{" else f"{bracket}{name}, "
        query += inner[-1]
        right = "".join(_CLOSES[bracket] for bracket in reversed(opened))
        others: set[str] = set()
        for _ in range(50):
            changed = list(right)
            for place in draw.sample(range(depth), 2):
                changed[place] = draw.choice(")]}")
            others.add("".join(changed))
        wrong = sorted(others - {right})
        if len(wrong) < CHOICES - 1 or not compiles(query + right):
            continue
        wrong = draw.sample(wrong, CHOICES - 1)
        if not any(compiles(query + other) for other in wrong):
            yield example(draw, query, right, wrong, True)


def strings(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which quote and bracket end an argument, behind one that another quote ended."""
    while True:
        target, first, second, *words = draw.sample(material.names, 5)
        marks = draw.sample("'\"", 2)
        bracket = draw.choice("([{")
        query = f"{target} = {first}({marks[0]}{words[0]}{marks[0]}), "
        query += f"{'' if bracket == '{' else second}{bracket}{marks[1]}{words[1]}"
        closing = _CLOSES[bracket]
        other = draw.choice([each for each in ")]}" if each != closing])
        right = marks[1] + closing
        wrong = [marks[0] + closing, marks[1] + other, marks[0] + other]
        if compiles(query + right) and not any(compiles(query + each) for each in wrong):
            yield example(draw, query, right, wrong, True)


def assignments(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which value a variable has, after four lines that assign it and others.

    Each line has the answer in a quarter of the questions. Where lines stand in front of it, one
    of them assigns the variable a value that it has no more.
    """
    while True:
        asked, *others = draw.sample(material.names, CHOICES)
        values = draw.sample(range(10), CHOICES)
        place = draw.randrange(CHOICES)
        assigned = [draw.choice(others) for _ in values]
        assigned[place] = asked
        if place:
            assigned[draw.randrange(place)] = asked
        code = [f"{name} = {value}" for name, value in zip(assigned, values, strict=True)]
        wrong = [str(value) for value in values if value != values[place]]
        yield from _doctest(draw, code, asked, str(values[place]), wrong)


def lookups(material: Material, draw: random.Random) -> Iterator[Example]:
    """Which value a dictionary above has under a key."""
    while True:
        target, *keys = draw.sample(material.names, CHOICES + 1)
        values = draw.sample(range(10), CHOICES)
        inside = ", ".join(f"'{key}': {value}" for key, value in zip(keys, values, strict=True))
        place = draw.randrange(CHOICES)
        wrong = [str(value) for value in values if value != values[place]]
        code = [f"{target} = {{{inside}}}"]
        yield from _doctest(draw, code, f"{target}['{keys[place]}']", str(values[place]), wrong)


def _doctest(
    draw: random.Random, code: list[str], asked: str, right: str, wrong: list[str]
) -> Iterator[Example]:
    """The lines of ``code`` and the expression ``asked``, as a doctest writes them."""
    found: dict[str, object] = {}
    exec("\n".join(code), found)
    if repr(eval(asked, found)) == right:
        query = "".join(f">>> {line}\n" for line in [*code, asked])
        yield example(draw, query, right, wrong, True)


def indentation(material: Material, draw: random.Random) -> Iterator[Example]:
    """How far the line after the head of a block is indented.

    With any other choice the document does not compile. As many questions have none, one, two or
    three choices that are indented farther.
    """
    found = []
    for text, _ in material.documents:
        lines, place = text.split("\n"), 0
        for head, line in itertools.pairwise(lines):
            place += len(head) + 1
            deep, deeper = map(_indent, (head, line))
            if head.rstrip().endswith(":") and line.strip() and deep >= 8 and deeper == deep + 4:
                found.append((text, place, deep, line))
    draw.shuffle(found)
    for text, place, deep, line in found:
        said, rest = line.strip(), text[place + len(line) :]
        # A block of one line compiles at any depth.
        if compiles(text[:place] + " " * (deep + 8) + said + rest):
            continue
        less = draw.sample((0, deep - 4, deep), CHOICES - 1)
        more = [deep + 8, deep + 12, deep + 16]
        farther = draw.randrange(CHOICES)
        chosen = [*less[farther:], *more[:farther]]
        wrong = [" " * n + said for n in chosen]
        if not any(compiles(text[:place] + other + rest) for other in wrong):
            right = " " * (deep + 4) + said
            yield example(draw, before(text, place, material.context), right, wrong, True)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
