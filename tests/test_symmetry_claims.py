"""Rotated pairs of multipliers, and judging functions on planted worlds: S6, LOG1, WS1 to WS6."""

import itertools
import zlib

import numpy as np
import pandas as pd
import pytest

from analysis.claims.judges import judge_of
from analysis.claims.judging import NOT, OPEN, PARTLY, REPRODUCED
from analysis.quantities import symmetry, table1
from analysis.quantities import width_scaling as ws
from analysis.tables.criteria import every_criterion
from analysis.tables.results import Tables

SEEDS = range(100, 106)
STEPS, DECAY, HEAD = 400, 100, 8
END = STEPS - DECAY
QUERIES, KEYS = 4, 2
COLUMNS = ["run", "kind", "arm", "seed", "step", "tensor", "layer", "stat", "value"]


CRITERIA = every_criterion()


def judged(claim, *tables):
    """``tables``: runs, scalars and vectors."""
    criterion = CRITERIA[claim]
    return judge_of(criterion["experiment"], claim)(Tables(*tables), criterion)


def normal(*key, size=()):
    generator = np.random.default_rng(zlib.crc32(repr(key).encode()))
    return generator.standard_normal(size)


def table_of_runs(forward=None, **grid):
    """``forward``: fixed factors by tensor."""
    settings = {"train": {"steps": STEPS}, "schedule": {"decay_steps": DECAY},
                "model": {"head_dim": HEAD}, "probes": {"every": 10}}  # fmt: skip
    rules = [
        {"tensor": f"{tensor}@0", "multiplier": None, "forward": factor}
        for tensor, factor in (forward or {}).items()
    ]
    description = {"settings": settings, "rules": rules}
    return {"kind": "train", "description": description, **grid}


