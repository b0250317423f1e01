"""Models under torch's ``fully_shard`` (FSDP2): sharded among the ranks of a host, their gradients
synchronized between hosts by any system.

In torch's own hybrid of both, the ranks that hold the same shard sum their gradients in full. Here a session
of Thinwire does it. For models that are sharded among all ranks see ``scattered.py``.
"""
import functools
import importlib
import time
import warnings
import weakref
from typing import (Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple,
                    TypeVar, Union, cast)

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import ddp, shards
from thinwire import group as private_group
from thinwire import state as saved_state
from thinwire.interface import Report
from thinwire.shards import states_in
from thinwire.wrappers import refuse_other_wrappers

__all__ = ["ShardedHandle", "fully_shard", "states_in"]

#: A module or a parameter as torch's fully_shard makes them, for which older versions of torch have no types.
_Sharded = Any

# Keeps handles alive as long as their models. So nothing in a handle holds its model.
_sharded: "weakref.WeakKeyDictionary[nn.Module, ShardedHandle]" = weakref.WeakKeyDictionary()

# What the ranks of a shard group tell each other of a step; the worst one counts.
_GOOD, _NOT_FINITE, _FAILED = 0, 1, 2

# More units than any model has.
_ALL_UNITS = 2**31 - 1

# A rank that ends lives so long for what it tells its shard group.
_PATIENCE_SECONDS = 2.0

_UNSHARDED_ADVICE = "thinwire.fully_shard(model, mesh, spec, modules=[...]) of the model without it does both"


class _Unit:
    """Parameters whose gradients torch reduces together:
    those of one module to which ``fully_shard`` was applied."""

    def __init__(self, module: _Sharded, name: str, group: Any, names: Mapping[int, str]) -> None:
        self.module = weakref.ref(module)
        self.name = name or "the whole model"
        self._weak_group = weakref.ref(group)
        self.names = [names[id(one.sharded_param)] for one in group.fsdp_params]
        # Stand for the parts of the flat gradient: of their sizes, and almost without memory.
        self._parts = [
            torch.empty(1, dtype=one.sharded_param.dtype,
                        device=group.device).expand(one.padded_sharded_param_size)
            for one in group.fsdp_params
        ]

    @property
    def _group(self) -> Any:
        return self._weak_group()

    def parts(self) -> List[Tuple[str, torch.Tensor]]:
        """The padded shard of every parameter, by name."""
        return list(zip(self.names, self._parts))

    def trained_parts(self) -> List[Tuple[str, torch.Tensor]]:
        """Those of parameters that have gradients."""
        return [part for index, part in enumerate(self.parts()) if self.trains(index)]

    def trains(self, index: int) -> bool:
        return bool(self._group.fsdp_params[index].sharded_param.requires_grad)

    def parameters(self) -> List[_Sharded]:
        """The shards, as DTensors, also while the module has whole parameters."""
        return [one.sharded_param for one in self._group.fsdp_params]

    def in_gradient(self) -> List[int]:
        """Parameters in the order in which the flat gradient has them;
        newer versions of torch sort them by type."""
        order = getattr(self._group, "_reduce_scatter_param_indices", None) or range(len(self._parts))
        return [index for index in order if self.trains(index)]

    def _parts_of_gradient(self) -> List[torch.Tensor]:
        return [self._parts[index] for index in self.in_gradient()]

    def take(self, gradient: torch.Tensor) -> List[torch.Tensor]:
        """The parts of a flat gradient, which is all of this unit's.
        RuntimeError where it is not, or is no mean over the shard group."""
        parts = self._parts_of_gradient()
        if gradient.numel() != sum(part.numel() for part in parts):
            raise RuntimeError(
                f"some parameters of {self.name} got no gradient in this backward: "
                "give modules that are not always used a fully_shard of their own, by modules=[...], "
                "or call set_reduce_scatter_unused_params(True) where torch has it"
            )
        if (getattr(self._group, "gradient_divide_factor", None) is not None
            or getattr(self._group, "force_sum_reduction_for_comms", False)):
            raise RuntimeError(
                f"gradients of {self.name} come as sums, and means are needed: "
                "leave out set_gradient_divide_factor and set_force_sum_reduction_for_comms"
            )
        if gradient.dtype == torch.float16:
            raise RuntimeError(
                f"gradients of {self.name} are reduced in float16, which torch divides only after the sum "
                "between hosts: MixedPrecisionPolicy(reduce_dtype=torch.float32), or torch.bfloat16"
            )
        if any(getattr(one, "_post_accumulate_grad_hooks", None) for one in self.parameters()):
            raise RuntimeError(
                f"a parameter of {self.name} has a hook that takes its gradient within backward (an "
                "optimizer step, as a rule), and means come at the end of backward: step after backward"
            )
        return parts

    def require_gradients(self) -> None:
        """That ``deliver`` has where to add a mean."""
        for index in self.in_gradient():
            if self._group.fsdp_params[index].sharded_param.grad is None:
                raise RuntimeError(f"the gradient of {self.names[index]} was taken away within backward: "
                                   "take it afterwards")

    def deliver(self, mean: torch.Tensor) -> None:
        """Adds a mean in place of the flat gradient to the parameters' gradients."""
        begin = 0
        for index in self.in_gradient():
            own = self._group.fsdp_params[index].sharded_param.grad.to_local()
            part = mean[begin : begin + own.numel()].view(own.shape)
            own.add_(part.to(device=own.device, dtype=own.dtype))
            begin += self._parts[index].numel()


