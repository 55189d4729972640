"""Planted worlds of the multipliers' own LR: MLR."""

import functools

import pandas as pd
import pytest

from analysis.claims.judging import HOLDS, OPEN, PARTLY, REFUTED
from analysis.tables.results import Tables
from tests.worlds.planted import check_breaks, judged, noise, part

STEPS, STAGE_END = 2600, 2180
LRS = (3.75e-4, 1.5e-3, 6e-3, 2.4e-2, 9.6e-2)
CHOSEN, LOWEST = 6e-3, 3.75e-4
# Loss at the best LR, which LR that is, and how far 6e-3 lies above it.
CELLS = {
    ("SPN", 0.125): (3.90, 2.4e-2, 0.020),
    ("SPN", 2.0): (3.50, 1.5e-3, 0.005),
    ("SPN", 8.0): (3.55, 1.5e-3, 0.012),
    ("VPN", 0.125): (3.70, 2.4e-2, 0.030),
    ("VPN", 2.0): (3.45, 2.4e-2, 0.008),
    ("VPN", 8.0): (3.60, 1.5e-3, 0.015),
}
PLACES = {0.125: "1/8", 2.0: "2", 8.0: "8"}
HARM = 0.3


@functools.cache
def world(above=(), harm=HARM, flat=False, unstable=None, seeds=tuple(range(8))):
    """6e-3 is near the best everywhere, and too small an LR does ``harm`` at S = 1/8.

    ``above``: ((arm, S), how far 6e-3 lies above the best). ``flat``: no LR makes a difference.
    ``unstable``: one seed of SPN at S = 8 and 6e-3 loses that much.
    """
    changed, rows = dict(above), []
    for (arm, s), (base, best, usual) in CELLS.items():
        gap = changed.get((arm, s), usual)
        losses = {lr: base + max(gap, 0.03) + 0.02 for lr in LRS}
        losses |= {best: base, CHOSEN: base + gap}
        if (arm, s) == ("SPN", 0.125):
            losses[LOWEST] = base + gap + harm
        if flat:
            losses = dict.fromkeys(LRS, base)
        for lr, loss in losses.items():
            for seed in seeds:
                final = loss + noise(seed, size=0.05) + noise(arm, s, lr, seed, size=1e-3)
                if unstable and (arm, s, lr, seed) == ("SPN", 8.0, CHOSEN, seeds[0]):
                    final += unstable
                own = ("train", arm, seed, s, lr)
                rows.append((*own, STAGE_END, "validation_loss", 9.0 - loss))
                rows.append((*own, STEPS, "validation_loss", final))
                rows.append((*own, STEPS, "train_loss", 9.0 - loss))
    columns = ["kind", "arm", "seed", "S", "c_lr", "step", "stat", "value"]
    return Tables(None, pd.DataFrame(rows, columns=columns))


BREAKS = {
    f"{arm} at S = {PLACES[s]}:": {"above": (((arm, s), 0.08),)} for arm, s in CELLS
} | {"loss at 0.000375 minus that at 0.006": {"harm": 0.035}}  # fmt: skip


def test_each_part_has_a_world_that_breaks_it_alone():
    check_breaks("MLR", world, BREAKS)


@pytest.mark.parametrize(("cell", "planted"), CELLS.items())
def test_the_distance_to_the_best_is_estimated(cell, planted):
    arm, s = cell
    name = f"{arm} at S = {PLACES[s]}:"
    assert part("MLR", world(), name).interval.mean == pytest.approx(planted[2], abs=2e-3)


def test_the_worst_lr_is_set_against_the_chosen_one():
    assert part("MLR", world(), "minus that at 0.006 (").interval.mean == pytest.approx(
        HARM, abs=2e-3
    )
    assert judged("MLR", world()).note == "best LR: " + "; ".join(
        f"{arm} at S = {PLACES[s]}: {best:g}" for (arm, s), (_, best, _) in CELLS.items()
    )


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"flat": True}, OPEN),
        ({"above": tuple((cell, 0.1) for cell in CELLS)}, REFUTED),
        ({"above": ((("VPN", 8.0), 0.1),)}, PARTLY),
        ({"unstable": 0.5}, PARTLY),
        ({"seeds": tuple(range(7))}, OPEN),
    ],
)
def test_verdicts_of_other_worlds(changes, verdict):
    assert judged("MLR", world(**changes)).verdict == verdict


def test_the_best_lr_costs_nothing_and_one_unstable_seed_opens_its_own_group_alone():
    best = world(above=((("SPN", 2.0), -0.01),))
    assert part("MLR", best, "SPN at S = 2:").interval.mean == 0.0
    groups = judged("MLR", world(unstable=0.5)).groups
    assert groups.pop("SPN at S = 8") == OPEN and set(groups.values()) == {HOLDS}
