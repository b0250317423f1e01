"""Models that are wrapped in something else than DistributedDataParallel:
what they are, and what to do instead."""
import sys
from typing import Iterator, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

# By the name of a class or of one of its bases, so that none of these has to be installed:
# (its package, what is said).
_OTHERS = {
    "FullyShardedDataParallel": (
        "torch.",
        "FullyShardedDataParallel (FSDP1) reduces shards of gradients by itself: leave it out, and "
        "thinwire.fully_shard(model, mesh, spec) shards the model; or train under DistributedDataParallel",
    ),
    "FSDPModule": (
        "torch.",
        "fully_shard (FSDP2) reduces shards of gradients by itself: thinwire.fully_shard(model, mesh, "
        "spec) synchronizes them between hosts; or train under DistributedDataParallel, without fully_shard",
    ),
    "DeepSpeedEngine": (
        "deepspeed",
        "DeepSpeed's engine synchronizes gradients by itself and takes no communication hook: "
        "train under DistributedDataParallel, without DeepSpeed, or leave Thinwire out",
    ),
    "MegatronEngine": (
        "accelerate",
        "Megatron-LM's engine synchronizes gradients by itself and takes no communication hook: "
        "train under DistributedDataParallel, or leave Thinwire out",
    ),
    "DataParallel": (
        "torch.",
        "DataParallel is one process with several devices, which synchronizes nothing between processes: "
        "start one process per device and wrap the model in DistributedDataParallel",
    ),
}


def _others_of(module: torch.nn.Module, but: str) -> Iterator[str]:
    for base in type(module).__mro__:
        package, said = _OTHERS.get(base.__name__, ("", ""))
        if said and base.__name__ != but and base.__module__.startswith(package):
            yield said


def refuse_other_wrappers(model: object, but: str = "") -> None:
    """Raises TypeError for a model whose gradients something else than DistributedDataParallel synchronizes,
    in whole or in part. ``but`` names a class that may."""
    if not isinstance(model, torch.nn.Module):
        return
    for module in model.modules():
        for said in _others_of(module, but):
            raise TypeError(said)
    for name, parameter in model.named_parameters() if not but else ():
        if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
            raise TypeError(
                f"parameter {name} is a DTensor, a part of a tensor whose other parts "
                "are on other ranks (tensor parallel, or sharded): only whole gradients can be synchronized. "
                "Load the model without a tp_plan or device mesh, or leave Thinwire out"
            )


def ddp_within(model: object) -> Optional[DistributedDataParallel]:
    """The DistributedDataParallel model below what torch.compile and frameworks put around it;
    None where there is none."""
    seen = 0
    while isinstance(model, torch.nn.Module) and not isinstance(model, DistributedDataParallel) and seen < 8:
        # torch.compile's and Fabric's.
        model = model._modules.get("_orig_mod") or model._modules.get("_forward_module")
        seen += 1
    return model if isinstance(model, DistributedDataParallel) else None


def was_trained(model: torch.nn.Module) -> bool:
    """Whether DDP has counted backward passes of the model. It counts the first one in the second."""
    of_ddp = getattr(model, "_get_ddp_logging_data", None)
    return of_ddp is not None and int(of_ddp().get("iteration", 0)) > 0


def named_parameters(model: DistributedDataParallel) -> Iterator[Tuple[str, torch.nn.Parameter]]:
    """Those of the wrapped module that DDP does not ignore, by the names that they have without
    torch.compile: a state is the same with it and without.
    What DDP ignores may be another tensor on every rank."""
    ignored = getattr(model, "parameters_to_ignore", ())
    for name, parameter in model.module.named_parameters():
        if name not in ignored:
            yield name.replace("_orig_mod.", ""), parameter


def refuse_other_reducers(model: DistributedDataParallel) -> None:
    """Raises ValueError for a model whose buckets, by an option of DDP or of torch.compile,
    do not come to a hook as they are."""
    if getattr(model, "mixed_precision", None) is not None:
        raise ValueError(
            "DistributedDataParallel(mixed_precision=...) has a communication hook of its own, "
            "and DDP takes one: leave mixed_precision out and train under torch.autocast"
        )
    if getattr(model, "_use_python_reducer", False):
        raise ValueError(
            'the model was wrapped under torch._dynamo.config.optimize_ddp = "python_reducer", '
            'which has no buckets: set it to "ddp_optimizer", torch\'s default, '
            'before DistributedDataParallel(model), and do without compiled autograd, which needs the other'
        )
    # Where it was not imported nobody has set it.
    if getattr(sys.modules.get("torch._dynamo.config"), "trace_autograd_ops", False):
        raise ValueError(
            "torch._dynamo.config.trace_autograd_ops = True compiles a backward that gives the parameters "
            "of a DistributedDataParallel model no gradient, also without Thinwire: set it to False, "
            "torch's default"
        )
