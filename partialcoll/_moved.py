# SPDX-License-Identifier: Apache-2.0
"""Modules under names that they no longer have: importing one warns and gives the new one."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "allreduce": "collectives.allreduce",
    "gossip": "collectives.gossip",
    "group": "collectives.group",
    "pairing": "topology.pairing",
    "processes": "decentralized",
    "quantize": "codec",
    "resync": "collectives.state_exchange",
    "schedule": "collectives.schedule",
}
RENAMED = {"torch.ddp_hook": "torch.ddp", "torch.decentralised": "torch.decentralized"}


def _new_name(name: str) -> str | None:
    """The name of today for an old one; None for all other names."""
    package, _, path = name.partition(".")
    first, _, rest = path.partition(".")
    if package == "partialcoll" and path in RENAMED:
        return f"partialcoll.{RENAMED[path]}"
    if package != "partialcoll" or first not in MOVED:
        return None
    return ".".join(part for part in (package, MOVED[first], rest) if part)


def attribute(name: str) -> ModuleType:
    """``partialcoll.<old name>``: the package's ``__getattr__``."""
    new = _new_name(f"partialcoll.{name}")
    if new is None:
        raise AttributeError(f"module 'partialcoll' has no attribute {name!r}")
    module = importlib.import_module(new)
    setattr(sys.modules["partialcoll"], name, module)
    _warn(f"partialcoll.{name}", new)
    return module


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)


class _Alias(Loader):
    """Puts the module that has moved under its old name too."""

    def __init__(self, new: str) -> None:
        self._new = new

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        sys.modules[old] = importlib.import_module(self._new)
        _warn(old, self._new)


class _Finder(MetaPathFinder):
    """Knows the old names. It comes first, or a submodule of a moved package, found in the
    package's folder, would be loaded a second time."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = _new_name(name)
        return None if new is None else ModuleSpec(name, _Alias(new))


sys.meta_path.insert(0, _Finder())
