"""What a spec needs of the optimizer beside it, and what is said of the two.

Adam's second moment is held still in steps in which the synchronized gradient says nothing about it.
"""
import functools
import sys
import types
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire.extension import _C, readable
from thinwire.loss_scale import LossScale
from thinwire.wrappers import named_parameters

_T = TypeVar("_T")

# Of a parameter, in the optimizer's state: steps in which its second moment stood still.
# So it is in the optimizer's checkpoints.
FROZEN_STEPS = "thinwire_frozen_steps"
# Of the optimizer: a framework replaces its step in every step, so it cannot be held.
STEP_IS_PUT_BACK = "_thinwire_step_is_put_back"
# Of the optimizer: who says whether the variance is frozen.
_ASKED = "_thinwire_variance_is_frozen"


def require_adam(optimizer: Optional[torch.optim.Optimizer], model: Optional[torch.nn.Module],
                 spec: str) -> torch.optim.Optimizer:
    """``optimizer``. Raises ValueError unless its second moment can be held, which ``spec`` asks for, and it
    has parameters of the model."""
    if getattr(optimizer, STEP_IS_PUT_BACK, False):
        raise ValueError(f"spec {spec!r} freezes Adam's variance in optimizer.step, and with a loss scale "
                         "Accelerate puts another step into its place: take bf16, or another spec")
    if optimizer is None:
        raise ValueError(f"spec {spec!r} freezes Adam's variance: give the model's Adam, as in "
                         f"register(model, {spec!r}, optimizer=optimizer)")
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        raise ValueError(
            f"spec {spec!r} freezes Adam's variance, which {type(optimizer).__name__} has not: "
            "torch.optim.Adam or AdamW is needed"
        )
    require_parameters(optimizer, model, spec)
    if any(group["amsgrad"] for group in optimizer.param_groups):
        raise ValueError(f"spec {spec!r} freezes Adam's variance, and amsgrad=True keeps another beside it: "
                         "amsgrad=False is needed")
    return optimizer


def moves_some(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> bool:
    """Whether any of the optimizer's parameters is the model's."""
    own_parameters = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in own_parameters for group in optimizer.param_groups
               for parameter in group["params"])


def require_parameters(optimizer: torch.optim.Optimizer, model: Optional[torch.nn.Module], spec: str,
                       remedy: str = "") -> None:
    """Raises ValueError for an optimizer that moves nothing of the model: ``spec`` would go by it.
    remedy: what else the caller can do, behind the first one."""
    if model is None or moves_some(optimizer, model):
        return
    raise ValueError(f"spec {spec!r} goes by the model's optimizer, and the {type(optimizer).__name__} that "
                     f"was given has none of this model's parameters: give the one that moves them{remedy}")


def missing_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module,
                       named: Iterable[Tuple[str, torch.Tensor]]) -> List[str]:
    """Names of what is trained and is not the optimizer's. named: what is synchronized, by name.
    Tables whose gradients are rows are left out: they have an optimizer of their own, and exact means."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    tables = {id(parameter) for module in model.modules() if getattr(module, "sparse", False) is True
              for parameter in module.parameters(recurse=False)}
    return [name for name, parameter in named
            if parameter.requires_grad and id(parameter) not in own and id(parameter) not in tables]


def require_momentum(optimizer: torch.optim.Optimizer, model: Optional[torch.nn.Module],
                     needs: Iterable[Tuple[str, str, float]], spec: str) -> None:
    """Raises ValueError unless the optimizer's momentum, or Adam's beta1,
    is what the systems of ``spec`` need.
    Groups without a parameter of the model may have another.

    needs: of each system its name, its option for the optimizer's momentum and that option's value. Without
    such an option it applies a momentum of its own, and the optimizer's must be 0.
    """
    needs = list(needs)
    if needs:
        # One with copies of its own, in float32 for instance, holds none of the model's and is the right one.
        require_parameters(optimizer, model, spec,
                           ", or leave optimizer= out, and its momentum is not compared")
    own_parameters = {id(parameter) for parameter in model.parameters()} if model is not None else set()
    groups = [group for group in optimizer.param_groups
              if any(id(parameter) in own_parameters for parameter in group["params"])]
    for system, option, value in needs:
        for group in groups:
            own = group["momentum"] if "momentum" in group else group.get("betas", (None,))[0]
            if not isinstance(own, float) and not isinstance(own, int):
                continue  # an optimizer without momentum, or with one in a tensor
            if option and abs(own - value) > 1e-6:
                raise ValueError(
                    f"spec {spec!r} has {system}:{option}={value:g}, and the optimizer's momentum is "
                    f"{own:g}: both must be the same, as with {system}:{option}={own:g}"
                )
            if not option and own != 0:
                remedy = "momentum=0" if "momentum" in group else "a beta1 of 0, or take SGD without momentum"
                raise ValueError(f"spec {spec!r} applies momentum itself ({system}), and the optimizer's "
                                 f"{own:g} would come on top: give the optimizer {remedy}")


def kind_of(optimizer: torch.optim.Optimizer) -> Optional[str]:
    """``"adam"`` for an Adam, also another library's by its name, ``"momentum"`` for SGD with momentum,
    ``"sgd"`` for SGD without, else None. Of a ZeroRedundancyOptimizer the one inside counts."""
    own = getattr(optimizer, "optim", optimizer)
    if any("adam" in kind.__name__.lower() for kind in type(own).__mro__):
        return "adam"
    if not isinstance(own, torch.optim.SGD):
        return None
    return "momentum" if any(group.get("momentum") for group in own.param_groups) else "sgd"


def group_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> int:
    """The place of the first group with a parameter of the model; 0 where none has any."""
    own_parameters = {id(parameter) for parameter in model.parameters()}
    return next((place for place, group in enumerate(optimizer.param_groups)
                 if any(id(parameter) in own_parameters for parameter in group["params"])), 0)


def steps_taken(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> int:
    """How often the optimizer has moved the model's parameters, as far as it counts: SGD does not."""
    own_parameters = {id(parameter) for parameter in model.parameters()}
    return max((int(state.get("step", 0)) for parameter, state in optimizer.state.items()
                if id(parameter) in own_parameters), default=0)


