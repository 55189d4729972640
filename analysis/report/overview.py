"""``python -m analysis.report.overview``: the results at a glance in two pages of the repository.

The first page has those that a figure or table of the paper shows, and experiments/README.md all
others.

An experiment's figures and question stand in its YAML's head, its answer is the conclusion that its
README gives in bold, and the verdicts are those of its claims on the published runs.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from analysis.claims.judging import HOLDS, OPEN, PARTLY
from analysis.claims.stored import claims_file, read_ledger, tested_parts
from analysis.quantities.stats import holm
from analysis.report.content import (
    LIBRARY,
    OURS,
    PAPER,
    SCALE,
    Claim,
    bottom_line,
    counts_of,
    facts_of,
    gains,
    headline,
    newest,
    none_judged,
    ordered,
    still_open,
    waits,
)
from analysis.report.gains import Gains
from analysis.report.readme import read
from analysis.tables.find import EXPERIMENTS, RESULTS, ROOT, relative
from lrm.cli import guarded
from lrm.errors import UserError
from lrm.plan.scales import SCALES
from lrm.store.digests import is_listed
from lrm.store.files import write_atomic

# The pages with a part that is made here.
README, INDEX = ROOT / "README.md", EXPERIMENTS / "README.md"
BEGIN, END = "<!-- results: make readme -->\n", "<!-- end of the results -->\n"
_WIDTH = 120
# By the beginning of a figure's name, of which paper it is.
_PAPERS = {"": "", "sv": "second paper: ", "gdn": "third paper: ", "bm": "Beyond MuP 3: "}
_UNDECIDED = (
    "**What is open of the paper's statements.** Parts are judged apart: an optimizer, a matrix or "
    "a side of a sweep. At `tiny` these have an open part; their other parts are decided. Runs at "
    "`mini` would decide them for that scale. Commands are those of the experiment's directory. "
    "What is open at `mini` stands on the pages of `tuning_ablation` and `long_run`."
)
_CLAIMS_OF = {PAPER: "The paper's claims", OURS: "Ours"}


@dataclass(frozen=True)
class Row:
    """An experiment's part of the overview; ``claims`` has the newest of its entries of each.

    ``elsewhere`` has those that are judged at other scales, by scale.
    """

    name: str
    figures: list[str]
    question: str
    conclusion: str
    claims: list[Claim]
    text: str = PAPER
    elsewhere: dict[str, list[Claim]] = field(default_factory=dict)

    @property
    def unjudged(self) -> bool:
        """Whether none of its claims, if it has any, is judged so far."""
        return none_judged(self.claims) and not self.elsewhere


def rows() -> list[Row]:
    """All experiments with a README, in the order of their claims.

    Raises UserError as ``read`` and ``read_ledger`` do.
    """
    claims, others = current(), elsewhere()
    found = []
    for name in ordered():
        folder = EXPERIMENTS / name
        if not (folder / "README.md").exists():
            continue
        facts, readme = facts_of(folder / "config.yaml"), read(folder / "README.md", lambda _: None)
        own = [claim for claim in claims if claim.experiment == name]
        named = re.findall(r"\b(?:sv_|gdn_|bm_)?(?:fig|table)\d+", facts["figures"] or "")
        conclusion = " ".join(readme.conclusion.split())
        question = facts["question"] or readme.title
        apart = {
            scale: of_it
            for scale, judged in others.items()
            if (of_it := [claim for claim in judged if claim.experiment == name])
        }
        found.append(Row(name, named, question, conclusion, own, facts["text"] or PAPER, apart))
    return found


def current() -> list[Claim]:
    """The published claims; an entry that a newer one of its experiment replaces is no claim."""
    return newest(_ledger()["claims"], {})


def elsewhere(folder: Path = RESULTS) -> dict[str, list[Claim]]:
    """By scale the claims of experiments that published runs of another scale judge.

    They have a number, and all of their seeds.
    """
    found = {}
    for scale, claims in _measured_elsewhere(folder).items():
        if judged := [claim for claim in claims if not waits(claim.record)]:
            found[scale] = judged
    return found


def _measured_elsewhere(folder: Path = RESULTS) -> dict[str, list[Claim]]:
    """By scale the claims of experiments that have a number at another scale."""
    found = {}
    for scale in (each for each in SCALES if each not in ("smoke", SCALE)):
        path = claims_file(scale, "reference", folder)
        if path.exists() or is_listed(path):
            claims = newest(read_ledger(path)["claims"], {})
            found[scale] = [c for c in claims if c.experiment != LIBRARY and c.main]
    return found


def _waiting(scale: str) -> str:
    """How many of the paper's claims have some of their seeds at a scale, but not all."""
    claims = _measured_elsewhere().get(scale, [])
    n = sum(claim.text == PAPER and waits(claim.record) for claim in claims)
    return f", {n} {'wait' if n > 1 else 'waits'} for more seeds" if n else ""


