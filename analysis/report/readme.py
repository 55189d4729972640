"""An experiment's README in parts: the conclusion, the sections, and HTML of each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from lrm.errors import UserError

OUTCOME = "What came out"


@dataclass(frozen=True)
class Readme:
    """``sections`` are pairs of a heading and its HTML; what stands above all has no heading.

    ``conclusion`` is the HTML of the bold sentence that opens the section of results. ``captions``
    maps a picture's name to the HTML of the paragraph in italics below it.
    """

    title: str
    conclusion: str
    sections: list[tuple[str, str]]
    captions: dict[str, str]


def read(path: Path, link: Callable[[str], str | None]) -> Readme:
    """The parts of the README at ``path``.

    ``link`` maps a target as it is written to one that the report has, or to None, where the text
    stays and the link goes. Raises UserError for a README without a title or without a bold
    sentence under "What came out".
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8; save it as UTF-8") from None
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens, found = _captions(markdown.parse(_without_comments(text)))
    tokens = _linked(tokens, link)
    starts = [n for n, token in enumerate(tokens) if _is_heading(token, "h2")]
    if not tokens or not _is_heading(tokens[0], "h1"):
        raise UserError(f"{path}: the first line has to be its title, # …")

    def html(part: list[Token]) -> str:
        return markdown.renderer.render(part, markdown.options, {})

    title = _text(tokens[1])
    captions = {name: html(_linked([caption], link)) for name, caption in found.items()}
    sections = [("", html(tokens[3 : starts[0]] if starts else tokens[3:]))]
    conclusion = ""
    for start, stop in itertools.pairwise([*starts, len(tokens)]):
        name, body = _text(tokens[start + 1]), tokens[start + 3 : stop]
        if name == OUTCOME:
            conclusion, body = _conclusion(body, html)
        sections.append((name, html(body)))
    if not conclusion:
        raise UserError(f"{path}: open the section '## {OUTCOME}' with a sentence in bold")
    sections = [(name, body) for name, body in sections if body.strip()]
    return Readme(title, conclusion, sections, captions)


def _conclusion(body: list[Token], html: Callable) -> tuple[str, list[Token]]:
    """The bold text that a section opens with, and the section without it."""
    if len(body) < 3 or body[0].type != "paragraph_open":
        return "", body
    inline = body[1]
    kinds = [token.type for token in inline.children]
    # The parser puts an empty text before bold that opens a paragraph.
    first = next((n for n, t in enumerate(inline.children) if t.type != "text" or t.content), 0)
    if kinds[first : first + 1] != ["strong_open"]:
        return "", body
    end = kinds.index("strong_close")
    bold, rest = inline.children[first + 1 : end], inline.children[end + 1 :]
    inline.children = bold
    said = html([inline])
    inline.children = rest
    return said, body if any(t.content.strip() for t in rest) else body[3:]


def _captions(tokens: list[Token]) -> tuple[list[Token], dict[str, Token]]:
    """Tokens without captions, and those by the picture's scale and name, as ``tiny/fig7``.

    A caption stands in italics below its picture. A page may show one figure at two scales.
    """
    left, captions = list(tokens), {}
    texts = [n for n, token in enumerate(tokens) if token.type == "inline"]
    for above, below in zip(texts[:-1], texts[1:], strict=True):
        (picture, kinds), (said, looks) = _parts(tokens[above]), _parts(tokens[below])
        if kinds == ["image"] and looks[:1] + looks[-1:] == ["em_open", "em_close"]:
            tokens[below].children = said[1:-1]
            source = Path(picture[0].attrs["src"])  # …/<scale>/figures/<name>.png
            captions[f"{source.parent.parent.name}/{source.stem}"] = tokens[below]
            left[below - 1 : below + 2] = [None] * 3  # the paragraph's ends too
    return [token for token in left if token], captions


def _parts(inline: Token) -> tuple[list[Token], list[str]]:
    """The children that say something, and their types. The parser adds empty texts."""
    children = [child for child in inline.children if child.type != "text" or child.content]
    return children, [child.type for child in children]


def _linked(tokens: list[Token], link: Callable[[str], str | None]) -> list[Token]:
    """Targets of links and images mapped; those without a target lose the link alone."""
    for token in tokens:
        if not token.children:
            continue
        kept: list[Token] = []
        dropped = 0
        for child in token.children:
            if child.type == "image":
                continue  # figures have a place of their own
            if child.type == "link_open":
                target = link(child.attrs["href"])
                if target is None:
                    dropped += 1
                    continue
                child.attrs["href"] = target
            elif child.type == "link_close" and dropped:
                dropped -= 1
                continue
            kept.append(child)
        token.children = kept
    return tokens


def _without_comments(text: str) -> str:
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def _is_heading(token: Token, tag: str) -> bool:
    return token.type == "heading_open" and token.tag == tag


def _text(inline: Token) -> str:
    return "".join(child.content for child in inline.children)
