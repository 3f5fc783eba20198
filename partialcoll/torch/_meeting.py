# SPDX-License-Identifier: Apache-2.0
"""Where the ranks make the loop of an optimizer together: at first, and again in a world with
newcomers, which make theirs at first."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from .._core.survivors import all_have
from ..collectives.agreement import check_agreement, together
from ..errors import RankFailedError
from . import world
from ._checks import describe
from ._loop import Loop, Settings
from ._round_loop import RoundLoop
from .flat import Named
from .strategies import Allreduce, Eager, Strategy
from .world import global_process_set

Made = TypeVar("Made", bound=Loop)


def check_replaced(strategy: Strategy, process_set: Any) -> None:
    """Can newcomers take part, where the dead are replaced? ValueError if not."""
    if world.world().replacing is None:
        return
    if process_set not in (None, global_process_set):
        raise ValueError("process_set: expected None after init(respawn=True)")
    if not isinstance(strategy, (Allreduce, Eager)) or strategy.on_failure != "continue":
        raise ValueError(
            "strategy: expected Allreduce or Eager with on_failure='continue' after "
            f"init(respawn=True), whose ranks have the same parameters; got {strategy!r}"
        )


def check_alike(
    ranks: Any, size: int, strategy: Strategy, settings: Settings, parameters: Named
) -> None:
    """Are options and model the same on all of these ranks (`agreement.Gathers`)? Collective."""
    said = [("strategy", strategy.describe(size)), *settings.describe()]
    check_agreement(ranks, [*said, *describe(parameters)])


def made(make: Callable[[], Made]) -> Made:
    """What all ranks make; where the dead are replaced anew, in a world of those who live, if
    somebody dies meanwhile. Collective."""
    while True:
        here = world.world()
        loop: Made | None = None
        failure: Exception | None = None
        try:
            loop = make()
            if here.replacing is None:
                return loop
        except RankFailedError as error:
            if here.replacing is None:
                raise
            failure = error
        try:
            all_have(here.comm, failure)
        except RankFailedError as error:
            failure = error
        if loop is not None and failure is None:
            return loop
        if loop is not None:
            loop.abandon()
        world.form_anew()


def made_anew(before: RoundLoop) -> RoundLoop:
    """The loop of a survivor, in a world with newcomers. Collective."""
    before.free()

    def make() -> RoundLoop:
        calls = world.world().calls
        together(calls, lambda: None)  # newcomers' arguments may be wrong
        check_alike(calls, calls.comm.size, before.strategy, before.settings, before.parameters)
        return before.over(calls.comm)

    return made(make)
