"""Models under torch's ``fully_shard`` (FSDP2): sharded among the ranks of a host, their gradients
synchronized between hosts by any system.

In torch's own hybrid of both, the ranks that hold the same shard sum their gradients in full. Here a session
of Thinwire does it. For models that are sharded among all ranks see ``scattered.py``.
"""
import importlib
import warnings
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import ddp, shards
from thinwire import group as private_group
from thinwire.extension import join_spec
from thinwire.interface import GradScaler
from thinwire.shards import states_in
from thinwire.sharded_handle import ShardedHandle, sharded_models
from thinwire.units import ONE_MESH_ADVICE, Sharded, Unit, group_of, units_of
from thinwire.wrappers import refuse_other_wrappers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh  # which older versions of torch have not

__all__ = ["ShardedHandle", "fully_shard", "states_in"]

_UNSHARDED_ADVICE = "thinwire.fully_shard(model, mesh, spec, modules=[...]) of the model without it does both"


def _require_torch(mesh: object) -> None:
    methods = ["set_all_reduce_hook"]
    if getattr(mesh, "ndim", None) == 1:
        methods.append("set_custom_reduce_scatter")
    for method in methods:
        if not shards.torch_has(method):
            raise ImportError(f"torch {torch.__version__} has no FSDPModule.{method}, "
                              "which fully_shard needs: install a current torch")


def _require_mesh(mesh: Any, all_gather: str) -> None:
    dimensions = getattr(mesh, "ndim", None)
    if all_gather not in ("exact", "8bit") or (all_gather == "8bit" and dimensions == 2):
        raise ValueError(f"all_gather={all_gather!r}: 'exact' or, with a mesh of one dimension, "
                         "'8bit' is needed")
    if dimensions == 1:
        if mesh.size() > 1:
            if mesh.size() < dist.get_world_size():
                warnings.warn(f"mesh has {mesh.size()} of {dist.get_world_size()} ranks: models of others "
                              "go their own ways. To keep all alike, give the whole mesh of two dimensions",
                              stacklevel=3)
            return
        raise ValueError("mesh has one rank: there is nobody to synchronize gradients with")
    if getattr(mesh, "ndim", None) == 2 and getattr(mesh, "mesh_dim_names", None):
        return
    found = (f"a mesh of shape {tuple(mesh.mesh.shape)} named {mesh.mesh_dim_names}"
             if hasattr(mesh, "mesh_dim_names") else repr(mesh))
    raise ValueError(
        f"mesh={found}: one dimension is needed, over all ranks, or two with names, the first over hosts, "
        "whose ranks hold the same shard, and the second over the ranks of a host: init_device_mesh(device, "
        "(hosts, ranks_per_host), mesh_dim_names=('replicate', 'shard'))"
    )


def _over_shards(mesh: "DeviceMesh") -> Tuple["DeviceMesh", str]:
    """The ranks among which torch shards parameters, and what the caller knows them by."""
    if mesh.ndim == 1:
        return mesh, "mesh"
    assert mesh.mesh_dim_names is not None  # _require_mesh
    name = mesh.mesh_dim_names[1]
    return mesh[name], f"mesh[{name!r}]"


def _require_model(model: object, mesh: "DeviceMesh") -> None:
    """TypeError and ValueError for a model whose gradients something else synchronizes."""
    if isinstance(model, DistributedDataParallel):
        raise TypeError("the model is wrapped in DistributedDataParallel: thinwire.register(model, "
                        "spec) is for it, or give fully_shard model.module")
    if not isinstance(model, nn.Module):
        raise TypeError(f"fully_shard takes a torch.nn.Module, not {type(model).__name__}")
    refuse_other_wrappers(model, but="FSDPModule")
    over, named = _over_shards(mesh)
    module: Sharded
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise TypeError("a part of the model is wrapped in DistributedDataParallel, "
                            "which sums whole gradients: leave the wrapper out")
        group = group_of(module, name) if hasattr(module, "set_all_reduce_hook") else None
        if group is None:
            continue
        if group.mesh_info.mesh.ndim != 1:
            raise ValueError(
                "torch's fully_shard was applied over a mesh of two dimensions (HSDP), "
                "and sums whole gradients between replicas before anybody is asked: "
                f"give it {named} instead; or " + _UNSHARDED_ADVICE
            )
        if group.mesh_info.mesh.mesh.tolist() != over.mesh.tolist():
            raise ValueError(
                f"torch's fully_shard was applied over ranks {group.mesh_info.mesh.mesh.tolist()}, "
                f"and mesh has shards over ranks {over.mesh.tolist()}: give both the same mesh"
            )


def _require_own_parameters(model: nn.Module) -> None:
    """TypeError for those that are parts of something else than torch's ``fully_shard`` makes."""
    sharded = {id(parameter) for unit in units_of(model, Unit) for parameter in unit.parameters()}
    parameter: Sharded
    for name, parameter in model.named_parameters():
        if (type(parameter.data).__name__ == "DTensor"
            and (id(parameter) not in sharded or parameter.device_mesh.ndim != 1)):
            raise TypeError(
                f"parameter {name} is a DTensor, a part of a tensor by other means than fully_shard (tensor "
                "parallel): load the model without a tp_plan"
            )


