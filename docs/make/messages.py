# SPDX-License-Identifier: Apache-2.0
"""Every message with which the library refuses or warns, from its sources: raised, warned and
logged texts of Python, and texts of `fail` in C. Inserted parts are shown as "…"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CODES = {
    "EINVAL": "ValueError",
    "ESTATE": "StateError",
    "EMISMATCH": "MismatchError",
    "ENOMEM": "MemoryError",
    "EMPI": "MPI.Exception",
    "EPROTOCOL": "Error",
    "ETHREAD": "StateError",
    "EEMPTY": "StateError",
    "EAGAIN": "StateError",
}
LOGS = {"warning", "error", "warn"}
FAIL = re.compile(r'\bfail\(\s*PCOLL_(\w+),\s*((?:"(?:[^"\\]|\\.)*"\s*|PRI\w+\s*)+)')
HEAD = """# All messages

Every sentence that the library raises, warns of or logs, out of its sources; "…" is filled in.
[Messages and logs](trouble.md#what-a-message-means) says what causes each kind and what to do.
"""


class Message(NamedTuple):
    kind: str  # the name of the exception, or "warning"
    text: str
    file: str


def page(root: Path) -> str:
    """Return the page: messages by kind."""
    found = sorted({(m.kind, m.text) for m in messages(root)})
    kinds = dict.fromkeys(kind for kind, _ in found)
    return HEAD + "".join(
        f"\n## {kind}\n\n" + "".join(f"- {_escaped(text)}\n" for k, text in found if k == kind)
        for kind in kinds
    )


def _escaped(text: str) -> str:
    return f"`` {text} ``"


def messages(root: Path) -> Iterator[Message]:
    """Yield all messages that a program can get; not those of benchmarks and simulations."""
    for file in sorted((root / "partialcoll").rglob("*.py")):
        name = str(file.relative_to(root))
        if not re.search(r"/_core_|/_simulator|tools/(bench|sim)/|/include/", name):
            yield from _of_python(name, ast.parse(file.read_text()))
    for file in sorted((root / "csrc").rglob("*.c")):
        name = str(file.relative_to(root))
        if not name.startswith("csrc/simulator"):
            yield from _of_c(name, file.read_text())


def _of_python(file: str, tree: ast.AST) -> Iterator[Message]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            kind, text = ast.unparse(node.exc.func).split(".")[-1], _text(node.exc.args[0])
            if text and kind not in ("SystemExit", "AttributeError") and kind[0].isupper():
                yield Message(kind, text, file)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            text = _text(node.args[0]) if node.func.attr in LOGS else ""
            if text:
                yield Message("warning", text, file)


def _text(node: ast.expr) -> str:
    """Return the text of a literal, with … for inserted parts; "" if it has no other part."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = re.sub(r"%[-.\d]*[a-z]", "…", node.value)
    elif isinstance(node, ast.JoinedStr):
        text = "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        text = (_text(node.left) or "…") + (_text(node.right) or "…")
    else:
        return ""
    return "" if not text.strip(" …:;,") else " ".join(text.split())


def _of_c(file: str, code: str) -> Iterator[Message]:
    for code_name, literals in FAIL.findall(code):
        whole = re.sub(r'"\s*PRI\w+(\s*")?', lambda m: "d" if m[1] else 'd"', literals)
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', whole)
        text = re.sub(r"%[-.*\dzl]*[a-z]", "…", "".join(parts)).replace('\\"', '"')
        if text.strip(" …:"):
            yield Message(CODES.get(code_name, "Error"), " ".join(text.split()), file)
