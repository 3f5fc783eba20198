# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring, and every docstring names the parameters.

A parameter may be named by another docstring to which this one refers: of the method that it
overrides, or of a name in backquotes, as in "See `Process`."
"""

import enum
import importlib
import inspect
import re
import sys

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

NAMES = ("partialcoll", "partialcoll.decentralized", "partialcoll.torch")
CODE = re.compile(r"``[^`]+``|`[^`]+`")
ENTRY = r"^ *(?:\*{{0,2}}\w+, )*\*{{0,2}}{}(?:, \*{{0,2}}\w+)*(?: :.*)?$"  # entry of a section


def public(name):
    """Yield module, name and object, including modules of the module."""
    if name == "partialcoll.torch":
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    for key in module.__all__:
        thing = getattr(module, key)
        if inspect.ismodule(thing):
            for inner, one in vars(thing).items():
                if not inner.startswith("_") and getattr(one, "__module__", "") == thing.__name__:
                    yield f"{key}.{inner}", one
        elif key != "__version__":
            yield key, thing


def is_ours(thing):
    return (getattr(thing, "__module__", None) or "").startswith("partialcoll")


def documented(name):
    """Yield name, callable and its class for a method: all public objects of ours."""
    for key, thing in public(name):
        if not callable(thing) or not is_ours(thing):
            continue
        yield key, thing, None
        for member in dir(thing) if inspect.isclass(thing) else ():
            value = getattr(thing, member)
            if not member.startswith("_") and callable(value) and is_ours(value):
                yield f"{key}.{member}", value, thing


def parameters(thing):
    """Return the parameter names. Protocols and enumerations are constructed by others."""
    if isinstance(thing, enum.EnumMeta) or getattr(thing, "_is_protocol", False):
        return []
    try:
        names = inspect.signature(thing).parameters
    except ValueError:  # an exception without its own arguments
        return []
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def text_of(thing):
    own = inspect.getdoc(thing) or ""
    init = getattr(thing, "__init__", None)
    return own + "\n" + (inspect.getdoc(init) or "" if inspect.isfunction(init) else "")


def _member(place, name):
    """Do not use the __getattr__ of a module, which warns of old names."""
    return vars(place).get(name) if inspect.ismodule(place) else getattr(place, name, None)


def referred(reference, thing, cls):
    """Return the object that a name in a docstring refers to, or None."""
    first, *others = reference.split(".")
    places = [cls, sys.modules[thing.__module__], *map(sys.modules.get, NAMES)]
    for place in places:
        found = sys.modules["partialcoll"] if first == "partialcoll" else _member(place, first)
        for other in others:
            found = getattr(found, other, None)
        if callable(found):
            return found
    return None


def texts(thing, cls):
    """Yield the docstring and those to which it refers."""
    yield text_of(thing)
    name = getattr(thing, "__name__", "")
    overridden = [getattr(base, name, None) for base in (cls.__mro__ if cls else ())]
    yield from map(text_of, filter(None, overridden))
    for reference in re.findall(r"`([\w.]+)`", text_of(thing)):
        found = referred(reference, thing, cls)
        if found is not None:
            yield text_of(found)


def names_it(text, parameter):
    """Return whether the parameter is named in code, or as an entry of a section."""
    word = rf"(?<!\w){parameter}(?!\w)"
    in_code = any(re.search(word, code) for code in CODE.findall(text))
    return in_code or re.search(ENTRY.format(parameter), text, re.MULTILINE) is not None


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring(name):
    missing = []
    for key, thing in public(name):
        if not inspect.getdoc(thing):
            missing.append(key)
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if member.startswith("_") or member in getattr(thing, "__slots__", ()):
                continue
            if (callable(value) or isinstance(value, property)) and not inspect.getdoc(value):
                missing.append(f"{key}.{member}")
    assert not missing, missing


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_name_every_parameter(name):
    unnamed = []
    for key, thing, cls in documented(name):
        said = list(texts(thing, cls))
        missing = [p for p in parameters(thing) if not any(names_it(text, p) for text in said)]
        if missing:
            unnamed.append(f"{key}({', '.join(missing)})")
    assert not unnamed, unnamed


def test_only_code_and_entries_name_a_parameter():
    assert names_it("Of `count` elements.", "count") and names_it("``f(count, 2)``", "count")
    assert names_it("Parameters\n----\ncount : int\n    Elements.", "count")
    assert names_it("first, count\n    See `f`.", "count")
    assert not names_it("Elements, by count, of `f` and of `g`.", "count")
    assert not names_it("The `counts` of `f`, all that count.", "count")
