# SPDX-License-Identifier: Apache-2.0
"""The mistakes that mutants.py plants. Each is one small change of a source under csrc/."""

from . import device, domains, engine, gate, gossip, groups, hosts, recovery, rounds, simulator
from .mutant import Mutant

_PARTS = (engine, rounds, domains, groups, gossip, simulator, device, recovery, hosts, gate)
MUTANTS: list[Mutant] = [mutant for part in _PARTS for mutant in part.MUTANTS]

__all__ = ["MUTANTS", "Mutant"]