_AnyUnit = TypeVar("_AnyUnit", bound=_Unit)


class _Reduction:
    """A flat gradient that the engine makes the mean."""

    def __init__(self, unit: _Unit, mean: torch.Tensor, future: Any) -> None:
        self.unit = unit
        self.mean = mean
        self._future = future

    def has_come(self) -> bool:
        """The whole mean."""
        return self._future is not None and bool(self._future.done())

    def wait(self) -> None:
        """Raises what the engine says where there is no mean."""
        if self._future is not None:
            self._future.wait()

    def replace(self, mean: torch.Tensor) -> None:
        """By a part of it; the rest is let go."""
        self.mean, self._future = mean, None


class _Largest:
    """Of numbers that the ranks of a group give, the largest in each place. Is found out in the background."""

    def __init__(self, own: Sequence[int], group: dist.ProcessGroup, device: torch.device) -> None:
        self._numbers = torch.tensor(own, dtype=torch.int32, device=device)
        self._work: Any = None
        if dist.get_world_size(group) > 1:
            self._work = dist.all_reduce(self._numbers, op=dist.ReduceOp.MAX, group=group, async_op=True)

    def wait(self) -> List[int]:
        if self._work is not None:
            self._work.wait()
        return cast(List[int], self._numbers.tolist())

    def wait_for(self, seconds: float) -> None:
        """At most."""
        end = time.monotonic() + seconds
        while self._work is not None and not self._work.is_completed() and time.monotonic() < end:
            time.sleep(0.001)


class _Backward:
    """What one backward has handed to the engine."""

    def __init__(self) -> None:
        self.error: Optional[BaseException] = None
        self.under_way: List[_Reduction] = []
        self.seen: Set[str] = set()
        self.last_place = -1
        self.streams: Set[Any] = set()


class ShardedReport(Report):
    """What ``ShardedHandle.report`` returns."""

    shard: int
    shards: int


