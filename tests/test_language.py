"""Pages are read by people in a hurry: no sentence is longer than they can take in at once."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
_NAMED = ("lrm/README.md", "lrm/multipliers/README.md", "lrm/multipliers/TUNING.md",
          "lrm/sweep/cluster/README.md", "analysis/README.md", "notebooks/README.md")  # fmt: skip
PAGES = [*ROOT.glob("*.md"), *(ROOT / page for page in _NAMED),
         *ROOT.glob("experiments/**/README.md")]  # fmt: skip
MOST_WORDS = 30
# Of the first page: what a visitor reads, on a narrow screen too.
MOST_LINES, LONGEST_LINE = 150, 120


def sentences(text: str) -> Iterator[str]:
    """Those of running text and of lists; cells of tables hold what they hold."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    in_table = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        in_table = token.type != "table_close" and (in_table or token.type == "table_open")
        if token.type != "inline" or in_table:
            continue
        said = "".join(
            {"code_inline": "Code", "softbreak": " ", "hardbreak": " "}.get(c.type, c.content)
            for c in token.children
            if c.type != "image"
        )
        # A sentence may begin with the name of an experiment, in small letters.
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z‖(*\"]|\w+_)|:\s+(?=[A-Z])", said)


def words(sentence: str) -> int:
    """Without what stands in square brackets: intervals."""
    plain = re.sub(r"\[[^\]]*\]", " ", sentence)
    return sum(bool(re.search(r"\w", word)) for word in plain.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_too_long(page):
    found = [s for s in sentences(page.read_text(encoding="utf-8")) if words(s) > MOST_WORDS]
    assert not found, f"{page.relative_to(ROOT)}: more than {MOST_WORDS} words: {found}"


def test_the_first_page_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES
    assert not [line for line in lines if len(line) > LONGEST_LINE]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)", text):
        name, _, anchor = "".join(target).partition("#")
        if name.startswith("https://"):
            continue
        there = page.parent / name if name else page
        assert there.exists(), f"{page.name}: {name}"
        if anchor:
            assert anchor in anchors(there), f"{page.name}: {name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", name).strip().lower().replace(" ", "-") for name in headings}


def test_sentences_are_told_apart():
    text = (
        "One `x.y` ends. Two [a, b] goes\non: Three is here.\n\n| a | b |\n|---|---|\n| c | d |\n"
    )
    assert list(sentences(text)) == ["One Code ends.", "Two [a, b] goes on", "Three is here."]
    assert words("‖W‖ is 0.3 [0.2, 0.4] − here") == 4
