# SPDX-License-Identifier: Apache-2.0
"""The reference of the public modules: what their __all__ names, by its docstrings."""

import importlib
import inspect
from pathlib import Path

OURS = "partialcoll"
MODULES = ("partialcoll", "partialcoll.decentralized", "partialcoll.torch")


def page(_: Path) -> str:
    """The page."""
    return "# Python reference\n\n" + "".join(map(_module, MODULES))


def _module(name: str) -> str:
    module = importlib.import_module(name)
    first = (inspect.getdoc(module) or "").split("\n\n")[0].replace("\n", " ")
    entries = "\n".join(_entry(name, module, thing) for thing in module.__all__)
    return f"## {name}\n\n{first}\n\n```{{eval-rst}}\n{entries}\n```\n\n"


def _entry(name: str, module: object, thing: str) -> str:
    value = getattr(module, thing)
    if inspect.ismodule(value):
        return f".. automodule:: {value.__name__}\n   :members:\n"
    if inspect.isclass(value):
        options = f"   :members:\n   :inherited-members: {_foreign(value)}\n"
        return f".. autoclass:: {name}.{thing}\n{options}"
    kind = "function" if callable(value) else "data"
    return f".. auto{kind}:: {name}.{thing}\n" + ("   :no-value:\n" if kind == "data" else "")


def _foreign(cls: type) -> str:
    """The bases that are not of this package: what they bring is described elsewhere."""
    return ", ".join(b.__name__ for b in cls.__mro__ if not b.__module__.startswith(OURS))
