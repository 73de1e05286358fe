"""The documents: short sentences and short paragraphs; and no long file of tests. codespell, in scripts/check, holds
their spelling."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("*.md", "docs/**/*.md", "[!.]*/README.md", "data/*/README.md")
PAGES = sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})
SENTENCE, PARAGRAPH = 35, 120  # words at most
NAMED = re.compile(r"`([\w/]+/\w+\.(?:py|js|toml|cuh?|c))`")
ROOMS = (ROOT, ROOT / "kernelwatch", ROOT / "gpukernels")
LINES = 600  # of a file of tests, at most
END = re.compile(r"(?<=[.!?])[)\"*]*\s+")
WRITTEN = re.compile(r"<!-- (\w+): written by .*?<!-- end of \1 -->", re.DOTALL)  # by a program, from what is recorded
SHOWN = {"code_inline": "code", "softbreak": " ", "hardbreak": " ", "image": ""}  # a piece of code counts as a word


def text_of(block: Token) -> str:
    """What is read of a paragraph, of a heading or of a cell of a table."""
    return "".join(SHOWN.get(child.type, child.content) for child in block.children or ())


def too_long(markdown: str) -> list[str]:
    """The sentences and paragraphs that are too long."""
    found = []
    for block in MarkdownIt().enable("table").parse(WRITTEN.sub("", markdown)):
        if block.type == "inline":
            text = text_of(block)
            found += [sentence for sentence in END.split(text) if len(sentence.split()) > SENTENCE]
            found += [text] if len(text.split()) > PARAGRAPH else []
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_is_easy_to_read(path: Path) -> None:
    assert too_long(path.read_text(encoding="utf-8")) == []


def test_the_files_that_a_contributor_is_sent_to_are_there() -> None:
    named = set(NAMED.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert {"publish/data.py", "matmul/ampere.cuh"} <= named
    assert [name for name in sorted(named) if not any((room / name).is_file() for room in ROOMS)] == []


def test_what_is_too_long_is_found() -> None:
    long, many = "word " * 36, "One, `two three`. " * 61
    assert too_long(f"{long[5:]}\n\n{many[18:]}\n\n<!-- x: written by y -->\n\n{long}\n\n<!-- end of x -->") == []
    assert too_long(f"Short. {long}\n\n| a |\n| --- |\n| {long}|\n\n- {many}") == [
        long.strip(), long.strip(), many.replace("`two three`", "code").strip()
    ]  # fmt: skip


def test_no_file_of_tests_is_long() -> None:
    files = Path(__file__).parent.glob("*.py")
    assert [path.name for path in files if len(path.read_text(encoding="utf-8").splitlines()) > LINES] == []
