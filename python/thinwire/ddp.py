"""``register``, which puts a system under DistributedDataParallel."""
import datetime
import os
import warnings
from typing import Dict, List, Mapping, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from thinwire import group as private_group
from thinwire.extension import _C, join_spec, require_spec
from thinwire.handle import Handle
from thinwire.hook import CopiedHandle, HookState
from thinwire.interface import GradScaler, SystemInfo
from thinwire.wrappers import ddp_within, named_parameters, refuse_other_reducers, refuse_other_wrappers

__all__ = ["CopiedHandle", "Handle", "HookState", "register", "require_options", "systems"]


def systems() -> List[SystemInfo]:
    """Every system, baseline and stage: ``name``, ``kind`` (``"system"``, or ``"stage"`` for what goes in
    front of one with '+'), ``summary``, ``paper``, ``formula`` of the bytes that a rank sends,
    and ``options``, each with ``name``, ``default`` and ``meaning``."""
    return _C.systems()


def _require_arguments(
    model: object, spec: object, threads: object, lanes: object, limits: Mapping[str, object],
    grad_scaler: object, compress_on: object, check_replicas_every: object, checked_sums: object,
) -> None:
    """What ``register`` says of arguments that cannot be."""
    refuse_other_wrappers(model)
    if not isinstance(model, DistributedDataParallel):
        if isinstance(spec, torch.nn.Module):
            raise TypeError("register takes the model first and a spec behind it, thinwire.register(model, "
                            f"'auto'), and {type(model).__name__} stands there; an optimizer is given by its "
                            "name, optimizer=...")
        raise TypeError(
            f"register takes a DistributedDataParallel model, not {type(model).__name__}: wrap it first, "
            "thinwire.register(DistributedDataParallel(model), ...)"
        )
    refuse_other_reducers(model)
    require_options(spec, threads, lanes, limits, grad_scaler, compress_on, check_replicas_every,
                    checked_sums)


def require_options(spec: object, threads: object, lanes: object, limits: Mapping[str, object],
                    grad_scaler: object, compress_on: object, check_replicas_every: object,
                    checked_sums: object) -> None:
    """What is said of options that cannot be."""
    require_spec(spec)
    for name, value in (("threads", threads), ("lanes", lanes)):
        if not isinstance(value, int) or not 1 <= value <= 64:
            raise ValueError(f"{name}={value!r}: a whole number from 1 to 64 is needed")
    if compress_on not in ("device", "cpu"):
        raise ValueError(f"compress_on={compress_on!r}: 'device' or 'cpu' is needed")
    if not isinstance(checked_sums, bool):
        raise ValueError(f"checked_sums={checked_sums!r}: True or False is needed")
    if not isinstance(check_replicas_every, int) or check_replicas_every < 0:
        raise ValueError(f"check_replicas_every={check_replicas_every!r}: a whole number of steps is needed, "
                         "0 for never")
    for name, value in limits.items():
        if isinstance(value, datetime.timedelta):
            raise ValueError(f"{name}={value!r}: seconds are needed, {value.total_seconds():g}")
        if value is not None and (not isinstance(value, (int, float)) or not value > 0):
            raise ValueError(f"{name}={value!r}: a number of seconds above 0 is needed")
    if grad_scaler is not None and not callable(getattr(grad_scaler, "get_scale", None)):
        raise ValueError(f"grad_scaler={grad_scaler!r}: a GradScaler is needed, or what has its get_scale()")


def _require_hosts(ranks_per_host: object) -> None:
    """That it is a number, and not more ranks than the launcher says that this host has."""
    if not isinstance(ranks_per_host, int) or isinstance(ranks_per_host, bool) or ranks_per_host < 1:
        raise ValueError(f"ranks_per_host={ranks_per_host!r}: a whole number from 1 is needed")
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if local.isdigit() and int(local) % ranks_per_host != 0:
        raise ValueError(f"ranks_per_host={ranks_per_host}: the launcher started {local} ranks on this host "
                         "(LOCAL_WORLD_SIZE), which must be a multiple of it")


def _deadline_of(model: object) -> float:
    """Of what is no DDP model it does not matter."""
    return (private_group.timeout_of(model.process_group) if isinstance(model, DistributedDataParallel)
            else 1.0)