def _require_one_mesh(model: nn.Module, more: Mapping[str, Any]) -> None:
    """ValueError for a ``shard_placement_fn`` that has torch shard parameters of one module over several
    meshes, before torch does."""
    place: Optional[Callable[[nn.Parameter], Any]] = more.get("shard_placement_fn")
    for name, parameter in model.named_parameters():
        if place is not None and hasattr(place(parameter), "mesh_info"):
            raise ValueError(f"shard_placement_fn gives ShardPlacementResult for parameter {name}: "
                             f"{ONE_MESH_ADVICE}")


def _apply(model: nn.Module, mesh: "DeviceMesh", modules: Sequence[nn.Module],
           more: Mapping[str, Any]) -> None:
    """torch's ``fully_shard``, unless it was applied before."""
    torchs: Callable[..., Any] = importlib.import_module("torch.distributed.fsdp").fully_shard

    if any(hasattr(module, "set_all_reduce_hook") for module in model.modules()):
        if not hasattr(model, "set_all_reduce_hook"):
            raise ValueError("torch's fully_shard was applied to modules of the model and not to the model "
                             "itself: apply it to both, or to none")
        if modules or more:
            raise ValueError("torch's fully_shard was applied to the model before: "
                             "give modules and options to that, or leave it out")
        return
    _require_one_mesh(model, more)
    over, _ = _over_shards(mesh)
    for module in modules:
        torchs(module, mesh=over, **more)
    torchs(model, mesh=over, **more)


def _handle_of(model: nn.Module, mesh: "DeviceMesh", spec: str, all_gather: str,
               options: Mapping[str, Any]) -> ShardedHandle:
    if mesh.ndim == 2:
        return ShardedHandle(model, mesh, spec, options)
    from thinwire.scattered import ScatteredHandle  # which is made of what stands above

    return ScatteredHandle(model, mesh, spec, all_gather, options)


def fully_shard(
    model: nn.Module,
    mesh: "DeviceMesh",
    spec: str,
    *,
    modules: Sequence[nn.Module] = (),
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
    all_gather: str = "exact",
    **fully_shard_options: Any,
) -> ShardedHandle:
    """Shards ``model`` by torch's ``fully_shard``, and synchronizes its gradients by ``spec``. Collective.

    model: not sharded; or it and the modules within are, by torch's ``fully_shard`` over the last dimension
        of ``mesh``.
    mesh: a DeviceMesh of two dimensions with names, (hosts, ranks of a host): the model is sharded within
        hosts, and ``spec`` synchronizes their means. Or of one dimension, over all ranks: the model is
        sharded among them, and ``spec`` takes the place of torch's reduce-scatter.
    spec: as for ``register``. A shard of a matrix is a matrix of fewer rows. Over one dimension one of
        ``dense``, ``half``, ``ef_signsgd``, ``qsgd``, ``nuqsgd``, ``casq``, ``zen`` and ``top_k+zen``.
    modules: those within that are sharded by themselves, as a transformer's layers. The rest is a unit more.
    optimizer: as for ``register``. It holds shards: make it after torch's ``fully_shard`` and before this.
    all_gather: over one dimension, how shards of parameters travel: ``"exact"``, or ``"8bit"``, rounded. The
        optimizer has them in full, and what rounding left out is added before the next.
    fully_shard_options: for torch's: ``reshard_after_forward``, ``mp_policy``, ``offload_policy``.

    The others are those of ``register``. ``check_replicas_every`` compares the replicas of each shard, of
    which there are none over one dimension. Gradients are complete when ``backward()`` returns, not before. A
    step with inf or NaN, one that fails, and one whose backward raises is undone in all shards.

    Raises TypeError and ValueError for a model, mesh, spec or option that cannot be, ImportError where torch
    is too old, and otherwise as ``register`` does.
    """
    _require_torch(mesh)
    _require_mesh(mesh, all_gather)
    _require_model(model, mesh)
    earlier = sharded_models.get(model)
    if earlier is not None and not earlier._is_closed:
        raise RuntimeError("the model has a handle already, not closed: handle.set(spec) changes the system")
    limits = {"deadline_seconds": deadline_seconds, "step_limit_seconds": step_limit_seconds}
    ddp.require_options(spec, threads, lanes, limits, grad_scaler, compress_on, check_replicas_every,
                        checked_sums)
    _require_own_parameters(model)
    _apply(model, mesh, modules, fully_shard_options)
    shards.require_optimizer(optimizer, model)
    if deadline_seconds is None:
        limits["deadline_seconds"] = private_group.timeout_of(mesh.get_group(0))
    return _handle_of(model, mesh, join_spec(spec, None), all_gather, {
        **limits, "seed": seed, "threads": threads, "lanes": lanes, "optimizer": optimizer,
        "grad_scaler": grad_scaler, "compress_on": compress_on, "check_replicas_every": check_replicas_every,
        "checked_sums": checked_sums,
    })
