# SPDX-License-Identifier: Apache-2.0
"""Where autograd puts the gradients, and whether it has done so.

`param.grad` is a view of the handle's send buffer from `zero_grad()` to `step()`, and a view of the
applied gradient from then to the next `zero_grad()`. A hook on each parameter, which autograd calls
when a gradient has been added, counts backward passes and moves what landed elsewhere.

             collect()                 restart(), show()               collect()
    param.grad:  | send buffer, from zero  | applied gradient ...          | next send buffer
                 zero_grad()  backward()   step(): deposit, wait, apply    zero_grad()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Protocol

import torch

from ..errors import StateError
from .flat import Layout, Named, Views
from .metrics import Metrics

OF_ANOTHER = (
    "if the gradient came with another model's, as in a GAN, call requires_grad_(False) of this "
    "model before that backward pass, and requires_grad_(True) after it"
)


class Slot:
    """Memory for the gradients of one step: buffers, and views in them for the parameters. `rows`
    goes along with them, where they are a handle's."""

    def __init__(self, layout: Layout, flats: list[torch.Tensor], rows: Any = None) -> None:
        self.flats, self.rows = flats, rows
        self.views = layout.views(flats)


class Watch(Protocol):
    """Who wants to know when a gradient is complete, and takes it away then."""

    def filled(self, i: int) -> None:
        """That of parameter i is."""

    def check_waits(self, i: int) -> None:
        """StateError if that of parameter i has been taken away."""