def _ledger() -> dict[str, Any]:
    return read_ledger(claims_file(SCALE, "reference", RESULTS))


def tally(claims: Iterable[Claim]) -> str:
    """How many claims have each verdict, such as ``7 hold, 1 open``."""
    return ", ".join(
        f"{n} {'hold' if word == HOLDS and n > 1 else word}"
        for word, n in counts_of(claims).items()
    )


def head(claims: list[Claim]) -> str:
    """The sums of all claims, and how many of their parts stand a correction."""
    tested = tested_parts(claim.record for claim in claims if claim.experiment != LIBRARY)
    stand = holm([part["p"] for part in tested])
    held = np.array([part["verdict"] == HOLDS for part in tested])
    texts = sorted({claim.text for claim in claims}, key=_place)
    return (
        f"{' '.join(sums(claims, text) for text in texts)} "
        f"All verdicts together have {len(tested)} parts whose numbers differ from seed to seed. "
        f"Of these {sum(held)} hold, {sum(held & stand)} after Holm's correction for testing all."
    )


def sums(claims: list[Claim], text: str) -> str:
    """How the claims of one paper, or of ours, came out."""
    of_text = [claim for claim in claims if claim.text == text]
    whose = _CLAIMS_OF.get(text, text[0].upper() + text[1:])
    undecided = [claim for claim in of_text if claim.record["verdict"] in (PARTLY, OPEN)]
    against = sum(claim.is_refuted_in_part for claim in undecided)
    more = f" Of those that hold partly or are open, {_refuted(against)}." if against else ""
    # Of entries of one claim the newest counts, but those of two experiments count apart.
    claims_of_text = len({claim.id.partition(".")[0] for claim in of_text})
    twice = len(of_text) - claims_of_text
    apart = f", {twice} of them twice, by two experiments" if twice else ""
    return f"{whose} ({claims_of_text}{apart}): {tally(of_text)}.{more}"


def _refuted(parts: int) -> str:
    return f"{parts} have a refuted part" if parts > 1 else "one has a refuted part"


def _place(text: str) -> tuple[int, str]:
    return {PAPER: 0, OURS: 2}.get(text, 1), text


def undecided(claims: Iterable[Claim]) -> list[str]:
    """The paper's statements that are open in any part, and what would decide each, as a table."""
    claims = list(claims)
    rows = [
        (claim.id, claim.statement, groups, claim.decider)
        for claim in claims
        if claim.text == PAPER and (groups := still_open(claim, claims))
    ]
    # A claim without groups is open as a whole.
    cells = (
        (name, said, "; ".join(filter(None, groups)) or "all of it", decider)
        for name, said, groups, decider in rows
    )
    head = ("claim", "the paper's statement", "open", "what would decide it")
    shown = ([cell.replace("|", "\\|") for cell in row] for row in cells)
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *shown)]


def table(shown: Iterable[Row]) -> str:
    """What can be said of all claims, and the paper's figures of which claims are judged.

    The experiment of the paper's main result comes first, then what else its figure shows.
    """
    more = "[All counts and results](experiments/README.md#what-they-found)"
    own = [row for row in shown if row.text == PAPER]
    main = headline()
    shared = {figure for row in own if row.name == main for figure in row.figures}
    own.sort(key=lambda row: (row.name != main, shared.isdisjoint(row.figures)))
    others: dict[str, list[Claim]] = {}
    for row in own:
        for scale, claims in row.elsewhere.items():
            others.setdefault(scale, []).extend(c for c in claims if c.text == PAPER)
    apart = "".join(
        f" At `{scale}`: {tally(claims)}{_waiting(scale)}." for scale, claims in others.items()
    )
    first, *more_said = bottom_line()
    rest = (*more_said, f"{sums(current(), PAPER)}{apart} {more}")
    lines = [*_wrapped(first), "", *_as_html(gains()), ""]
    lines += [line for text in rest for line in (*_wrapped(text), "")]
    return "\n".join([*lines, *_judged(filter(_on_first_page, own), "experiments/")]) + "\n"


