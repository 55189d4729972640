"""Judging functions of SV16 to SV21 and X3: the unified design (second paper, 4.2, 4.3).

Gaps are losses of the unified design less those of standard vectors, in nats per token, by seed; in
X3 also those of the main paper's multipliers.
"""

from __future__ import annotations

import pandas as pd

from analysis.claims.judging import Judgement, Part, at_least, at_most, judgement
from analysis.quantities.designs import at_share, course_of_gap, gap
from analysis.quantities.recall import OTHER, gap_among
from analysis.quantities.unified import (
    STANDARD,
    UNIFIED,
    constant_share,
    named,
    size_gaps,
    sizes,
    slopes,
)
from analysis.tables.results import Tables

NOT_HERE = "its arms do not run at this scale"


def sv16(tables: Tables, criterion: dict) -> Judgement:
    """The unified design has the lower loss at every size, at one LR; ours: at its own."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    widths = sizes(tables)["width"]
    parts = [
        at_most(f"unified − standard at width {widths[ending]} (nats)", values, limit,
                f"width {widths[ending]}", matters=matters)
        for ending, values in size_gaps(tables).items()
    ]  # fmt: skip
    parts.append(at_most("unified at its own LR − standard (nats)",
                         gap(tables, "UNIFIED_TUNED", STANDARD), limit, "at its own LR",
                         ours=True, matters=matters))  # fmt: skip
    return judgement(criterion, parts)


def sv17(tables: Tables, criterion: dict) -> Judgement:
    """The gap widens during training, at every size; where there is none, that says nothing."""
    limits, matters = criterion["thresholds"], criterion["smallest_effect"]
    parts: list[Part] = []
    contrast: list[Part] = []
    for ending, width in sizes(tables)["width"].items():
        gaps, group = course_of_gap(tables, *named(ending)), f"width {width}"
        end = at_share(gaps, 1.0)
        parts.append(at_most(f"gap at the end − at half the steps, {group} (nats)",
                             end - at_share(gaps, 0.5), 0.0, group, matters=matters))  # fmt: skip
        contrast.append(at_most(f"gap at the end, {group} (nats)", end, limits["ahead"], group))
    return judgement(criterion, parts, contrast=contrast)


def sv18(tables: Tables, criterion: dict) -> Judgement:
    """Over sizes the gap stays, and the loss falls more steeply with the unified design."""
    limits = criterion["thresholds"]
    gaps = list(size_gaps(tables).values())
    found = slopes(tables)
    parts = [
        at_most(f"gap at the largest size − {limits['share']:g} × gap at the smallest (nats)",
                gaps[-1] - limits["share"] * gaps[0], 0.0, "the gap stays"),
        at_least("exponent of the loss in parameters, unified − standard",
                 found[UNIFIED] - found[STANDARD], 0.0, "steeper"),
    ]  # fmt: skip
    contrast = [at_most("gap at the smallest size (nats)", gaps[0], limits["ahead"],
                        "the gap stays")]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def sv19(tables: Tables, criterion: dict) -> Judgement:
    """With a mixture of experts the unified design has the lower loss too."""
    if not _ran(tables, "MOE_UNIFIED", "MOE_STANDARD"):
        return judgement(criterion, [], NOT_HERE)
    name, limit = "unified − standard, experts (nats)", criterion["thresholds"]["better"]
    gaps = gap(tables, "MOE_UNIFIED", "MOE_STANDARD")
    return judgement(criterion, [at_most(name, gaps, limit, matters=criterion["smallest_effect"])])


def sv20(tables: Tables, criterion: dict) -> Judgement:
    """With Muon the unified design has the lower loss too."""
    name, limit = "unified − standard, Muon (nats)", criterion["thresholds"]["better"]
    gaps = gap(tables, "MUON_UNIFIED", "MUON_STANDARD")
    return judgement(criterion, [at_most(name, gaps, limit, matters=criterion["smallest_effect"])])


def sv20_2(tables: Tables, criterion: dict) -> Judgement:
    """SV20 by the median, because some models learn to copy; ours: of tokens that are no copies."""
    limit, matters = criterion["thresholds"]["better"], criterion["smallest_effect"]
    arms = ("MUON_UNIFIED", "MUON_STANDARD")
    parts = [
        at_most("unified − standard, Muon (nats)", gap(tables, *arms), limit, "all tokens",
                matters=matters, robust=True),
        at_most("unified − standard, Muon, tokens that end no pair seen before (nats)",
                gap_among(tables, OTHER, *arms), limit, "new pairs", matters=matters,
                ours=True),
    ]  # fmt: skip
    return judgement(criterion, parts)


def sv21(tables: Tables, criterion: dict) -> Judgement:
    """With WSD the gap grows while the LR is constant, and does not shrink while it falls."""
    limits, matters = criterion["thresholds"], criterion["smallest_effect"]
    gaps = course_of_gap(tables, "WSD_UNIFIED", "WSD_STANDARD")
    stable = constant_share(tables, "WSD_UNIFIED")
    late = at_share(gaps, stable)
    parts = [
        at_most("gap at the end of the stable stage − at half of it (nats)",
                late - at_share(gaps, stable / 2), 0.0, "grows while the LR is constant",
                matters=matters),
        at_most("gap at the end − at the end of the stable stage (nats)",
                at_share(gaps, 1.0) - late, limits["kept"], "does not shrink while it falls"),
    ]  # fmt: skip
    contrast = [at_most("gap at the end of the stable stage (nats)", late, limits["ahead"])]
    return judgement(criterion, parts, contrast=contrast)


def x3(tables: Tables, criterion: dict) -> Judgement:
    """While the LR falls the gap of multipliers shrinks, that of the unified design does not."""
    limits, matters = criterion["thresholds"], criterion["smallest_effect"]
    if not _ran(tables, "WSD_MULTIPLIERS", "WSD_UNIFIED", "WSD_STANDARD"):
        return judgement(criterion, [], NOT_HERE)
    changes: dict[str, pd.Series] = {}
    contrast: list[Part] = []
    for name, arm in (("multipliers", "WSD_MULTIPLIERS"), ("unified", "WSD_UNIFIED")):
        gaps = course_of_gap(tables, arm, "WSD_STANDARD")
        late = at_share(gaps, constant_share(tables, arm))
        changes[name] = at_share(gaps, 1.0) - late
        contrast.append(at_most(f"gap of {name} at the end of the stable stage (nats)", late,
                                limits["ahead"]))  # fmt: skip
    parts = [
        at_least("gap of multipliers at the end − at the end of the stable stage (nats)",
                 changes["multipliers"], limits["shrinks"], "multipliers", matters=matters),
        at_least("that change − the unified design's (nats)",
                 changes["multipliers"] - changes["unified"], limits["shrinks"],
                 "against the unified design", matters=matters),
    ]  # fmt: skip
    return judgement(criterion, parts, contrast=contrast)


def _ran(tables: Tables, *arms: str) -> bool:
    return set(arms) <= set(tables.trained["arm"])