def _trained_parameters(model: DistributedDataParallel) -> List[Tuple[str, torch.nn.Parameter]]:
    """Those that have gradients, by name."""
    parameters = [(name, parameter) for name, parameter in named_parameters(model) if parameter.requires_grad]
    for name, parameter in parameters:
        if parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(f"parameter {name} is on {parameter.device}: "
                             "only gradients in host memory or on CUDA devices can be synchronized")
    if any(parameter.is_cuda for _, parameter in parameters):
        warnings.warn("Thinwire's way to CUDA devices and back is experimental: it has not run on a GPU yet",
                      stacklevel=3)
    return parameters


def register(
    model: DistributedDataParallel,
    spec: str = "auto",
    rows: Optional[str] = None,
    *,
    seed: int = 1,
    threads: int = 1,
    lanes: int = 2,
    deadline_seconds: Optional[float] = None,
    step_limit_seconds: Optional[float] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
    grad_scaler: Optional[GradScaler] = None,
    compress_on: str = "device",
    check_replicas_every: int = 1000,
    checked_sums: bool = False,
    ranks_per_host: int = 1,
) -> Handle:
    """Synchronizes the gradients of ``model`` by the system ``spec`` from now on. Collective.

    model: wrapped in DistributedDataParallel over Gloo or NCCL, without another hook; torch.compile may be
        around it or within. Parameters are in host memory or on CUDA devices. Devices compress their own
        gradients where Thinwire was built with CUDA; otherwise the CPU does, during backward.
    spec: as on the command line, ``auto`` or ``power_sgd:rank=32:bits=8``; ``systems()`` lists them.
    rows: the system for row-sparse gradients, those of ``nn.Embedding(sparse=True)``; else the exact ``zen``.
    seed: of everything random. threads: CPU threads that compress, per lane.
    lanes: buckets that are under way at a time, each with connections of its own.
    deadline_seconds: how long a rank waits while no byte moves; unless given, the timeout of DDP's group. A
        rank that ends is named within seconds, one that is frozen or cut off after this time.
    step_limit_seconds: of all waits of a step; unless given an hour, or twice a longer deadline.
    optimizer: ``lr_after`` and ``marsit:eta_s=theorem`` read its first group's learning rate. Rank 0 warns
        of what is known to lose with such a one, or was not tried. one_bit_adam and zero_one_adam need
        torch's Adam or AdamW, whose ``step`` then leaves the second moment as it is where they say so.
    grad_scaler: the GradScaler, if any. Residuals then follow its scale.
    compress_on: ``"device"``, where the gradients are if Thinwire can work there, or ``"cpu"``.
    check_replicas_every: after so many steps, and in the first of a start or a loaded state, ranks compare a
        hash of all parameters that DDP keeps equal, not of buffers. 0: never.
    checked_sums: sums that Gloo makes, as those of ``dense``, go by a slower ring whose messages carry
        checksums, and 16-bit gradients are summed in float32.
    ranks_per_host: so many act as one worker: of host h those from h * ranks_per_host on. They add up first;
        then each synchronizes a part with other hosts, to which the bytes in reports are.

    All but ``threads`` and ``optimizer`` are the same on all ranks. Gradients in float32 and 16 bits go
    through the system, others are averaged. Where a rank has inf or NaN, the bucket's mean has NaN on all
    ranks and the step is undone: the optimizer must leave it out, as a GradScaler does. So is a step that
    fails or whose backward raises. What no rank used loses nothing. A copy of the model is plain DDP.

    Raises TypeError for what is not a DDP model; ValueError for a bad spec or option, for DDP's
    mixed_precision, for options of torch.compile that leave the hook out, and, on every rank, where ranks
    register different models; RuntimeError where the model has a hook already, and, with its number, where a
    rank does not come or ends. Where specs or options differ, the first step raises it on every rank.
    """
    model = ddp_within(model) or model
    deadline_seconds = _deadline_of(model) if deadline_seconds is None else deadline_seconds
    _require_hosts(ranks_per_host)
    limits = {"deadline_seconds": deadline_seconds, "step_limit_seconds": step_limit_seconds}
    _require_arguments(model, spec, threads, lanes, limits, grad_scaler, compress_on, check_replicas_every,
                       checked_sums)
    return Handle(model, _trained_parameters(model), join_spec(spec, rows), seed, threads, lanes,
                  deadline_seconds, step_limit_seconds, optimizer, grad_scaler, compress_on,
                  check_replicas_every, checked_sums, ranks_per_host)
