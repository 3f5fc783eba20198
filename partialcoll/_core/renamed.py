# SPDX-License-Identifier: Apache-2.0
"""Public names under their old spelling: they warn and do what the new ones do."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Callable, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """The method `new` under its old name."""

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        _warn(old, new)
        return getattr(self, new)(*arguments, **options)

    method.__name__ = old
    method.__doc__ = f"Old name of `{new}`, which gets the `arguments` and `options`."
    return method


def renamed_argument(old: str, new: str) -> Callable[[F], F]:
    """Decorator of a function whose argument `new` may be given by its old name."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if old in options:
                _warn(f"{old}=", f"{new}=")
                options[new] = options.pop(old)
            return function(*arguments, **options)

        return call  # type: ignore[return-value]

    return decorate


def renamed_names(module: dict[str, Any], new_names: dict[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module (its ``globals()``) some of whose names have changed."""

    def attribute(name: str) -> Any:
        if name not in new_names:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        _warn(name, new_names[name])
        return module[new_names[name]]

    return attribute
