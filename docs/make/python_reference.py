# SPDX-License-Identifier: Apache-2.0
"""The reference of the public modules, one page each: the names in __all__, by their docstrings."""

import importlib
import inspect

OURS = "partialcoll"
MODULES = {
    "python-reference.md": "partialcoll",
    "python-decentralized.md": "partialcoll.decentralized",
    "python-torch.md": "partialcoll.torch",
}


def page(name: str) -> str:
    """Return the page of a module, with its submodules."""
    module = importlib.import_module(name)
    first = (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
    inner = [thing for thing in module.__all__ if inspect.ismodule(getattr(module, thing))]
    entries = [_entry(name, module, thing) for thing in module.__all__ if thing not in inner]
    text = f"# Python: {name}\n\n{first}\n\n{_rst(entries)}"
    for thing in inner:
        whole = f".. automodule:: {getattr(module, thing).__name__}\n   :members:\n"
        text += f"## {name}.{thing}\n\n{_rst([whole])}"
    return text


def _rst(entries: list[str]) -> str:
    return "```{eval-rst}\n" + "\n".join(entries) + "\n```\n\n"


def _entry(name: str, module: object, thing: str) -> str:
    value = getattr(module, thing)
    if isinstance(value, str):
        return f".. py:data:: {name}.{thing}\n   :type: str\n"
    if inspect.isclass(value):
        options = f"   :members:\n   :inherited-members: {_foreign(value)}\n"
        if not value.__module__.startswith(name):  # its own module's page has the entry
            options += "   :no-index:\n"
        return f".. autoclass:: {name}.{thing}\n{options}"
    kind = "function" if callable(value) else "data"
    return f".. auto{kind}:: {name}.{thing}\n" + ("   :no-value:\n" if kind == "data" else "")


def _foreign(cls: type) -> str:
    """Return the base classes of other packages, whose members are documented elsewhere."""
    return ", ".join(b.__name__ for b in cls.__mro__ if not b.__module__.startswith(OURS))
