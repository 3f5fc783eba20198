# SPDX-License-Identifier: Apache-2.0
"""What of the core needs neither MPI nor other ranks: the numbers of its kinds, policies, grids,
the codec; and the objects of the core over simulated ranks. All of it is in the compiled
simulator's library, which can be loaded everywhere. The only module that touches it."""

from __future__ import annotations

import importlib

from .library import Library

simulator = Library(lambda: importlib.import_module("partialcoll._simulator"))


ffi, lib = simulator.ffi, simulator.lib
check = simulator.check
call = simulator.call
answer = simulator.answer


def codes(kind: str, *words: str) -> dict[str, int]:
    """Return the numbers that the core has for these words, as "agent" of "PROGRESS"."""
    return {word: getattr(lib, f"PCOLL_{kind}_{word.upper()}") for word in words}
