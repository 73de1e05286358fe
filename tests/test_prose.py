"""The documents: short sentences and short paragraphs. codespell, in scripts/check, holds their spelling."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("data/*/README.md")]
)
SENTENCE, PARAGRAPH = 35, 120  # words at most
END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[^a-z])")


def words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def text_of(block: Token) -> str:
    """What is read of a paragraph or a cell of a table: a piece of code is one word, a picture none."""
    kinds = {"code_inline": "code", "softbreak": " ", "hardbreak": " ", "image": "", "html_inline": ""}
    return "".join(kinds.get(child.type, child.content) for child in block.children or ())


def too_long(markdown: str) -> list[str]:
    """The sentences and paragraphs that are too long, each with its line."""
    found = []
    for block in MarkdownIt().enable("table").parse(markdown):
        if block.type == "inline" and block.map:
            text = text_of(block)
            long = [sentence for sentence in END.split(text) if words(sentence) > SENTENCE]
            long += [text] * (words(text) > PARAGRAPH)
            found += [f"line {block.map[0] + 1}: {words(part)} words: {part}" for part in long]
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_is_easy_to_read(path: Path) -> None:
    assert too_long(path.read_text(encoding="utf-8")) == []


def test_what_is_too_long_is_named() -> None:
    short = "word " * 35 + "\n\n" + "One, two. " * 60 + "\n\n`" + "code " * 40 + "`"
    assert too_long(short) == []
    assert too_long("a. " + "word " * 36 + "\n\n" + "One, `two three`. " * 61)[0].startswith("line 1: 36 words: word")
