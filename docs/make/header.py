# SPDX-License-Identifier: Apache-2.0
"""The reference of partialcoll.h: each comment as prose, above its declarations. The header is
written for this, so no C parser is needed."""

import re
from pathlib import Path

COMMENT = re.compile(
    r"^/\*(?! SPDX| cffi)(.*?)\*/\n(.*?)(?=^/\*|^#endif|\Z)", re.MULTILINE | re.DOTALL
)
NAME = re.compile(
    r"\b(pcoll_\w+|P(?:COLL_\w+))\s*(?=\(|\{)|^#define (\w+)|enum (\w+)", re.MULTILINE
)


def page(root: Path) -> str:
    """Return the page."""
    text = (root / "csrc/include/partialcoll.h").read_text()
    begin, *blocks = COMMENT.finditer(text[text.index("/*\n * partialcoll:") :])
    body = "".join(
        f"## {_title(b[2])}\n\n{_prose(b[1])}\n\n```c\n{_declared(b[2])}\n```\n\n" for b in blocks
    )
    return f"# C reference\n\n`#include <partialcoll.h>`. {_prose(begin[1])}\n\n{body}"


def _prose(comment: str) -> str:
    """Return the comment without stars. Lists are kept, and Markdown's characters escaped."""
    lines = [re.sub(r"^ \* ?|^ +(?=\S)", "", line).rstrip() for line in comment.strip().split("\n")]
    text = "\n".join(re.sub(r"^ +- ", "- ", line) for line in lines).strip(" *\n")
    text = re.sub(r"([<>*|])", r"\\\1", text)
    name = re.compile(r"\b((?:pcoll|PCOLL|MPI|PARTIALCOLL)_\w+(?:\(\)|\\\*)?|\w+_\w+)")
    text = name.sub(lambda found: f"`{found[1]}`".replace("\\", ""), text)
    return re.sub(r"\n(?=- )", "\n", re.sub(r"(?<=\S)\n(?=- )", "\n\n", text, count=1))


def _declared(code: str) -> str:
    """Return the code without parts for other compilers."""
    return code.split("\n#ifdef __cplusplus")[0].split("\n#pragma")[0].strip()


def _title(code: str) -> str:
    """Return the declared names."""
    code = re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL)
    names = dict.fromkeys(next(filter(None, found)) for found in NAME.findall(code))
    return ", ".join(f"`{name}`" for name in list(names)[:3]) or "Conditions"