def spread_to_rows(by_pair, heads):
    """Of (keys, head / 2) the logarithms of all rows of ``heads`` heads."""
    per_head = np.repeat(np.concatenate([by_pair, by_pair], axis=1), heads // KEYS, axis=0)
    return per_head.ravel()


def rows_of(ratio, product):
    """Q's and K's rows whose ln by pair have this ratio and product."""
    q = np.exp(spread_to_rows((product + ratio) / 2, QUERIES))
    return q, np.exp(spread_to_rows((product - ratio) / 2, KEYS))


def test_a_planted_symmetry_is_in_the_ratio_alone():
    change = normal("planted", size=(KEYS, HEAD // 2))
    change -= change.mean()
    found = symmetry.rotated_pairs(*rows_of(change, 0 * change), HEAD)
    assert np.allclose(found[0], 0) and np.allclose(found[1], change)
    found = symmetry.rotated_pairs(*rows_of(0 * change, change), HEAD)
    assert np.allclose(found[1], 0) and np.allclose(found[0], change)


def test_independent_noise_is_in_both_alike():
    q, k = (np.exp(0.1 * normal(name, size=(4000, 16))) for name in "qk")
    found = [symmetry.rotated_pairs(one, other, HEAD) for one, other in zip(q, k, strict=True)]
    product, ratio = (np.std([pair[i] for pair in found]) for i in (0, 1))
    assert product == pytest.approx(ratio, rel=0.03)


STRESS = {"FREE": 3.4, "FREE_BF16": 3.4, "FASTER": 3.8, "FASTER_BF16": 4.2, "FASTER_LIGHT": 3.7,
          "FASTER_LIGHT_BF16": 3.75, "LOG": 3.4, "FAST": 3.6, "LOG_FAST": 3.8}  # fmt: skip


def stress_world(losses, bump):
    """Final losses by arm; the training loss of LOG rises by ``bump`` on its way down."""
    rows, runs = [], [table_of_runs(run=arm, arm=arm) for arm in losses]
    for arm, loss in losses.items():
        for seed in SEEDS:
            own, jitter = (f"{arm} {seed}", "train", arm, seed), 0.01 * normal(arm, seed)
            rows.append((*own, STEPS, "", 0, "validation_loss", loss + jitter))
            rows.append((*own, END, "residual", 3, "activation_norm", 2.0))
            for step in range(10, STEPS + 1, 10):
                course = 7 - step / 200 + (bump if arm == "LOG" and step > STEPS / 2 else 0.0)
                rows.append((*own, step, "", 0, "train_loss", course))
    return pd.DataFrame(runs), pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.parametrize(
    ("claim", "losses", "bump", "expected"),
    [
        ("S6", {}, 0.0, REPRODUCED),
        ("S6", {"FASTER_LIGHT_BF16": 4.1}, 0.0, NOT),  # it is the LR, not the drift
        ("LOG1", {}, 0.5, REPRODUCED),
        ("LOG1", {}, 0.0, PARTLY),
        ("LOG1", {"LOG": 3.3, "LOG_FAST": 3.6}, 0.0, NOT),
    ],
)
def test_stress(claim, losses, bump, expected):
    assert judged(claim, *stress_world(STRESS | losses, bump)).verdict == expected


WIDTHS = (16, 32, 64, 128, 256)


def width_world(
    weight=0.0, alpha=-0.2, scale=-0.8, from_one=None, late=0.0, growth=0.1, stream=(0.0, 0.0)
):
    """‖W‖ ∝ d^weight; scalars of projector and dt ∝ d^scale, of Q and K each; α ∝ d^alpha.

    Half of ``scale`` is the fixed factor's. ``from_one``: ``scale`` where multipliers begin at 1.
    ``late``: by how much the exponent of ‖W‖ moves in the last quarter; ``growth``: by how much
    outputs do in ln in the second half, but for the projector's. ``stream``: of outputs in the
    residual stream the exponent on top, from either start, and half of it of the gate's.
    """
    rows, runs = [], []
    names = sorted({name for group in ws.MATRICES.values() for name in group})
    free = {name: 1.0 for group in ws.FREE_IN_STREAM.values() for name in group}
    free |= {name: 0.5 for group in ws.GATE.values() for name in group}
    scales = {ws.LEARNED: scale, ws.FROM_ONE: scale if from_one is None else from_one}
    extra = dict(zip(scales, stream, strict=True))
    for (arm, exponent), width in itertools.product(scales.items(), WIDTHS):
        fixed = width ** (exponent / 2)
        runs += [
            table_of_runs(forward=dict.fromkeys(names, fixed), run=f"{arm} {width} {seed}",
                          arm=arm, width=width, seed=seed)
            for seed in SEEDS
        ]  # fmt: skip
        for seed, tensor in itertools.product(SEEDS, names):
            courses = ((0, -0.5, weight), (END // 2, alpha, weight),
                       (END * 3 // 4, alpha, weight), (END, alpha, weight + late))  # fmt: skip
            for step, a, w in courses:
                norm = 0.05 * width**w * np.exp(0.01 * normal(seed, tensor, width, step))
                s = 16 * width ** (exponent / 2) if step else 1.0
                output = s * fixed * width * (3 if step else 1) * width**a * norm
                output *= width ** (extra[arm] * free.get(tensor, 0.0))
                if tensor != "projector" and step == END:
                    output *= np.exp(growth)
                stats = {"weight_norm": norm, "scalar_multiplier_norm": s,
                         "activation_norm": output}  # fmt: skip
                rows += [
                    (
                        f"{arm} {width} {seed}",
                        "train",
                        arm,
                        seed,
                        step,
                        tensor,
                        0,
                        stat,
                        value,
                        width,
                    )
                    for stat, value in stats.items()
                ]
    return pd.DataFrame(runs), pd.DataFrame(rows, columns=[*COLUMNS, "width"])


@pytest.mark.parametrize(
    ("claim", "world", "expected"),
    [
        ("WS1", {}, REPRODUCED),
        ("WS1", {"weight": 0.3}, NOT),
        ("WS1", {"late": 0.06}, OPEN),  # not at rest
        ("WS2b", {"stream": (0.3, 0.3)}, REPRODUCED),
        ("WS2b", {"stream": (0.0, 0.0)}, NOT),
        ("WS2b", {"stream": (0.0, 0.3)}, PARTLY),  # it is the start's
        ("WS3", {}, REPRODUCED),
        ("WS3", {"scale": -0.4}, NOT),
        ("WS3", {"from_one": -0.4}, NOT),  # it is the start's
        ("WS4", {}, REPRODUCED),
        ("WS4", {"alpha": 0.0}, NOT),
        ("WS6", {"scale": -0.7}, REPRODUCED),
        ("WS6", {"scale": -0.6}, PARTLY),  # the projector's output differs between widths
        ("WS6", {"scale": -0.6, "growth": 0.0}, NOT),
    ],
)
def test_exponents_of_the_width(claim, world, expected):
    assert judged(claim, *width_world(**world)).verdict == expected


def test_late_growth_is_of_the_drifting_arm():
    runs, still = width_world(growth=0.0)
    drifting = width_world(growth=0.1)[1]
    drifting = drifting[drifting["arm"] == ws.LEARNED].assign(arm=ws.DRIFT)
    alone = judged("WS6", runs, drifting.assign(arm=ws.LEARNED))
    both = judged("WS6", runs, pd.concat([still, drifting]))
    assert both == alone


@pytest.mark.parametrize(
    ("learned", "from_one", "fixed", "scaled", "expected"),
    [
        (0.0, 0.0, 0.4, -0.4, REPRODUCED),
        (0.4, 0.0, 0.4, -0.4, NOT),
        (0.0, 0.4, 0.4, -0.4, NOT),
        (0.0, 0.0, 0.05, 0.0, NOT),
    ],
)
def test_constancy_needs_a_contrast(learned, from_one, fixed, scaled, expected):
    exponents = {ws.LEARNED: learned, ws.FROM_ONE: from_one, ws.FIXED: fixed, ws.SCALED: scaled}
    runs = [
        table_of_runs(run=f"{arm} {width} {seed}", arm=arm, width=width, seed=seed)
        for arm in exponents
        for width in WIDTHS
        for seed in SEEDS
    ]
    rows = [
        (run["run"], "train", run["arm"], run["seed"], END, tensor, 0, "activation_norm",
         run["width"] ** exponents[run["arm"]] * np.exp(0.01 * normal(run["run"], tensor)),
         run["width"])
        for run in runs
        for tensor in {name for names in ws.FIXED_BY_MODEL.values() for name in names}
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=[*COLUMNS, "width"])
    assert judged("WS2", pd.DataFrame(runs), frame).verdict == expected


def layer_world(wrong=0.0):
    """Exact exponents of table 1 but for ``wrong``, with noise of a tenth from draw to draw."""
    scalars, vectors, runs = [], [], []
    for arm, (optimizer, recipe) in (table1.LAYERS | table1.MODELS).items():
        is_layer = arm in table1.LAYERS
        for width in (32, 64, 128):
            run = f"{arm} {width}"
            kind = "brownian" if is_layer else "train"
            seeds = [0] if is_layer else SEEDS
            runs += [
                table_of_runs(run=f"{run} {seed}", arm=arm, width=width) | {"kind": kind}
                for seed in seeds
            ]
            if not is_layer:
                norm = table1.derived(optimizer, recipe, "fresh_inputs")["weight_norm"]
                scalars += [
                    (
                        f"{run} {seed}",
                        kind,
                        arm,
                        seed,
                        END,
                        table1.IN_MODEL,
                        0,
                        stat,
                        width**norm,
                        width,
                    )
                    for seed in SEEDS
                    for stat in ("weight_norm", "activation_norm")
                ]
                continue
            for case in table1.CASES:
                exponents = table1.derived(optimizer, recipe, case)
                for stat in ("weight_norm", "output_norm", "relative_update"):
                    off = wrong if stat == "output_norm" else 0.0
                    noise = np.exp(0.02 * normal(arm, width, case, stat, size=12))
                    value = width ** (exponents[stat] + off) * noise
                    tensor = f"{table1.LAYER}.{case}"
                    vectors.append(
                        (f"{run} 0", kind, arm, 0, END, tensor, 0, f"{stat}_draws", value, width)
                    )
    columns = [*COLUMNS, "width"]
    return (pd.DataFrame(runs), pd.DataFrame(scalars, columns=columns),
            pd.DataFrame(vectors, columns=columns))  # fmt: skip


@pytest.mark.parametrize(("wrong", "expected"), [(0.0, REPRODUCED), (0.2, PARTLY)])
def test_table_1(wrong, expected):
    assert judged("WS5", *layer_world(wrong)).verdict == expected
