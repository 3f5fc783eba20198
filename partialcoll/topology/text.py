# SPDX-License-Identifier: Apache-2.0
"""Topologies as text: ``name[:argument][,key=value]``, without spaces.

    topology = name | "torus:" side {"x" side} | "random_regular:" degree [",seed=" seed]
    name     = "ring" | "complete" | "exponential" | "torus" | "star" | "hypercube"
             | "bipartite_ring" | "directed_exponential" | "one_peer_exponential"

Numbers are decimal, without sign. What the graph itself demands (a product of sides, an even
number of ranks) is checked where it is made.
"""

from __future__ import annotations

import re
from typing import Any

PLAIN = (
    "ring",
    "complete",
    "exponential",
    "star",
    "hypercube",
    "bipartite_ring",
    "directed_exponential",
    "one_peer_exponential",
)
NAMES = (*PLAIN, "torus", "random_regular")
_TORUS = re.compile(r"[0-9]{1,9}(x[0-9]{1,9})*")
_REGULAR = re.compile(r"([0-9]{1,9})(,seed=([0-9]{1,18}))?")


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Which constructor of Topology a text names, and with which arguments."""
    name, colon, argument = text.partition(":")
    if name not in NAMES:
        raise ValueError(f"topology: expected one of {', '.join(NAMES)}, got {text!r}")
    if name == "torus" and not colon:
        return name, {}
    if name == "torus":
        if not _TORUS.fullmatch(argument):
            raise _wrong("torus or torus: and the sides, as in torus:4x8", text)
        return name, {"shape": [int(side) for side in argument.split("x")]}
    if name == "random_regular":
        found = _REGULAR.fullmatch(argument)
        if not found:
            raise _wrong("random_regular:degree or random_regular:degree,seed=number", text)
        return name, {"degree": int(found[1]), "seed": int(found[3] or 0)}
    if colon:
        raise _wrong(f"{name} without an argument", text)
    return name, {}


def _wrong(expected: str, text: str) -> ValueError:
    return ValueError(f"topology: expected {expected}, got {text!r}")
