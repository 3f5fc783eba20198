# SPDX-License-Identifier: Apache-2.0
"""Methods that torch.compile does not look into: it can make nothing of what is below them."""

from __future__ import annotations

import sys
from typing import Any, Callable

from torch.compiler import disable


class untraced:
    """Decorates a method. While a compiled program runs, torch looks into each function that is
    called with tensors, those that C++ calls included, unless it is told not to. Telling it loads
    its compiler, which takes a second: so it is told once somebody else has loaded that. This is no
    function with tensors, so torch does not look into it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.__doc__ = method.__doc__
        self._method, self._left_alone = method, False

    def __get__(self, instance: Any, owner: type) -> Any:
        if not self._left_alone and "torch._dynamo" in sys.modules:
            self._method, self._left_alone = disable(self._method), True
        return self._method if instance is None else self._method.__get__(instance, owner)
