# SPDX-License-Identifier: Apache-2.0
"""The reference of partialcoll.h: each of its comments as prose, above what it is about. The header
is written for that; a parser of C would add nothing."""

import re
from pathlib import Path

COMMENT = re.compile(
    r"^/\*(?! SPDX| cffi)(.*?)\*/\n(.*?)(?=^/\*|^#endif|\Z)", re.MULTILINE | re.DOTALL
)
NAME = re.compile(
    r"\b(pcoll_\w+|P(?:COLL_\w+))\s*(?=\(|\{)|^#define (\w+)|enum (\w+)", re.MULTILINE
)


def page(root: Path) -> str:
    """The page."""
    text = (root / "csrc/include/partialcoll.h").read_text()
    begin, *blocks = COMMENT.finditer(text[text.index("/*\n * partialcoll:") :])
    body = "".join(
        f"## {_title(b[2])}\n\n{_prose(b[1])}\n\n```c\n{_declared(b[2])}\n```\n\n" for b in blocks
    )
    return f"# C reference\n\n`#include <partialcoll.h>`. {_prose(begin[1])}\n\n{body}"


def _prose(comment: str) -> str:
    """Without stars; a list stays one. What Markdown would take for its own is escaped."""
    lines = [re.sub(r"^ \* ?|^ +(?=\S)", "", line).rstrip() for line in comment.strip().split("\n")]
    text = "\n".join(re.sub(r"^ +- ", "- ", line) for line in lines).strip(" *\n")
    text = re.sub(r"([<>*|])", r"\\\1", text)
    name = re.compile(r"\b((?:pcoll|PCOLL|MPI|PARTIALCOLL)_\w+(?:\(\)|\\\*)?|\w+_\w+)")
    text = name.sub(lambda found: f"`{found[1]}`".replace("\\", ""), text)
    return re.sub(r"\n(?=- )", "\n", re.sub(r"(?<=\S)\n(?=- )", "\n\n", text, count=1))


def _declared(code: str) -> str:
    """Without what is there for other compilers."""
    return code.split("\n#ifdef __cplusplus")[0].split("\n#pragma")[0].strip()


def _title(code: str) -> str:
    """The names that are declared."""
    code = re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)
    names = dict.fromkeys(next(filter(None, found)) for found in NAME.findall(code))
    return ", ".join(f"`{name}`" for name in list(names)[:3]) or "Conditions"