class ShardedHandle(ddp.Handle):
    """What ``fully_shard`` returns: as ``register``'s handle, of the ranks that hold the same shard.

    ``report()`` has ``shard`` and ``shards`` beside ``rank`` and ``world_size``, which are those of the
    replicas, and its bytes are those between replicas.
    ``step`` counts backward passes whose gradients were reduced.
    """

    def __init__(self, model: nn.Module, mesh: Any, spec: str, options: Mapping[str, Any]) -> None:
        self._units = self._units_of(model, mesh)
        self._take_mesh(mesh)
        self._backward: Optional[_Backward] = None
        self._watch: Any = None
        self._stopped: Optional[_Largest] = None  # of the last step
        self._places: Dict[str, int] = {}  # of units among the engine's buckets
        trained = [part for unit in self._units for part in unit.trained_parts()]
        sharded: Any = model  # DDP's handle asks it for what the methods below give
        super().__init__(sharded, cast(List[Tuple[str, nn.Parameter]], trained), spec, **options)

    # --- What a handle of one dimension has in place of these -----------------------------------------------

    def _units_of(self, model: nn.Module, mesh: Any) -> Sequence[_Unit]:
        return units_of(model, _Unit)

    def _take_mesh(self, mesh: Any) -> None:
        self._replicas_group, self._shard_group = mesh.get_group(0), mesh.get_group(1)
        self._shard, self._shards = mesh.get_local_rank(1), mesh.size(1)

    def _hook(self, unit: _Unit) -> None:
        """Has torch call ``_reduce`` with the unit's gradients."""
        module: _Sharded = unit.module()
        module.set_all_reduce_hook(functools.partial(_reduce, weakref.ref(self), unit))

    def _step_counts(self) -> None:
        """A step has ended, and was not undone."""

    def _to_engine(self, gradient: torch.Tensor) -> torch.Tensor:
        # A mean over replicas on its way must not be seen by torch,
        # which casts and accumulates what it has at once.
        return gradient.clone()

    # --- What DDP's handle asks -----------------------------------------------------------------------------

    def _group_of(self, model: Any) -> dist.ProcessGroup:
        return cast(dist.ProcessGroup, self._replicas_group)

    def _in_buckets(self, model: Any) -> Iterable[Tuple[str, torch.Tensor]]:
        return [part for unit in self._units for part in unit.parts()]

    def _replicated(self, model: Any) -> Callable[[], Sequence[torch.Tensor]]:
        units = self._units

        def shards_of_rank() -> List[torch.Tensor]:
            with torch.no_grad():
                return [parameter.to_local() for unit in units for parameter in unit.parameters()]

        return shards_of_rank

    def _take_hook(self, model: Any) -> None:
        _sharded[model] = self
        own = weakref.ref(self)
        self._watch = model.register_forward_pre_hook(functools.partial(_forward_begins, own))
        for unit in self._units:
            self._hook(unit)

    # --- A backward -----------------------------------------------------------------------------------------

    def _reduce(self, unit: _Unit, gradient: torch.Tensor) -> None:
        """torch's hook: ``gradient`` is this rank's shard of the mean over its shard group, as a flat vector.

        torch gives it to the parameters as soon as the hook returns. So it becomes zero, and a copy of it
        goes to the engine, whose mean is added at the end of backward. Errors wait until then: a rank that
        left backward here would let its shard group wait.
        """
        if self._is_closed:
            raise RuntimeError("the handle of this sharded model is closed: thinwire.fully_shard(model, "
                               "mesh, spec) makes another")
        if self._backward is None:
            self._begin_backward()
        backward = self._backward
        assert backward is not None
        if backward.error is None:
            try:
                self._submit(backward, unit, gradient)
            except Exception as error:
                backward.error = error

    def _begin_backward(self) -> None:
        backward = _Backward()
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)
        except RuntimeError:
            raise RuntimeError(
                "gradients are reduced outside of backward: leave out set_manual_backward_finalization, "
                "so that torch reduces them within"
            ) from None
        self._backward = backward
        self._try_to_begin_step()
        if self._refusal is not None:
            backward.error = RuntimeError(self._refusal)

    def _submit(self, backward: _Backward, unit: _Unit, gradient: torch.Tensor) -> None:
        if unit.name in backward.seen:
            raise RuntimeError(
                f"gradients of {unit.name} were reduced twice in one backward, as modules that were sharded "
                "as one were called one by one: give each a fully_shard of its own"
            )
        parts = unit.take(gradient)
        own = self._to_engine(gradient)
        on_cpu = own.device.type == "cpu"
        devices: Optional[List[Union[int, str, torch.device]]] = None if on_cpu else [own.device]
        if devices:
            backward.streams.add(torch.cuda.current_stream(own.device))
        future: "torch.futures.Future[torch.Tensor]" = torch.futures.Future(devices=devices)
        ready: "torch.futures.Future[torch.Tensor]" = torch.futures.Future(devices=devices)
        ready.set_result(own)
        # The engine takes buckets in ascending order.
        # A unit keeps its place while backward takes the same way.
        place = self._places.get(unit.name, -1)
        if place <= backward.last_place:
            place = backward.last_place + 1
        self._places[unit.name] = backward.last_place = place
        backward.seen.add(unit.name)
        backward.under_way.append(_Reduction(unit, own, future))
        self._engine.submit(place, False, True, own, parts, future, ready)

    def _end_backward(self) -> None:
        """Called when backward is done: ends the step, on all ranks of a shard group in the same way."""
        backward, self._backward = self._backward, None
        if backward is None:
            return
        model: _Sharded = self._model()
        if model._get_fsdp_state()._state_ctx.post_backward_final_callback_queued:
            backward.error = backward.error or RuntimeError(
                "a backward within backward has ended, as activation checkpointing makes them: "
                "give checkpoint use_reentrant=False"
            )
        try:
            self._await_means(backward)
        except Exception as error:
            backward.error = backward.error or error
        with torch.no_grad():
            verdict, whose = self._worst(_FAILED if backward.error is not None else _NOT_FINITE
                                  if backward.under_way and not self._engine.is_finite() else _GOOD)
            if verdict == _GOOD:
                self._give_means(backward)
                self._engine.end_backward([])
                self._step_counts()
                if (len(set(self._places.values())) < len(self._places)
                    or max(self._places.values()) >= 2 * len(self._units)):
                    self._places = {}  # the ways of backward differ: counted anew
                return
            # The engine undoes a step that was not ended when the next one begins, with its first bucket.
            self._places = {}
            if verdict == _NOT_FINITE:
                for one in backward.under_way:
                    one.mean.fill_(float("nan"))
                self._give_means(backward)
                return
        if backward.error is not None:
            raise backward.error
        raise RuntimeError(f"gradients of this step could not be synchronized on rank {whose}, which holds "
                           "another shard and says why; the step is undone")

    def _await_means(self, backward: _Backward) -> None:
        if not self._stopped_alike(backward) and backward.error is not None:
            # Others wait for what this rank does not send.
            self._engine.fail(_first_line(backward.error))
            return
        self._engine.last_bucket_was_submitted()
        for one in backward.under_way:
            one.wait()
        for one in backward.under_way:
            one.unit.require_gradients()

    def _stopped_alike(self, backward: _Backward) -> bool:
        """Whether all ranks that exchange gradients have stopped at the same unit. Then nobody waits for
        anybody, and the next step can be a good one. Only a rank that has stopped asks: the others say that
        they have not, and go on."""
        count = _ALL_UNITS if backward.error is None else len(backward.under_way)
        try:
            self._stopped = self._largest((count, -count), self._replicas_group)
            if backward.error is None:
                return False
            most, least = self._stopped.wait()
        except RuntimeError:  # a rank is gone: the engine says which
            return False
        return most == -least

    def _worst(self, own: int) -> Tuple[int, int]:
        """Of what the ranks of the shard group say, and a rank that says it.
        A step counts for all shards or for none."""
        try:
            verdicts = self._largest((own * self._shards + self._shard,), self._shard_group)
            if own == _FAILED:
                # Nothing is worse. A rank that is gone is not waited for, but others shall hear this one.
                verdicts.wait_for(_PATIENCE_SECONDS)
                return own, dist.get_rank()
            verdict, shard = divmod(verdicts.wait()[0], self._shards)
        except RuntimeError:
            if own == _FAILED:  # the engine's error names who is gone
                return own, dist.get_rank()
            raise
        return verdict, dist.get_process_group_ranks(self._shard_group)[shard]

    def _largest(self, own: Sequence[int], group: dist.ProcessGroup) -> "_Largest":
        return _Largest(own, group, self._units[0].parts()[0][1].device)

    def _give_means(self, backward: _Backward) -> None:
        for stream in backward.streams:  # on which torch has written the gradients
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        for one in backward.under_way:
            one.unit.deliver(one.mean)

    def _give_up(self) -> None:
        """A backward that raised has not come to its end."""
        self._backward = None
        self._places = {}

    # --- Report and state -----------------------------------------------------------------------------------

    def report(self) -> "ShardedReport":
        return {**super().report(), "shard": self._shard, "shards": self._shards}

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        """What training must not lose at a restart, of this rank's shard:
        residuals and the systems' own state, and the step.

        Each rank has its own: save all of them. With ``consolidate=True`` (collective) all replicas of a
        shard get the same one, with sums over replicas. ``torch.distributed.checkpoint`` saves and loads the
        handle itself, each rank its own state, without a message.
        """
        asked = saved_state.asked_by_dcp()
        return self._for_dcp(asked) if asked else super().state_dict(consolidate)

    def _own_state(self) -> shards.ShardedState:
        return {**super()._own_state(), "shard": self._shard, "shards": self._shards}

    def _for_dcp(self, asked: str) -> Dict[str, Any]:
        name = shards.entry_name(self._rank, self._world_size, self._shard, self._shards)
        return {name: b"" if asked == "load" else shards.pack(self._own_state())}

    def load_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
                        strict: bool = True) -> None:
        """Takes over what ``state_dict`` gave, on all ranks before the same step.

        state: this rank's own of a run on the same mesh, which goes on bit for bit; or a list of all ranks'
            states, which fits any mesh: residuals are cut along other shards and split among other replicas
            so that their sum is kept.
        strict: as for ``register``'s handle.

        Raises ValueError for a state of another shard or mesh, of other parameters or shapes, and for a
        system's own state that cannot be cut; nothing has changed then.
        """
        states = shards.unpack(state)
        fitting = shards.for_shard(states, self._shard, self._shards, self._sizes())
        self._take_over(saved_state.for_rank(fitting, self._rank, self._world_size), strict)

    def _sizes(self) -> shards.Sizes:
        return {
            name: (tuple(parameter.shape), parameter.placements[0].dim)
            for unit in self._units for name, parameter in zip(unit.names, unit.parameters())
        }

    def close(self) -> None:
        super().close()
        self._backward = None
        if self._watch is not None:
            self._watch.remove()


