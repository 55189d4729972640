"""What weight decay of scale vectors does to losses, sizes and curvature (second paper, 2.2).

The size of vectors is the root mean square over entries, tensors and layers, 1 at the start.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities.designs import gap
from analysis.quantities.norms import at_stage_ends, at_step
from analysis.tables.results import Tables, kept

# Of the arms on Gemma, by the beginning of their names. The second paper has Muon alone.
KINDS = {
    "MUON": "Muon",
    "LONG": "Muon with more steps",
    "ADAM": "AdamW",
    "FAST": "AdamW with fast vectors",
}
OF_THE_PAPER = ("MUON", "LONG")
# Vectors of the arms on Gemma: in front of matrices, those of them without the final one, which
# stands in front of the LM head, that one alone, and those that stand in front of none.
SIDES = {
    "input": ("norm.mixer", "norm.mlp", "norm.final"),
    "block": ("norm.mixer", "norm.mlp"),
    "final": ("norm.final",),
    "output": ("norm.attention.q", "norm.attention.k", "norm.attention.out", "norm.mlp.down"),
}

_COLUMNS = ("column_multiplier_norm", "column_magnitude_multiplier_norm")


def decay_effect(tables: Tables, kind: str, side: str) -> pd.Series:
    """Loss with weight decay on the vectors of one side less that without, in nats, by seed.

    Mean of two such differences, one where the vectors of the other side decay and one where they
    do not.
    """
    other = "OUTPUT" if side == "input" else "INPUT"
    alone = gap(tables, f"{kind}_{side.upper()}", f"{kind}_NONE")
    return (alone + gap(tables, f"{kind}_ALL", f"{kind}_{other}")) / 2


@kept
def sizes(tables: Tables, arm: str, side: str) -> pd.DataFrame:
    """Size of the vectors of one side of ``arm``, all layers together: seeds × steps."""
    norms = tables.pick(kind="train", arm=arm, stat="effective_norm", tensor=SIDES[side])
    # Each tensor of a layer counts alike, also a head's vector, which is shorter.
    squares = norms.assign(value=norms["value"].astype(float) ** 2)
    return np.sqrt(squares.pivot_table("value", "seed", "step"))


def growth(tables: Tables, arm: str, side: str) -> pd.Series:
    """ln of the size of an arm's vectors at the end over that at the start, by seed."""
    size = sizes(tables, arm, side)
    return np.log(size.iloc[:, -1] / size.iloc[:, 0])


def curvature(tables: Tables, arm: str) -> pd.DataFrame:
    """ln of the largest curvature of ``arm`` as the warmup and the training end, by seed.

    Columns ``begin`` and ``end``.
    """
    rows = tables.pick(kind="train", arm=arm, stat="curvature")
    ends = {"begin": at_stage_ends(rows, tables.trained), "end": at_step(rows, np.inf)}
    found = {name: each.set_index("seed")["value"].astype(float) for name, each in ends.items()}
    return np.log(pd.DataFrame(found))


def room(tables: Tables, free: str, decayed: str) -> pd.Series:
    """How far vectors may grow under the decay of one arm, over the largest of another's, by seed.

    Under AdamW no entry of a vector can stay above 1/λ. The size is that of the largest vector of
    the arm ``free`` at the end, of one tensor and layer.
    """
    norms = at_step(tables.pick(kind="train", arm=free), np.inf)
    of_norms = norms["tensor"].astype("str").str.startswith("norm.")
    own = norms[of_norms & (norms["stat"] == "effective_norm")]
    # A magnitude that stands apart is a factor of what stands on a matrix's columns.
    columns = norms[norms["stat"].isin(_COLUMNS)]
    columns = columns.groupby(["seed", "tensor", "layer"], observed=True)["value"].prod()
    largest = pd.concat([own.set_index("seed")["value"], columns.droplevel([1, 2])])
    largest = largest.groupby("seed").max()
    runs = tables.trained
    rules = runs.loc[runs["arm"] == decayed, "description"].iloc[0]["rules"]
    decay = max(rule["weight_decay"] for rule in rules if rule["multiplier"])
    return 1 / (decay * largest.astype(float))
