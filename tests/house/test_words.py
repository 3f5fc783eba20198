# SPDX-License-Identifier: Apache-2.0
"""A page explains a word of the glossary at its first use: the word is emphasized as being defined,
or is a link, or is followed by an explanation in parentheses or after a colon."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
# For readers of the source: these begin with a link to the glossary.
INSIDE = ("docs/architecture.md", "docs/locking.md", "docs/verification.md")
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]

# The pattern of each word where it is used as in the glossary. A policy such as "solo,linger=50us"
# is an example.
WORDS = {
    "agent": r"\bagents?\b",
    "board": r"(?<!`)\bboard\b",
    "carry": r'"carry"',
    "deliver": r"(?<=`)deliver\b",
    "doorbell": r"\bdoorbells?\b",
    "drawn": r"\bdrawn\b",
    "fabric": r"\bfabric\b",
    "gate": r"\bgates?\b",
    "GOAL": r"\bGOAL\b",
    "key": r"(?<=as the )key\b",
    "linger": r"\blinger\b(?!=\d)",
    "live": r"\blive (?=ranks?\b|peers?\b)|(?<=not )live\b",
    "stored": r"\bstored\b",
    "void": r"(?<!`)\bvoid\b",
    "χ": r"χ",
}


def prose(page):
    """Return the page without code blocks, headings and link addresses."""
    text = (ROOT / page).read_text()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?:#| {4}LD_).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "](…)", text)


def is_explained(text, word):
    """Return whether the word is explained at this match."""
    before, after = text[: word.start()], text[word.end() :]
    in_link = before.rfind("[") > before.rfind("]") and re.match(r"[^\[\]]*\]\(", after)
    emphasized = re.search(r"\*[\w`\" ]*$", before) and re.match(r"[\w`\" ]*\*", after)
    return in_link or emphasized or re.match(r'[=`"*]*(?: ?\(|:)', after)


@pytest.mark.parametrize("page", PAGES)
def test_words_are_explained_where_they_are_first_used(page):
    if page in INSIDE:
        assert "(glossary.md)" in (ROOT / page).read_text()[:600]
        return
    if page == "docs/glossary.md":
        return
    text = prose(page)
    first = {word: re.search(form, text) for word, form in WORDS.items()}
    unexplained = {
        word: " ".join(text[max(0, found.start() - 60) : found.end() + 40].split())
        for word, found in first.items()
        if found and not is_explained(text, found)
    }
    assert not unexplained, unexplained


def test_each_word_stands_in_the_glossary():
    glossary = (ROOT / "docs/glossary.md").read_text()
    assert not [
        word for word in WORDS if not re.search(rf"\*\*.*{word}|, {word}:|{word}₁", glossary)
    ]