def _reduce(handle: "weakref.ref[ShardedHandle]", unit: _Unit, gradient: torch.Tensor) -> None:
    own = handle()
    assert own is not None
    own._reduce(unit, gradient)
    gradient.zero_()


def _forward_begins(handle: "weakref.ref[ShardedHandle]", module: nn.Module, inputs: Any) -> None:
    """Of the whole model. Activation checkpointing calls it within backward, too."""
    own = handle()
    if own is not None and own._backward is not None and _task_of_backward() == -1:
        own._give_up()


def _task_of_backward() -> int:
    """-1 outside of backward."""
    # getattr: the function is not in the types of older versions.
    return int(getattr(torch._C, "_current_graph_task_id")())  # noqa: B009


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def units_of(model: _Sharded, make: Callable[[Any, str, Any, Mapping[int, str]], _AnyUnit]) -> List[_AnyUnit]:
    """In order of modules. Parameters are shards here, so it is asked before the first forward."""
    names = {id(parameter): name.replace("_orig_mod.", "")
             for name, parameter in model.named_parameters(remove_duplicate=False)}
    units: List[_AnyUnit] = []
    known: Set[int] = set()
    modules: Dict[_Sharded, str] = {module: name.replace("_orig_mod.", "")
                                    for name, module in model.named_modules()}
    for module in modules:
        if not hasattr(module, "set_all_reduce_hook"):
            continue
        group = module._get_fsdp_state()._fsdp_param_group
        if group is None or id(group) in known:
            continue
        known.add(id(group))
        if any(id(one.sharded_param) not in names for one in group.fsdp_params):
            raise ValueError(f"{modules[module] or 'the model'} holds whole parameters since its last "
                             "forward: call its reshard() first")
        units.append(make(module, ", ".join(modules[one] for one in group.modules), group, names))
    return units


