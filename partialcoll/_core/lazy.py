# SPDX-License-Identifier: Apache-2.0
"""What is loaded when it is first used."""

from __future__ import annotations

from typing import Any, Callable


class Lazy:
    """Stands for an object that `load` gives when an attribute of it is first asked for."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.__dict__["_load"] = load

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._load(), name)
        self.__dict__[name] = found  # the next time it is found at once
        return found

    def __dir__(self) -> list[str]:
        return dir(self._load())