def hold(optimizer: torch.optim.Optimizer, is_frozen: Callable[[], Optional[bool]]) -> None:
    """From now on ``optimizer.step()`` leaves the second moments as they are where ``is_frozen()`` says so.
    None: whoever could say so is gone, and another may take its place. ValueError while there is one.

    In such a step the second moment and its bias correction are those of the last step in which it moved, and
    the first moment is Adam's own. In later steps in which it moves both moments are corrected for the number
    of steps in which it moved.
    """
    earlier = getattr(optimizer, _ASKED, None)
    if earlier is not None and earlier() is not None:
        raise ValueError(
            "the optimizer's variance is held for another model: close() that model's handle first, "
            "or give each model an optimizer of its own"
        )
    setattr(optimizer, _ASKED, is_frozen)
    if earlier is not None:
        return  # step is wrapped already, and asks the new one
    step = optimizer.step

    @functools.wraps(step)
    def held_step(self: torch.optim.Optimizer, closure: Optional[Callable[[], Any]] = None,
                  *args: Any, **kwargs: Any) -> Any:
        # Backward runs in a closure, and decides whether this step's variance is frozen: so it comes first.
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = (_frozen_step if getattr(self, _ASKED)()
                 else _moving_step)(self, functools.partial(step, *args, **kwargs))
        return moved if closure is None else loss

    # A bound method, as learning rate schedulers expect when they count its calls.
    optimizer.step = types.MethodType(held_step, optimizer)  # type: ignore[method-assign]


def _stepped(optimizer: torch.optim.Optimizer) -> List[Tuple[Dict[str, Any], Dict[str, Any]]]:
    """Group and state of every parameter that the next step moves, and that has been moved before."""
    return [
        (group, optimizer.state[parameter])
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and "exp_avg_sq" in optimizer.state.get(parameter, {})
    ]


def _moving_step(optimizer: torch.optim.Optimizer, step: Callable[[], _T]) -> _T:
    held = [(state, state[FROZEN_STEPS]) for _, state in _stepped(optimizer) if state.get(FROZEN_STEPS, 0)]
    for state, frozen in held:
        state["step"] -= frozen
    try:
        return step()
    finally:
        for state, frozen in held:
            state["step"] += frozen


def _frozen_step(optimizer: torch.optim.Optimizer, step: Callable[[], _T]) -> _T:
    """With AMSGrad the step divides by the maximum of second moments: it finds the held one there, and in the
    second moment's place a value that is smaller, whatever is added to it."""
    stepped = _stepped(optimizer)
    if (not stepped and any(parameter.grad is not None for group in optimizer.param_groups
                            for parameter in group["params"])):
        raise RuntimeError(
            "Adam's variance is to stand still in this step, "
            "and the optimizer has none yet. After a resumption: load the optimizer's state_dict as well. "
            "Otherwise all steps before were skipped: give a larger freeze="
        )
    before = []
    for group, state in stepped:
        variance, steps = state["exp_avg_sq"], int(state["step"])
        beta2 = group["betas"][1]
        moved = steps - state.get(FROZEN_STEPS, 0)
        state["max_exp_avg_sq"] = variance * ((1 - beta2 ** (steps + 1)) / (1 - beta2**moved))
        state["exp_avg_sq"] = torch.full_like(variance, torch.finfo(variance.dtype).min / 4)
        before.append((state, variance, steps))
    for group in optimizer.param_groups:
        group["amsgrad"] = True
    try:
        return step()
    finally:
        for group in optimizer.param_groups:
            group["amsgrad"] = False
            for parameter in group["params"]:
                optimizer.state.get(parameter, {}).pop("max_exp_avg_sq", None)
        for state, variance, steps in before:
            state["exp_avg_sq"] = variance
            # A fused step leaves itself out where the loss scaler says so.
            state[FROZEN_STEPS] = state.get(FROZEN_STEPS, 0) + int(state["step"]) - steps


