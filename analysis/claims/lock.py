"""``python -m analysis.claims.lock N1.2``: fix what judges a claim before its seeds run.

A run notes a hash of what it will be judged by. The lock adds to a claim's entry the judging code
and the experiment's resolved configuration, in ``experiments/<name>/locks.json``. Where one of them
changes after the seeds ran, the claim is open.

Code may be rearranged without another meaning, and a configuration may get further arms or points:
``--same`` notes them beside what is locked, and so it does where an entry gets ``only``, for the
runs that there were before. It does so only where the published runs, at every scale that judges,
are judged as claims.json says, up to last digits, which libraries of linear algebra round otherwise
on another processor, and where all of them are still asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any

from analysis.claims.judges import JUDGING, code_hash, configuration_hash, judging_scale
from analysis.claims.ledger import CHANGED, as_ledger, judge_all
from analysis.claims.stored import claims_file, read_ledger
from analysis.tables.criteria import every_criterion, locks_of
from analysis.tables.find import EXPERIMENTS, RESULTS, NothingFound, find
from lrm.cli import Parser, guarded
from lrm.errors import UserError
from lrm.plan.claims import is_judged_at, judging_seeds
from lrm.plan.experiment import NoSuchRun, load, matches_any
from lrm.plan.identity import criterion_hash
from lrm.store.files import write_json


def lock(claim: str, same: bool = False) -> None:
    """Write the lock of a claim, or with ``same`` note that code has changed without a meaning.

    Raises UserError for a claim that no experiment decides, for one whose arms have not been tuned
    yet, for one whose published runs are locked otherwise or not at all, and with ``same`` where
    the locked code has published no verdicts or others.
    """
    criterion = every_criterion().get(claim, {})
    if "experiment" not in criterion:
        raise UserError(f"{claim}: no experiment decides it")
    experiment = criterion["experiment"]
    locks = locks_of(experiment)
    if claim not in locks:
        _check_tuned(criterion)
    now = {
        "code": code_hash(experiment, claim),
        "configuration": configuration_hash(experiment, criterion.get("at")),
    }
    old = locks.get(claim)
    if same and not old:
        raise UserError(f"{claim}: it has no lock yet: write one without --same")
    noted = {key: old[key] for key in ("code", "configuration")} if old else None
    added = same and _only_added(claim, criterion, old)
    published = _published(claim) if noted != now or added else None
    if published and not old:
        # Their runs note the entry alone: a lock would make them those of another one.
        raise UserError(f"{claim}: runs that judge it are published without a lock: write a new "
                        "entry")  # fmt: skip
    if noted == now and not added:
        now = old
    elif same:
        if published is None:
            raise UserError(
                f"{claim}: the locked code has judged no published runs to compare with: lock it "
                "anew before its seeds run, or publish them with the locked code first"
            )
        if not _asked_for(criterion):
            raise UserError(
                f"{claim}: the configuration asks for other runs than those that judged it: write "
                "a new entry"
            )
        now = {
            **old,
            **_noted(old, "code", "same_as", now["code"]),
            **_noted(old, "configuration", "grown_to", now["configuration"]),
            **({"only_added": criterion["only"]} if added else {}),
        }
        if not _alike(_judged(claim, experiment, now, published), published):
            raise UserError(f"{claim}: this code judges the published runs otherwise")
    elif published is not None:
        raise UserError(f"{claim}: runs are published under its lock: write a new entry, or --same")
    path = EXPERIMENTS / experiment / "locks.json"
    write_json(path, {**locks, claim: now})
    print(f"wrote {path}")


def _check_tuned(criterion: dict[str, Any]) -> None:
    """UserError where a search has yet to find arms that the entry reads.

    Their runs would be missing from the lock. Arms that its ``only`` leaves out may be found later:
    then ``--same`` notes the configuration that has them.
    """
    experiment, only = criterion["experiment"], criterion.get("only", ("*",))
    loaded = load(EXPERIMENTS / experiment / "config.yaml")
    scale = criterion.get("at") or judging_scale(loaded)
    if untuned := [arm for arm in loaded.untuned(scale) if matches_any(f"{arm} seed=0", only)]:
        raise UserError(
            f"{experiment}: no search has tuned {', '.join(untuned)} at {scale}; lock its claims "
            "when all arms that they read are tuned, and before their seeds run"
        )


def _published(claim: str) -> dict[str, Any] | None:
    """What the locked code said of the published runs by scale; None where it judged none."""
    found = {}
    for scale in JUDGING:
        if (file := claims_file(scale, "reference", RESULTS)).exists():
            records = read_ledger(file)["claims"]
            judged = (r for r in records if r["id"] == claim and r["n"] and r["note"] != CHANGED)
            for record in judged:
                found[scale] = _numbers(record)
    return found or None


def _noted(old: dict[str, Any], locked: str, beside: str, new: str) -> dict[str, list[str]]:
    """What stands ``beside`` what is ``locked``, with a hash that is new."""
    known = {*old.get(beside, []), new} - {old[locked]}
    return {beside: sorted(known)} if known else {}


def _asked_for(criterion: dict[str, Any]) -> bool:
    """Whether the configuration asks today for every published run that judges by an entry."""
    only = criterion.get("only", ())
    judging = judging_seeds(criterion)

    def of_entry(configuration: str) -> set[str]:
        return {
            run["id"]
            for run in _runs(criterion, configuration, only)
            if run["seed"] in judging
            and (not only or any(fnmatch(run["label"], pattern) for pattern in only))
        }

    return of_entry("all") == of_entry("current")


def _only_added(claim: str, criterion: dict[str, Any], lock: dict[str, Any]) -> bool:
    """Whether the published runs were judged by this entry when it had no ``only`` yet."""
    if "only" not in criterion or lock.get("only_added") == criterion["only"]:
        return False
    before = {key: value for key, value in criterion.items() if key != "only"}
    judged = {run["criteria"].get(claim) for run in _runs(criterion, "all")
              if run.get("seed") in judging_seeds(criterion)}  # fmt: skip
    return criterion_hash(before, lock) in judged


def _runs(
    criterion: dict[str, Any], configuration: str, only: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """The published runs at all scales at which an entry judges."""
    experiment = criterion["experiment"]
    for scale in [scale for scale in JUDGING if is_judged_at(criterion, scale)]:
        with suppress(NothingFound, NoSuchRun):
            yield from (
                d for d, _ in find(experiment, scale, "reference", RESULTS, configuration, only)
            )


def _judged(
    claim: str, experiment: str, lock: dict[str, Any] | None, scales: Iterable[str]
) -> dict[str, Any]:
    """What today's code says of the published runs at these scales, under such a lock."""
    found = {}
    for scale in scales:
        judged = judge_all(
            scale, "reference", RESULTS, [experiment], as_locked={claim: lock} if lock else {}
        )
        records = as_ledger(judged, scale, "reference")
        [record] = [r for r in json.loads(json.dumps(records))["claims"] if r["id"] == claim]
        found[scale] = _numbers(record)
    return found


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what depends on other claims."""
    parts = [{k: v for k, v in p.items() if k != "survives_holm"} for p in record["parts"]]
    return {"n": record["n"], "verdict": record["verdict"], "parts": parts}


def _alike(one: Any, other: Any) -> bool:
    """Whether two records are equal but for the last digits of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return one == other


def main() -> None:
    """Parse the command line, write the locks."""
    parser = Parser(prog="python -m analysis.claims.lock")
    parser.add_argument("claims", nargs="+")
    parser.add_argument("--same", action="store_true", help="other code, the same meaning")
    options = parser.parse_args()
    guarded(lambda: [lock(claim, options.same) for claim in options.claims])


if __name__ == "__main__":
    main()
