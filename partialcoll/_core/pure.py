# SPDX-License-Identifier: Apache-2.0
"""What of the core needs neither MPI nor other ranks: the numbers of its kinds, policies, grids,
the codec; and the objects of the core over simulated ranks. All of it is in the compiled
simulator's library, which can be loaded everywhere. The only module that touches it."""

from __future__ import annotations

import importlib

from .library import Library

# The compiled simulator: the objects of the core over simulated ranks, and the core's arithmetic.
# It neither contains nor loads MPI. No other module imports it.

simulator = Library(lambda: importlib.import_module("partialcoll._simulator"))


ffi, lib = simulator.ffi, simulator.lib
check = simulator.check
call = simulator.call
answer = simulator.answer
