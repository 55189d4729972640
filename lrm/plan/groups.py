"""Names that stand for several patterns of addresses in ``match``.

A rule whose ``match`` is such a name becomes one rule for each of its patterns, in their order.
``name@2-5`` gives every pattern these layers. A run's id is the hash of the rules so spelled out.
A group therefore never changes: a new tensor, or another order, is a group of another name.

Roles such as ``matrices`` (``lrm.model.tensors.ROLES``) are no groups. They stay in the rule as
they are written, and match the tensors of every model.
"""

from __future__ import annotations

from typing import Any

GROUPS = {
    "ssm.matrices": ("ssm.[zxBC]", "ssm.dt", "ssm.out"),
    # What a block may lack, by ``model.mixer``; a preset adds ``optional: true``.
    "mixers": ("attention.*", "ssm.[zxBC]", "ssm.dt", "ssm.out"),
    # Every matrix of a block.
    "hidden": ("attention.*", "ssm.[zxBC]", "ssm.dt", "ssm.out", "mlp.*"),
    # But dt, whose rows are as few as the SSM's heads.
    "hidden.but_dt": ("attention.*", "mlp.*", "ssm.[zxBCo]*"),
    # The RMSNorm weights in front of mixers and MLPs.
    "norms.of_blocks": ("norm.mixer", "norm.mlp"),
}


def patterns(match: str) -> tuple[str, ...]:
    """The patterns that ``match`` stands for; itself where it names no group."""
    name, at, layers = match.partition("@")
    return tuple(f"{pattern}{at}{layers}" for pattern in GROUPS.get(name, (name,)))


def spelled_out(rules: list[Any]) -> list[Any]:
    """``rules`` of a YAML file with every group in its place; what is no rule stays as it is."""
    found: list[Any] = []
    for rule in rules:
        is_rule = isinstance(rule, dict) and isinstance(rule.get("match"), str)
        found += [{**rule, "match": m} for m in patterns(rule["match"])] if is_rule else [rule]
    return found