def _require_torch(mesh: Any) -> None:
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


def _over_shards(mesh: Any) -> Tuple[Any, str]:
    """The ranks among which torch shards parameters, and what the caller knows them by."""
    if mesh.ndim == 1:
        return mesh, "mesh"
    name = mesh.mesh_dim_names[1]
    return mesh[name], f"mesh[{name!r}]"


def _require_model(model: Any, mesh: Any) -> None:
    """TypeError and ValueError for a model whose gradients something else synchronizes."""
    if isinstance(model, DistributedDataParallel):
        raise TypeError("the model is wrapped in DistributedDataParallel: thinwire.register(model, "
                        "spec) is for it, or give fully_shard model.module")
    if not isinstance(model, nn.Module):
        raise TypeError(f"fully_shard takes a torch.nn.Module, not {type(model).__name__}")
    refuse_other_wrappers(model, but="FSDPModule")
    over, named = _over_shards(mesh)
    module: _Sharded
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            raise TypeError("a part of the model is wrapped in DistributedDataParallel, "
                            "which sums whole gradients: leave the wrapper out")
        group = module._get_fsdp_state()._fsdp_param_group if hasattr(module, "set_all_reduce_hook") else None
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
    sharded = {id(parameter) for unit in units_of(model, _Unit) for parameter in unit.parameters()}
    parameter: _Sharded
    for name, parameter in model.named_parameters():
        if (type(parameter.data).__name__ == "DTensor"
            and (id(parameter) not in sharded or parameter.device_mesh.ndim != 1)):
            raise TypeError(
                f"parameter {name} is a DTensor, a part of a tensor by other means than fully_shard (tensor "
                "parallel): load the model without a tp_plan"
            )


