"""``python -m analysis.needs fig1``: what has to be trained before a figure can be drawn.

Prints a line for each experiment that the figures read: its ``run.py`` and, where a figure needs
only some runs, patterns of their labels. With ``--sweep`` prints the same on one line, as the
arguments of ``lrm.sweep``. Reads the figures' files without loading them, so that
``make`` has its answer at once.
"""

from __future__ import annotations

import ast
import contextlib
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lrm.cli import guarded
from lrm.errors import UserError

_FIGURES = Path(__file__).parent / "figures"
_EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def figures() -> list[str]:
    """The names of all figures."""
    return sorted(path.stem for path in _FIGURES.glob("[a-z]*.py"))


def experiments_of(figure: str) -> dict[str, tuple[str, ...]]:
    """``EXPERIMENTS`` of a figure: by experiment patterns of the labels needed (none: all).

    Raises UserError for an unknown figure, and where they are not written out.
    """
    needed = _written_out(figure, "EXPERIMENTS")
    if needed is None:
        raise UserError(
            f'{_FIGURES / figure}.py: write out EXPERIMENTS = ("name of an experiment",)'
        )
    return patterns_of(needed)


def read_by(figure: str) -> set[str]:
    """The experiments that a figure reads: needed, or drawn too where they have runs.

    Raises UserError as ``experiments_of``.
    """
    needed = {experiment_of(key) for key in experiments_of(figure)}
    return needed | set(_written_out(figure, "IF_THERE") or ())


def _written_out(figure: str, name: str) -> Any:
    """What a figure's file assigns to ``name``; None where it does not, or not as a literal."""
    if figure not in figures():
        raise UserError(f"unknown figure {figure!r}; there are {', '.join(figures())}")
    text = (_FIGURES / f"{figure}.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            with contextlib.suppress(ValueError):
                return ast.literal_eval(node.value)
    return None


def patterns_of(needed: Collection[str] | Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """``EXPERIMENTS`` as a figure has it, with the patterns of a claim where it names one."""
    if not isinstance(needed, Mapping):
        return dict.fromkeys(needed, ())
    return {
        key: _of_claim(experiment_of(key), only) if isinstance(only, str) else only
        for key, only in needed.items()
    }


def experiment_of(key: str) -> str:
    """The experiment of a key of ``EXPERIMENTS``, which may name a part: ``experiment/part``."""
    return key.partition("/")[0]


def _of_claim(experiment: str, claim: str) -> tuple[str, ...]:
    from lrm.plan.claims import asked_by  # reads YAML, which most figures need not wait for

    return tuple(asked_by(_EXPERIMENTS / experiment, claim)[1])


def wanted(names: list[str]) -> dict[str, tuple[str, ...]]:
    """``experiments_of`` several figures together; an experiment that one needs whole is whole."""
    needed: dict[str, tuple[str, ...]] = {}
    for name in names:
        for key, only in experiments_of(name).items():
            experiment = experiment_of(key)
            both = only and needed.get(experiment, only)
            needed[experiment] = both and tuple(dict.fromkeys((*both, *only)))
    return needed


def main() -> None:
    """Print the calls; exits with 2 on an unknown figure."""
    guarded(lambda: _main(sys.argv[1:]))


def _main(names: list[str]) -> None:
    if names[:1] == ["--sweep"]:
        print(shlex.join(_of_sweep(wanted(names[1:]))))
        return
    for experiment, only in wanted(names).items():
        patterns = [word for pattern in only for word in ("--only", pattern)]
        print(shlex.join([f"experiments/{experiment}/run.py", *patterns]))


def _of_sweep(needed: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The arguments of ``lrm.sweep`` for these experiments, whole or some of their runs."""
    folders = [f"experiments/{experiment}" for experiment in needed]
    patterns = [f"{experiment}/{one}" for experiment, only in needed.items() for one in only]
    return [*folders, *(f"--only={pattern}" for pattern in patterns)]


if __name__ == "__main__":
    main()
