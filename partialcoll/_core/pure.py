# SPDX-License-Identifier: Apache-2.0
"""What of the core needs neither MPI nor other ranks: the numbers of its kinds, policies, grids,
the codec. The simulator's library has it too, and that one can be loaded everywhere."""

from __future__ import annotations

from .simulator import simulator

ffi, lib = simulator.ffi, simulator.lib
check = simulator.check
call = simulator.call
answer = simulator.answer