def _apply(model: nn.Module, mesh: Any, modules: Sequence[nn.Module], more: Mapping[str, Any]) -> None:
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
    over, _ = _over_shards(mesh)
    for module in modules:
        torchs(module, mesh=over, **more)
    torchs(model, mesh=over, **more)


def _handle_of(model: nn.Module, mesh: Any, spec: str, all_gather: str,
               options: Mapping[str, Any]) -> ShardedHandle:
    if mesh.ndim == 2:
        return ShardedHandle(model, mesh, spec, options)
    from thinwire.scattered import ScatteredHandle  # which is made of what stands above

    return ScatteredHandle(model, mesh, spec, all_gather, options)


def fully_shard(
    model: nn.Module,
    mesh: Any,
    spec: str,
    *,
    modules: Sequence[nn.Module] = (),
    seed: int = 1,
    threads: int = 1,
    lanes: int = 2,
    deadline_seconds: Optional[float] = None,
    step_limit_seconds: Optional[float] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
    grad_scaler: Optional[Any] = None,
    compress_on: str = "device",
    check_replicas_every: int = 1000,
    all_gather: str = "exact",
    **fully_shard_options: Any,
) -> ShardedHandle:
    """Shards ``model`` by torch's ``fully_shard``, and synchronizes its gradients by ``spec``. Collective.

    model: not sharded; or sharded by torch's ``fully_shard`` over the last dimension of ``mesh`` alone,
        itself and the modules within.
    mesh: a DeviceMesh of two dimensions with names, (hosts, ranks of a host), as torch's HSDP takes it. The
        model is sharded within hosts, and ``spec`` synchronizes the means of a host with those of others. Or
        of one dimension, over all ranks. The model is sharded among them,
        and ``spec`` takes the place of torch's reduce-scatter.
    spec: as for ``register``: ``casq:bits=4``, ``power_sgd:rank=32:bits=8``. A shard of a matrix is a matrix
        of fewer rows. Over one dimension one of ``dense``, ``half``, ``ef_signsgd``, ``qsgd``, ``nuqsgd``,
        ``casq``, ``zen`` and ``top_k+zen``.
    modules: those within that are sharded by themselves, as layers of a transformer are.
        The rest is one more unit, the model's.
    optimizer: as for ``register``. It holds the shards, so it is made after torch's ``fully_shard``,
        and the model given here afterwards.
    all_gather: over one dimension, how shards of parameters travel: ``"exact"``, as torch sends them, or
        ``"8bit"``. Then all ranks compute with parameters rounded to 8 bits. The optimizer has them in full,
        and what rounding left out is added before the next.
    fully_shard_options: for torch's ``fully_shard`` of every module:
        ``reshard_after_forward``, ``mp_policy``, ``offload_policy``.

    ``seed``, ``threads``, ``lanes``, limits, ``grad_scaler``, ``compress_on`` and ``check_replicas_every``
    are those of ``register``; the latter compares the replicas of each shard,
    of which there are none over one dimension.

    Means come to the gradients at the end of backward, so gradients are complete when ``backward()`` returns
    and not before. Where a rank has inf or NaN, all gradients are NaN on all ranks and the step is undone, in
    all shards. So is one that fails or whose backward raises.

    Raises TypeError and ValueError for a model, mesh, spec or option that cannot be, ImportError where torch
    is too old, and otherwise as ``register`` does.
    """
    _require_torch(mesh)
    _require_mesh(mesh, all_gather)
    _require_model(model, mesh)
    earlier = _sharded.get(model)
    if earlier is not None and not earlier._is_closed:
        raise RuntimeError("the model has a handle already, which is not closed: "
                           "handle.set(spec) changes the system")
    limits = {"deadline_seconds": deadline_seconds, "step_limit_seconds": step_limit_seconds}
    ddp.require_options(spec, threads, lanes, limits, compress_on, check_replicas_every)
    _require_own_parameters(model)
    _apply(model, mesh, modules, fully_shard_options)
    shards.require_optimizer(optimizer, model)
    return _handle_of(model, mesh, ddp.join_spec(spec, None), all_gather, {
        "seed": seed, "threads": threads, "lanes": lanes,
        "deadline_seconds": private_group.timeout_of(mesh.get_group(0)) if deadline_seconds is None
        else deadline_seconds,
        "step_limit_seconds": step_limit_seconds, "optimizer": optimizer, "grad_scaler": grad_scaler,
        "compress_on": compress_on,
        "check_replicas_every": check_replicas_every,
    })