def _on_first_page(row: Row) -> bool:
    return row.text == PAPER and bool(row.figures)


def _judged(shown: Iterable[Row], folder: str) -> list[str]:
    """The rows of which claims are judged, as HTML in lines of at most 120 characters.

    Markdown has no way to break a row of a table.
    """
    text = ["<table><tr><th>figure<th>question<th>answer<th>claims"]
    for row in shown:
        if row.unjudged:
            continue
        link = f'<a href="{folder}{row.name}">{html.escape(row.question, quote=False)}</a>'
        cells = (_numbers(row.figures), link, row.conclusion, _verdicts(row))
        text.append("<tr>" + "".join(f"<td>{cell}" for cell in cells))
    # Rows follow each other without a break, which would leave half a line empty at each.
    return [*_wrapped(" ".join(text)), "</table>"]


def _as_html(shown: Gains) -> list[str]:
    """The table of gains as HTML in lines; each row begins a line, and may have two."""

    def inline(cell: str) -> str:
        return MarkdownIt().renderInline(cell).replace("strong>", "b>")

    head = "".join(f"<th>{inline(cell)}" for cell in shown.head)
    rows = ["".join(f"<td>{inline(cell)}" for cell in row) for row in shown.rows]
    whole = [f"<table><tr>{head}", *(f"<tr>{row}" for row in rows)]
    return [line for row in whole for line in _wrapped(row)] + ["</table>"]


def _verdicts(row: Row) -> str:
    """``tally`` of the claims of a paper and of ours apart, then of those at other scales."""
    papers, ours = (
        tally(c for c in row.claims if (c.text == OURS) is own) for own in (False, True)
    )
    others = [f"at {scale}: {tally(claims)}" for scale, claims in row.elsewhere.items()]
    return "; ".join([papers] * bool(papers) + [f"ours: {ours}"] * bool(ours) + others)


def _wrapped(text: str) -> list[str]:
    """Lines that break at spaces alone: no link falls apart."""
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _numbers(figures: list[str]) -> str:
    """``1, table 2`` of ``fig1`` and ``table2``; those of the other papers stand apart."""
    named: dict[str, list[str]] = {}
    for figure in figures:
        text, _, own = figure.rpartition("_")
        named.setdefault(_PAPERS[text], []).append(re.sub(r"^fig|(?<=table)", " ", own).strip())
    return "; ".join(whose + ", ".join(those) for whose, those in sorted(named.items()))


def listing(shown: Iterable[Row]) -> str:
    """The sums of all claims, what is judged beside the paper's figures, and the rest as a list."""
    shown = list(shown)
    claims = current()
    summed = [*_wrapped(head(claims)), "", *_wrapped(_UNDECIDED), "", *undecided(claims)]
    others = _judged((row for row in shown if not _on_first_page(row)), "")
    rest = [f"- [{row.question}]({row.name}) {row.conclusion}" for row in shown if row.unjudged]
    return "\n".join([*summed, "", *others, "", *rest]) + "\n"


def renewed(path: Path, part: str) -> str:
    """The page at ``path`` with ``part`` between its two marks; UserError where it lacks them."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(f"{path}: put the lines {BEGIN.strip()} and {END.strip()} into it")
    return f"{before}{begin}{part}{end}{after}"


def pages() -> dict[Path, str]:
    """Both pages as they are with today's results."""
    shown = rows()
    return {README: renewed(README, table(shown)), INDEX: renewed(INDEX, listing(shown))}


def main() -> None:
    """Write the results into both pages; exits with 2 where that cannot be done."""
    guarded(_main)


def _main() -> None:
    for path, text in pages().items():
        write_atomic(path, text.encode())
        print(f"wrote the results into {relative(path)}")


if __name__ == "__main__":
    main()
