# SPDX-License-Identifier: Apache-2.0
"""Structs and files are named with words of docs/glossary.md, and each word has one entry."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
DEFINED, PLAIN = GLOSSARY.split("## Plain words")


def singular(word):
    """Also of a verb in the third person: what is left is a stem."""
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def entries():
    """Everything in bold, word by word, and the first words of the items' plain text."""
    terms = re.findall(r"\*\*([^*]+)\*\*", DEFINED)
    bare = re.findall(r"^- \*\*[^*]+\*\*, ([\w ,-]+):", DEFINED, re.MULTILINE)
    words = re.findall(r"[\w-]+", " ".join([*terms, *bare]).lower())
    return {singular(part) for word in words for part in (word, word.replace("-", ""))}


def known():
    plain = re.findall(r"[a-z_]\w*", PLAIN.split("\n\n", 2)[2].lower())
    return entries() | {singular(word) for word in plain}


def c_names():
    for path in sorted((ROOT / "csrc").rglob("*.[ch]")):
        yield path, path.stem
        yield from ((path, name) for name in path.relative_to(ROOT).parent.parts[1:])
        text = path.read_text()
        for name in re.findall(r"^\s*(?:typedef )?(?:struct|enum) (\w+) \{", text, re.MULTILINE):
            yield path, name


def python_names():
    for path in sorted((ROOT / "partialcoll").rglob("*.py")):
        if not path.name.startswith("_core_"):
            yield from ((path, name) for name in path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("names", [c_names, python_names])
def test_names_are_words_of_the_glossary(names):
    words = known()
    missing = {
        f"{part} ({path.relative_to(ROOT)}: {name})"
        for path, name in names()
        for part in name.lower().strip("_").split("_")
        if part and singular(part) not in words
    }
    assert not missing, "\n".join(sorted(missing))


def test_each_term_has_one_entry():
    heads = re.findall(r"^- \*\*([^*]+)\*\*", DEFINED, re.MULTILINE)
    assert sorted(heads) == sorted(set(heads))
