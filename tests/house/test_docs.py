# SPDX-License-Identifier: Apache-2.0
"""The docs have every setting, warning and kind of error. Every page is linked."""

import fnmatch
import re
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "make"))
import messages  # noqa: E402
import pages  # noqa: E402

# Rows of a table that need an explanation each. For the others the kind is enough.
BY_SENTENCE = ("Error", "MismatchError", "MemoryError", "TimeoutError", "GroupTimeout", "warning")
OTHERS = "ValueError, TypeError, NotImplementedError, and others"
MADE = {
    "c-reference",
    "python-reference",
    "python-decentralized",
    "python-torch",
    "all-messages",
    "benchmarks",
    "contributing",
    "changelog",
    "security",
}


def sources():
    for folder in ("partialcoll", "csrc"):
        for file in (ROOT / folder).rglob("*.[pch]*"):
            if file.suffix in (".py", ".c", ".h") and "_core_" not in file.name:
                yield file.read_text()


def test_every_setting_is_on_its_page():
    read = re.compile(r"""["'](PARTIALCOLL_[A-Z_]+)["']""")
    found = {name for text in sources() for name in read.findall(text)}
    assert len(found) > 10
    named = set(re.findall(r"`(PARTIALCOLL_[A-Z_]+)`", (DOCS / "settings.md").read_text()))
    assert named == found


def patterns():
    """Return by heading the messages that the tables there explain."""
    text = (DOCS / "trouble.md").read_text().split("## What a message means")[1]
    text = text.split("## What is logged")[0]
    parts = re.split(r"^###? (.*)\n", text, flags=re.MULTILINE)[1:]
    by_kind = {}
    for heading, body in zip(parts[::2], parts[1::2]):
        rows = re.findall(r"^\| (`.*?`) \|", body, re.MULTILINE)
        for kind in heading.split(", "):
            by_kind[kind] = [p for row in rows for p in re.findall(r"`(.*?)`", row)]
    return by_kind


def explained(message, known):
    """Brackets of a message are not part of a pattern."""
    return any(fnmatch.fnmatchcase(message.text, p.replace("[", "[[]")) for p in known)


def test_every_message_is_explained():
    known = patterns()
    known["warning"] = known.pop("Warnings")
    found = list(messages.messages(ROOT))
    assert len(found) > 500
    unexplained = [
        message
        for message in found
        if message.kind in BY_SENTENCE and not explained(message, known[message.kind])
    ]
    assert not unexplained, unexplained


def test_every_error_class_is_explained():
    text = (DOCS / "trouble.md").read_text()
    for kind in re.findall(r"^class (\w+)\(", (ROOT / "partialcoll/errors.py").read_text(), re.M):
        assert re.search(rf"^###.*\b{kind}\b|`{kind}` ", text, re.MULTILINE), kind


def test_messages_are_found():
    c = 'return fail(PCOLL_EINVAL, "count: expected %u, "\n "got %" PRIu64, a, b);'
    assert list(messages._of_c("", c)) == [
        messages.Message("ValueError", "count: expected …, got …", "")
    ]
    python = "raise Error(f'a {b} c')\nlogger.warning('%d of %s', 1, 2)"
    found = messages._of_python("", messages.ast.parse(python))
    assert [(m.kind, m.text) for m in found] == [("Error", "a … c"), ("warning", "… of …")]


def test_every_page_is_reached():
    named = re.findall(r"^(?:.*<)?([\w-]+)>?$", (DOCS / "index.md").read_text(), re.MULTILINE)
    written = {file.stem for file in DOCS.glob("*.md")} - {"index"}
    assert not written - set(named)
    assert not MADE - set(named)


def test_llms_txt_names_every_page():
    named = re.findall(r"\]\(([\w-]+)\.md\)", (DOCS / "llms.txt").read_text())
    assert sorted(named) == sorted(file.stem for file in DOCS.glob("*.md"))


each_page = pytest.mark.parametrize(
    "page",
    sorted([*DOCS.glob("*.md"), DOCS / "llms.txt", ROOT / "README.md"]),
    ids=lambda p: p.name,
)


def without_code(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@each_page
def test_tables_are_whole(page):
    """A row separated from its table would be shown as text."""
    tables = re.findall(r"(?:^\|.*\n)+", without_code(page), re.MULTILINE)
    assert not [t for t in tables if not re.match(r".*\n\|[-:| ]+\|\n", t)]


@each_page
def test_links_lead_somewhere(page):
    text = without_code(page)
    lost = [
        target
        for target, _ in pages.LINK.findall(text)
        if not (page.parent / target).exists() and target.removesuffix(".md") not in MADE
    ]
    assert not lost