def level_of_caller() -> int:
    """For ``warnings.warn`` in the function that asks: the line that called Thinwire, by whichever way."""
    level = 1
    frame: Optional[types.FrameType] = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "thinwire":
        frame = frame.f_back
        level += 1
    return level


class FitsOptimizer:
    """What a handle asks of the optimizer that it was given, when it is made and where its spec changes."""

    _model: "weakref.ref[DistributedDataParallel]"
    _optimizer: Optional[torch.optim.Optimizer]
    _loss_scale: Optional[LossScale]
    _rank: int
    _is_closed: bool
    _has_whole_gradients: bool
    _momentum_needs: List[Tuple[str, str, float]]
    _variance_is_held: bool
    _variance_is_frozen: bool
    _frozen_unasked: int
    _was_fitted = False

    def _in_buckets(self, model: DistributedDataParallel) -> Iterable[Tuple[str, torch.Tensor]]:
        raise NotImplementedError

    def _warn_of_a_foreign_optimizer(self) -> None:
        """Of one that moves nothing of the model, unless that is copies."""
        model = self._model()
        if self._optimizer is None or self._rank != 0 or model is None:
            return
        if not moves_some(self._optimizer, model):
            warnings.warn(f"optimizer=...: this {type(self._optimizer).__name__} has none of the model's "
                          "parameters. If it moves copies of them, nothing is wrong. If it is another "
                          "model's, give the one that moves this model: its rate and kind are read",
                          stacklevel=level_of_caller())

    def _warn_of_idle_options(self, spec: str) -> None:
        """Of what ``spec`` asks for and this model has not, such as parameters of a name."""
        model = self._model()
        if self._rank != 0 or model is None:
            return
        for line in _C.idle_options(spec, [name for name, _ in self._in_buckets(model)]):
            warnings.warn(line, stacklevel=level_of_caller())

    def _warn_of_known_loss(self, spec: str) -> None:
        """Of what ``spec`` was measured to lose with such an optimizer, or that nothing was measured."""
        if self._optimizer is None or self._rank != 0:
            return
        kind = kind_of(self._optimizer)
        line = _C.known_loss(spec, kind == "adam") if kind in ("adam", "momentum") else ""
        if kind is None:
            line = _C.unmeasured_loss(readable(spec), type(self._optimizer).__name__)
        if line:
            warnings.warn(line, stacklevel=level_of_caller())

    def _warn_of_other_optimizers(self, optimizer: torch.optim.Optimizer, shown: str) -> None:
        """Of parameters that the Adam lacks whose variance ``shown`` freezes."""
        model = self._model()
        if self._rank != 0 or model is None or self._variance_is_held:
            return
        named = (named_parameters(model) if isinstance(model, DistributedDataParallel)
                 else model.named_parameters())
        missing = missing_parameters(optimizer, model, named)
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            warnings.warn(f"spec {shown!r} freezes the variance of the Adam that was given, which has not "
                          f"{missing[0]!r}{more}: another optimizer would take what is delivered for "
                          "gradients. Give one Adam that moves all parameters",
                          stacklevel=level_of_caller())

    def _fit_to_optimizer(self, spec: str) -> None:
        """Sees to it that the optimizer asks whether its variance is frozen, where ``spec`` freezes it.
        ValueError where it has none, where its momentum is not the spec's,
        for a mean of signs under a loss scale, by which the scaler would divide them,
        and for the stage clip where a rank knows the norm of its shard alone.
        Warns of options that do nothing for this model, and of what such a training was measured to lose.
        When the handle is made, also of an optimizer of something else."""
        if not self._was_fitted:
            self._warn_of_a_foreign_optimizer()
        self._was_fitted = True
        self._warn_of_idle_options(spec)
        self._warn_of_known_loss(spec)
        shown = readable(spec)
        if not self._has_whole_gradients and "clip" in _C.unclipped_systems(spec):
            raise ValueError(f"spec {shown!r}: clip would go by the norm of this rank's shard, not by "
                             "that of the whole gradient: leave it out, and clip the mean by clip_grad_norm_")
        if self._loss_scale is not None and self._loss_scale.is_enabled() and _C.delivers_signs(spec):
            raise ValueError(f"spec {shown!r} delivers signs, which a GradScaler would divide by its scale: "
                             "give sign=off, or no grad_scaler")
        freezes = _C.freezes_variance(spec)
        optimizer = (require_adam(self._optimizer, self._model(), shown) if freezes
                     else self._optimizer)
        if freezes and optimizer is not None:
            self._warn_of_other_optimizers(optimizer, shown)
        needs = _C.momentum_needs(spec)
        # A schedule may have changed the optimizer's meanwhile, and what runs goes on.
        if optimizer is not None and needs != self._momentum_needs:
            require_momentum(optimizer, self._model(), needs, shown)
        self._momentum_needs = needs
        if freezes and optimizer is not None and not self._variance_is_held:
            own = weakref.ref(self)  # the optimizer may live longer

            def is_frozen() -> Optional[bool]:
                handle = own()
                if handle is None or handle._is_closed:
                    return None
                handle._frozen_unasked = 0
                return handle._variance_is_frozen

            hold(optimizer, is_frozen)
            self._variance_is_held = True
