# SPDX-License-Identifier: Apache-2.0
"""The registry of the decentralized strategies. `partialcoll.decentralized` and `partialcoll.torch`
take their classes from here; `bench train`, `sim gossip` and the command line their names."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

from ..codec import Lattice
from .a2cid2 import A2CiD2
from .adpsgd import ADPSGD
from .dpsgd import DPSGD
from .localsgd import LocalSGD
from .moshpit import Moshpit
from .sgp import SGP
from .slowmo import SlowMo
from .strategy import LocalStrategy
from .swarm import Swarm

__all__ = ["ADPSGD", "DPSGD", "SGP", "A2CiD2", "LocalSGD", "Moshpit", "SlowMo", "Swarm"]


def _slowmo(**options: Any) -> SlowMo:
    return SlowMo(LocalSGD(**options))


# The names of the command line. Each value creates the strategy from its options.
NAMED: dict[str, Callable[..., LocalStrategy]] = {
    "adpsgd": ADPSGD,
    "dpsgd": DPSGD,
    "swarm": Swarm,
    "swarm-registers": partial(Swarm, variant="registers"),
    "swarm-8bit": partial(Swarm, codec=Lattice(bits=8)),
    "a2cid2": A2CiD2,
    "a2cid2-paper": partial(A2CiD2, variant="paper"),
    "a2cid2-baseline": partial(A2CiD2, accelerated=False),
    "moshpit": Moshpit,
    "sgp": SGP,
    "localsgd": LocalSGD,
    "slowmo": _slowmo,
}
