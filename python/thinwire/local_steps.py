"""Several steps of each rank's own optimizer from one synchronization to the next."""
import copy
import math
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.extension import _C
from thinwire.handle import Handle
from thinwire.hook import hooked_models
from thinwire.wrappers import ddp_within, named_parameters

__all__ = ["LocalSteps"]

_States = Dict[Any, Any]


def _copy_of(value: Any) -> Any:
    """Of what an optimizer keeps."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copy_of(one) for name, one in value.items()}
    return copy.deepcopy(value)


@contextmanager
def _without_hooks(parameters: List[nn.Parameter]) -> Iterator[None]:
    """Hooks on parameters are for gradients: they would change updates, and so the mean."""
    found: List[Tuple[Any, Any]] = []
    for one in parameters:
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(one, name, None)
            if hooks:
                found.append((hooks, list(hooks.items())))
                hooks.clear()
    try:
        yield
    finally:
        for hooks, kept in found:
            hooks.update(kept)


class _Parameters(nn.Module):
    """Gives out parameters that are not its own."""

    def __init__(self, parameters: List[nn.Parameter]) -> None:
        super().__init__()
        self._given = tuple(parameters)  # in a tuple torch does not register them

    def forward(self) -> List[torch.Tensor]:
        return [one.view_as(one) for one in self._given]


class LocalSteps:
    """Ranks synchronize how far their optimizers moved the model, once in ``every`` steps.

    ::

        model = DistributedDataParallel(net)
        thinwire.register(model, "marsit:full_every=100")
        local = thinwire.LocalSteps(model, optimizer, every=4)
        for batch in batches:
            with local.no_sync():
                loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            local.step()
        local.finish()

    A round is ``every`` local steps. At its end each rank's update, the parameters at the round's beginning
    minus those now, goes through the system of ``register`` in place of a gradient. All ranks then continue
    from the beginning minus ``outer_rate`` times the mean update. So a residual is in units of parameters.
    Each rank's optimizer keeps its state. DDP sends rank 0's buffers to all ranks when a round ends.

    The parameters, the buffers and the optimizer's state are kept once more, as they were when the round
    began. Where a rank's update has inf or NaN, the round is undone on all ranks: all three become what they
    were. So they do where a synchronization raises.

    Source: F. Wu et al., "Sign Bit is Enough", DAC 2022 (Marsit), section 5 and Algorithm 2. The paper has no
    ``outer_rate``: it is 1 there.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, every: int,
                 outer_rate: float = 1.0) -> None:
        """Not collective. A round begins with its first ``no_sync``: weights and states may be loaded before.

        model: registered, without ``optimizer`` and ``grad_scaler``, which are of gradients; its gradients
            are dense.
        optimizer: any that keeps its state in ``optimizer.state``. Clipping, schedules and a GradScaler are
            each rank's own.
        every: local steps of a round, the same on all ranks.
        outer_rate: the same on all ranks.

        Raises TypeError for what is not a DDP model; ValueError for a model that is not registered, for a bad
        number, for sparse gradients, and for a system that is made for gradients alone.
        """
        ddp = ddp_within(model)
        if ddp is None:
            raise TypeError(f"LocalSteps takes a DistributedDataParallel model, not {type(model).__name__}: "
                            "wrap and register it first")
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise ValueError(f"every={every!r}: a whole number of steps from 1 is needed")
        if not isinstance(outer_rate, (int, float)) or not 0 < outer_rate < math.inf:
            raise ValueError(f"outer_rate={outer_rate!r}: a number above 0 is needed, 1 for the mean update")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ValueError(f"optimizer={optimizer!r}: a torch.optim.Optimizer is needed")
        self._ddp: DistributedDataParallel = ddp
        self._optimizer = optimizer
        self._every = every
        self._outer_rate = float(outer_rate)
        self._taken = 0  # local steps of this round
        handle = self._registered()
        self._require_updates_fit(handle)
        if vars(ddp).get("static_graph"):
            raise ValueError("static_graph=True: torch's static graphs do not bear no_sync in the first "
                             "step: leave it out of DistributedDataParallel(...)")
        self._parameters: List[nn.Parameter] = []  # those that this round trains
        self._start: List[torch.Tensor] = []
        self._buffers_at_start: List[torch.Tensor] = []
        self._state_at_start: _States = {}
        self._synchronized = 0  # the handle's step when the round began
        self._has_begun = False

    def no_sync(self) -> "AbstractContextManager[None]":
        """For each forward and backward of a local step: gradients stay on their rank.
        The first one of a round begins it."""
        if not self._has_begun:
            self._begin()
        ddp: Any = self._ddp  # torch's types take its methods for tensors
        context: "AbstractContextManager[None]" = ddp.no_sync()
        return context

    def step(self) -> bool:
        """After ``optimizer.step()``: counts it, and ends the round where it was the last one. Collective
        then. Returns whether it ended a round. Sets the gradients to None then.

        Raises RuntimeError where gradients were synchronized in this round, and what a failed synchronization
        raises.
        """
        handle = self._registered()
        self._require_round(handle)
        self._taken += 1
        if self._taken < self._every:
            return False
        self._end_round(handle)
        return True

    def finish(self) -> bool:
        """Ends a round that has begun, so that ranks have one model: before it is evaluated or saved, and at
        the end. Collective. Returns whether there was one: all ranks have taken as many local steps."""
        if self._taken == 0:
            return False
        handle = self._registered()
        self._require_round(handle)
        self._end_round(handle)
        return True

    def _require_round(self, handle: Handle) -> None:
        if not self._has_begun or handle.step != self._synchronized:
            raise RuntimeError("a backward of this round has synchronized gradients: let forward and "
                               "backward of local steps run within `with local.no_sync():`. Or the handle's "
                               "state was loaded within a round, or the model registered anew: do that "
                               "between rounds")

    def _registered(self) -> Handle:
        hooked = hooked_models.get(self._ddp)
        handle: Optional[Handle] = None if hooked is None else hooked.handle
        if handle is None or handle._is_closed:
            raise ValueError("the model is not registered: call thinwire.register(model, spec) first, "
                             "and keep its handle open")
        return handle

    def _require_updates_fit(self, handle: Handle) -> None:
        if handle._optimizer is not None or handle._loss_scale is not None:
            name = "optimizer" if handle._optimizer is not None else "grad_scaler"
            raise ValueError(f"the model was registered with {name}=..., which is for gradients, and local "
                             "steps synchronize updates: register it without")
        for system in _C.unclipped_systems(handle.spec):
            raise ValueError(f"spec {handle.spec!r}: {system} is for gradients, and local steps synchronize "
                             "updates: take another spec")
        for name, module in self._ddp.module.named_modules():
            if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
                raise ValueError(f"{name or 'the model'} has sparse gradients, and local steps move whole "
                                 "parameters: make it with sparse=False")

    @torch.no_grad()
    def _begin(self) -> None:
        self._synchronized = self._registered().step
        self._has_begun = True
        self._parameters = [one for _, one in named_parameters(self._ddp) if one.requires_grad]
        self._start = [one.detach().clone() for one in self._parameters]
        self._buffers_at_start = [one.detach().clone() for one in self._ddp.module.buffers()]
        self._state_at_start = {of: _copy_of(state) for of, state in self._optimizer.state.items()}

    def _end_round(self, handle: Handle) -> None:
        self._require_updates_fit(handle)
        trained = {id(one) for one in self._parameters}
        for name, one in named_parameters(self._ddp):
            if one.requires_grad != (id(one) in trained):
                raise ValueError(f"requires_grad of {name} has changed within a round of local steps: change "
                                 "it between rounds, behind finish()")
        with torch.no_grad():
            updates = [start - one for start, one in zip(self._start, self._parameters)]
            for one, start in zip(self._parameters, self._start):
                one.copy_(start)
        handle._engine.set_learning_rate(self._outer_rate)
        try:
            self._synchronize(updates)
            if handle.step != self._synchronized + 1:
                raise RuntimeError("DDP waits for gradients of parameters that have none, as those do which "
                                   "were frozen after the model was wrapped: give DistributedDataParallel "
                                   "find_unused_parameters=True, or freeze before wrapping")
            counts = all(bool(torch.isfinite(one.grad).all()) for one in self._parameters
                         if one.grad is not None)
        except BaseException:
            self._undo()
            raise
        finally:
            self._has_begun, self._taken = False, 0
        if not counts:
            self._undo()
            return
        with torch.no_grad():
            for one in self._parameters:
                if one.grad is not None:
                    one.sub_(one.grad, alpha=self._outer_rate)
                one.grad = None

    def _synchronize(self, updates: List[torch.Tensor]) -> None:
        """Leaves the mean update in the gradients. DDP's own backward carries it: a module that gives the
        parameters out as they are stands in for the model, so their gradients are what goes into backward.
        Neither the model's hooks nor what torch.compile made of it see anything of that."""
        for one in self._parameters:
            one.grad = None
        ddp: Any = self._ddp
        # A forward behind no_sync leaves buffers out, and one of a module without buffers fails.
        if ddp.broadcast_buffers and next(ddp.module.buffers(), None) is not None:
            ddp._sync_buffers()
        ddp.require_forward_param_sync = False
        modules = self._ddp._modules
        model = modules["module"]
        modules["module"] = _Parameters(self._parameters)
        try:
            with torch.enable_grad():
                outputs = self._ddp.forward()
        finally:
            modules["module"] = model
        with _without_hooks(self._parameters):
            torch.autograd.backward(outputs, updates)

    @torch.no_grad()
    def _undo(self) -> None:
        for one, start in zip(self._parameters, self._start):
            one.copy_(start)
            one.grad = None
        for buffer, start in zip(self._ddp.module.buffers(), self._buffers_at_start):
            buffer.copy_(start)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state_at_start)
