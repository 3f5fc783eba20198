# SPDX-License-Identifier: Apache-2.0
"""Strategies whose ranks have models of their own: local steps, and averages of models.

They are the options of the processes of `partialcoll.decentralized`, where all is said about each;
`docs/pytorch.md` says which is for what, docs/decentralized.md how to write another one.
"""

from __future__ import annotations

from typing import ClassVar

from .. import decentralized
from .strategies import Strategy


class LocalStrategy(decentralized.Options, Strategy):
    """Base of the strategies whose ranks step by themselves; what travels are models.

    A subclass is a frozen dataclass of options, with ``clip_norm``, and says how its process is
    built (`build`).
    """

    non_finite: ClassVar[str] = "skip"  # models of others would have it for good


class ADPSGD(decentralized.ADPSGDOptions, LocalStrategy):
    __doc__ = decentralized.ADPSGDOptions.__doc__


class A2CiD2(decentralized.A2CiD2Options, LocalStrategy):
    __doc__ = decentralized.A2CiD2Options.__doc__


class Swarm(decentralized.SwarmOptions, LocalStrategy):
    __doc__ = decentralized.SwarmOptions.__doc__


class SGP(decentralized.SGPOptions, LocalStrategy):
    __doc__ = decentralized.SGPOptions.__doc__


class DPSGD(decentralized.DPSGDOptions, LocalStrategy):
    __doc__ = decentralized.DPSGDOptions.__doc__


class LocalSGD(decentralized.LocalSGDOptions, LocalStrategy):
    __doc__ = decentralized.LocalSGDOptions.__doc__


class Moshpit(decentralized.MoshpitOptions, LocalStrategy):
    __doc__ = decentralized.MoshpitOptions.__doc__


class SlowMo(decentralized.SlowMoOptions, LocalStrategy):  # type: ignore[override]
    __doc__ = decentralized.SlowMoOptions.__doc__