class Gradients:
    """The gradients of a list of named parameters. Keeps no reference to the optimizer.

    passes: backward passes that belong to a step. sparse: parameters whose gradients stay where
    autograd puts them. refusal: why others may not have sparse gradients; None: they may, which
    autograd then adds to the dense memory.
    """

    def __init__(
        self,
        parameters: Named,
        passes: int,
        slot: Slot,
        metrics: Metrics,
        watch: Watch | None = None,
        *,
        sparse: Named,
        refusal: str | None,
    ) -> None:
        self._watch = watch
        self._shown: Views = slot.views
        self._names = [name for name, _ in (*parameters, *sparse)]
        self._parameters = [parameter for _, parameter in parameters]
        self.sparse = [parameter for _, parameter in sparse]
        self.passes, self._metrics = passes, metrics
        self._passes = [0] * len(self._names)
        self._any = False
        self._averaged = self._spoilt = False
        self.slot = slot
        self.used: list[bool] = []  # dense parameters that had a gradient when it was gathered last
        self._hooks: list[Any] = []
        self.collect()
        for i, parameter in enumerate((*self._parameters, *self.sparse)):
            hookable: Any = parameter
            self._hooks.append(hookable.register_post_accumulate_grad_hook(self._hook(i)))
            if refusal is not None and i < len(parameters):
                self._hooks.append(self._refuse_sparse(i, hookable, refusal))

    def _hook(self, i: int) -> Callable[[torch.Tensor], None]:
        dense = i < len(self._parameters)

        def added(parameter: torch.Tensor) -> None:
            self._any = True
            self._passes[i] += 1
            if self._passes[i] > self.passes:
                raise StateError(
                    f"parameter {self._names[i]!r}: a gradient came {self._passes[i]} times before "
                    f"step(), expected backward_passes_per_step={self.passes}; call step() after "
                    f"each backward pass, or set backward_passes_per_step; {OF_ANOTHER}"
                )
            if self._averaged:
                self._spoilt = True
                raise StateError(
                    "backward() between synchronize() and step(): its gradient would be added to "
                    "the average, on this rank alone"
                )
            if not dense:
                return
            if parameter.grad is not self.slot.views.tensors[i]:
                self._move(i)
            if self._watch is not None and self._passes[i] == self.passes:
                if self.slot.views.has_strayed(i):
                    self._move(i)
                self._watch.filled(i)

        return added

    def _refuse_sparse(self, i: int, parameter: Any, refusal: str) -> Any:
        """Looks at the first gradient that comes; costs nothing afterwards."""

        def look(gradient: torch.Tensor) -> None:
            if gradient.layout != torch.strided:
                raise TypeError(f"parameter {self._names[i]!r}: its gradient is sparse; {refusal}")
            hook.remove()

        hook = parameter.register_hook(look)
        return hook

    @torch.no_grad()
    def _move(self, i: int) -> None:
        """A gradient in memory of the program's own goes to the send buffer."""
        if self._watch is not None:
            self._watch.check_waits(i)
        parameter, view = self._parameters[i], self.slot.views.sound()[i]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        else:
            if gradient.is_sparse:
                gradient = gradient.to_dense()
            if gradient.shape != view.shape or gradient.layout != torch.strided:
                raise ValueError(
                    f"parameter {self._names[i]!r}: expected a dense gradient of shape "
                    f"{tuple(view.shape)}, got {gradient.layout} of {tuple(gradient.shape)}"
                )
            view.copy_(gradient)
            self._metrics.copied += 1
        parameter.grad = view

    @property
    def flats(self) -> list[torch.Tensor]:
        """All of them, one tensor for each dtype, and for each sparse one that there is."""
        return [*self.slot.flats, *self.sparse_values()] if self.sparse else self.slot.flats

    def sparse_values(self) -> list[torch.Tensor]:
        """Those of the sparse gradients; what is done to them is done to the gradients."""
        there = [parameter.grad for parameter in self.sparse if parameter.grad is not None]
        return [gradient._values().view(-1) for gradient in there]

    def set_passes(self, passes: int) -> None:
        """From the next step on. StateError between a backward pass and the step."""
        if self._any:
            raise StateError(
                "set_backward_passes_per_step() between backward() and step(); call step() first"
            )
        self.passes = passes

    @property
    def came(self) -> bool:
        """Has a gradient come since the last round?"""
        return self._any

    def check_complete(self, fewer: bool) -> None:
        """Raises StateError if a backward pass is missing; `fewer`: all of them."""
        if not self._any and self._assigned():
            return  # torch.func and the like: no backward pass that a hook could see
        if not self._any:
            raise StateError("step() without backward: no gradient has come since the last step")
        most = max(self._passes)
        if most < self.passes and not fewer:
            raise StateError(
                f"step() after {most} of {self.passes} backward passes (backward_passes_per_step)"
            )

    def _assigned(self) -> bool:
        """Has the program made a tensor of its own some parameter's gradient?"""
        known = zip(self._parameters, self.slot.views.tensors, self._shown.tensors)
        return any(p.grad is not None and p.grad is not a and p.grad is not b for p, a, b in known)

    def gather(self) -> None:
        """Take what the program has put in the place of a view, or taken away, since backward.

        A parameter is used if autograd or the program gave it a gradient. Where no hook was called,
        the program may have written to the view: then it is not zero.
        """
        for parameter in self.sparse:
            if parameter.grad is not None:
                parameter.grad = by_rows(parameter.grad)
        strayed = self.slot.views.strayed()
        self.used = []
        for i, (parameter, view) in enumerate(zip(self._parameters, self.slot.views.tensors)):
            given, elsewhere = parameter.grad, parameter.grad is not view or i in strayed
            came = bool(self._passes[i]) or elsewhere or bool(view.any())
            self.used.append(given is not None and came)
            if elsewhere:
                self._move(i)

    def hide(self, used: Sequence[bool]) -> None:
        """Make the gradients of the other dense parameters None, until they are shown again."""
        for parameter, one in zip(self._parameters, used):
            if not one:
                parameter.grad = None

    def hold_average(self) -> None:
        """From now to `give_average` what is shown is the average: no gradient may come."""
        self._averaged = True

    def give_average(self) -> None:
        """The update takes it. StateError if a gradient has come."""
        if self._spoilt:
            raise StateError(
                "step() after backward() since synchronize(): the average is spoilt on this rank; "
                "begin anew from a checkpoint, on all ranks"
            )
        self._averaged = False

    def forget(self) -> None:
        """What has come since the last round, and an average that no update has taken."""
        self._averaged = self._spoilt = False
        self.restart(self.slot)
        self.collect()

    def restart(self, slot: Slot) -> None:
        """The next round's backward passes begin, and end in this slot."""
        self._any = False
        self._passes = [0] * len(self._passes)
        self.slot = slot

    def collect(self) -> None:
        """From now on gradients gather in the slot, from zero."""
        for flat in self.slot.flats:
            flat.zero_()
        for parameter in self.sparse:
            parameter.grad = None
        self.show(self.slot.views)

    def show(self, views: Views) -> None:
        """Make these the parameters' gradients."""
        self._shown = views
        for parameter, view in zip(self._parameters, views.sound()):
            parameter.grad = view

    def drop(self) -> None:
        """Leave the parameters alone. Gradients that lie elsewhere than here stay: another
        optimizer may have the parameters by now."""
        for hook in self._hooks:
            hook.remove()
        own = {id(view) for views in (self._shown, self.slot.views) for view in views.tensors}
        for parameter in self._parameters:
            if id(parameter.grad) in own:
                parameter.grad = None

    def close(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()
        for parameter in (*self._parameters, *self.sparse):
            parameter.grad = None


def by_rows(gradient: torch.Tensor) -> torch.Tensor:
    """The same as a sparse tensor of rows."""
    if gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1:
        return gradient
    return gradient.to_dense().to_sparse(1) if gradient.is_sparse else gradient.to_sparse(1)
