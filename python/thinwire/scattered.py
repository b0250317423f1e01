"""Models under torch's ``fully_shard`` (FSDP2) that are sharded among all ranks:
a system in place of torch's reduce-scatter of gradients.

A unit's gradient is W parts of the same length, one for each rank. Each rank codes every part, with a
residual of its own for all of them, and sends it to its owner, who has the mean of what all ranks sent.
"""
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence, Tuple, Union, cast

import torch
import torch.distributed as dist
from torch import nn

from thinwire import shards
from thinwire import state as saved_state
from thinwire.gathered import EightBitGather
from thinwire.sharded_handle import Backward, ShardedHandle, ShardedReport
from thinwire.units import Sharded, Unit, units_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh  # which older versions of torch have not


class _WholeUnit(Unit):
    """A unit whose flat gradient has all shards of every parameter, those of rank 0 first."""

    def __init__(self, module: Sharded, name: str, group: Any, names: Mapping[int, str]) -> None:
        super().__init__(module, name, group, names)
        ranks = range(group.mesh_info.mesh.size())
        self._rank: int = group.mesh_info.mesh.get_local_rank()
        # An engine knows parameters by their tensors: every rank's part needs one.
        self._of_rank = [
            self._parts if rank == self._rank
            else [part.new_empty(1).expand(part.shape) for part in self._parts] for rank in ranks
        ]

    def parts(self) -> List[Tuple[str, torch.Tensor]]:
        return [(shards.part_name(name, rank), part) for rank, own in enumerate(self._of_rank)
                for name, part in zip(self.names, own)]

    def trained_parts(self) -> List[Tuple[str, torch.Tensor]]:
        trained = [self.trains(index) for index in range(len(self.names))]
        return [part for index, part in enumerate(self.parts()) if trained[index % len(trained)]]

    def own_parts(self) -> List[Tuple[str, torch.Tensor]]:
        return list(zip(self.names, self._parts))

    def _parts_of_gradient(self) -> List[torch.Tensor]:
        return [own[index] for own in self._of_rank for index in self.in_gradient()]

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's part of a flat gradient, or of what is that already."""
        elements = sum(self._parts[index].numel() for index in self.in_gradient())
        return flat if flat.numel() == elements else flat[self._rank * elements : (self._rank + 1) * elements]

    def deliver(self, mean: torch.Tensor) -> None:
        super().deliver(self.own(mean))


class _ReduceScatter:
    """torch's reduce-scatter of one unit's gradients, for ``set_custom_reduce_scatter``."""

    def __init__(self, handle: "weakref.ref[ScatteredHandle]", unit: _WholeUnit) -> None:
        self._handle = handle
        self._unit = unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
                 op: object, async_op: bool = False) -> None:
        handle = self._handle()
        assert handle is not None
        handle._reduce_by(op, self._unit, input_tensor)
        output_tensor.zero_()


class ScatteredReport(ShardedReport):
    """What ``ScatteredHandle.report`` returns."""

    all_gather: Dict[str, int]


class ScatteredHandle(ShardedHandle):
    """What ``fully_shard`` returns over a mesh of one dimension:
    as ``register``'s handle, of ranks that hold a shard each.

    ``report()`` has the bytes of gradients, and under ``all_gather`` those of parameters,
    where these are gathered in 8 bits.
    """

    _reduce_scatter = True
    _has_whole_gradients = True

    def __init__(self, model: nn.Module, mesh: "DeviceMesh", spec: str, all_gather: str,
                 options: Mapping[str, Any]) -> None:
        self._gathers: List[EightBitGather] = []
        self._whole_units: List[_WholeUnit] = []
        # No parameter is on two ranks.
        super().__init__(model, mesh, spec, {**options, "check_replicas_every": 0})
        if all_gather == "8bit":
            for unit in self._whole_units:
                gather = EightBitGather(unit.own_parts())
                module: Sharded = unit.module()
                module.set_custom_all_gather(gather)
                self._gathers.append(gather)

    # --- What ShardedHandle asks ----------------------------------------------------------------------------

    def _units_of(self, model: nn.Module, mesh: "DeviceMesh") -> Sequence[Unit]:
        self._whole_units = units_of(model, _WholeUnit)
        return self._whole_units

    def _take_mesh(self, mesh: "DeviceMesh") -> None:
        self._replicas_group = self._shard_group = mesh.get_group(0)
        self._shard, self._shards = mesh.get_local_rank(0), mesh.size(0)

    def _replicated(self, model: nn.Module) -> Callable[[], Sequence[torch.Tensor]]:
        return lambda: []

    def _hook(self, unit: Unit) -> None:
        module: Sharded = unit.module()
        module.set_custom_reduce_scatter(_ReduceScatter(weakref.ref(self), cast(_WholeUnit, unit)))

    def _to_engine(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient  # nobody else uses it any more

    def _reduce_by(self, op: object, unit: _WholeUnit, gradient: torch.Tensor) -> None:
        """``gradient``: this rank's of all ranks' shards, one behind the other."""
        self._reduce(unit, gradient)
        backward = self._backward
        if backward is not None and backward.error is None and op != cast(Any, dist.ReduceOp).AVG:
            backward.error = RuntimeError(
                f"gradients of {unit.name} come as sums in {gradient.dtype}, and means are needed: "
                "MixedPrecisionPolicy(reduce_dtype=torch.float32) or torch.bfloat16, and no "
                "set_gradient_divide_factor"
            )

    def _submit(self, backward: Backward, unit: Unit, gradient: torch.Tensor) -> None:
        super()._submit(backward, unit, gradient)
        # Of gradients, other ranks' parts are let go as soon as they were sent.
        for one in backward.under_way:
            if one.has_come():
                one.wait()
                one.replace(cast(_WholeUnit, one.unit).own(one.mean).clone())

    def _step_counts(self) -> None:
        for gather in self._gathers:
            gather.step_counts()

    # --- Report and state -----------------------------------------------------------------------------------

    def report(self) -> ScatteredReport:
        report = cast(ScatteredReport, super().report())
        for bucket in report["buckets"]:
            bucket["parameters"] = list(dict.fromkeys(shards.of_part(name)[0]
                                                      for name in bucket["parameters"]))
        report["all_gather"] = {
            "gathers": sum(one.gathers for one in self._gathers),
            "sent_bytes": sum(one.sent_bytes for one in self._gathers),
            "raw_bytes": sum(one.raw_bytes for one in self._gathers),
        }
        return report

    def state_dict(self, consolidate: bool = False) -> Dict[str, Any]:
        """What training must not lose at a restart: this rank's residual of all shards, what 8-bit codes of
        its parameters left out, and the step. ``consolidate=True`` (collective)
        gives all ranks sums of residuals, without the latter.

        ``torch.distributed.checkpoint`` saves and loads the handle itself,
        each rank its own state, without a message.
        """
        asked = saved_state.asked_by_dcp()
        if asked:
            return self._for_dcp(asked)
        state = super().state_dict(consolidate)
        if consolidate:
            state.pop("all_gather")
        return state

    def _own_state(self) -> shards.ShardedState:
        rests = {name: rest for gather in self._gathers for name, rest in gather.state().items()}
        return cast(shards.ShardedState, {**super()._own_state(), "shard": 0, "shards": 1,
                                          "parts": self._shards, "all_gather": rests})

    def _for_dcp(self, asked: str) -> Dict[str, Any]:
        name = shards.entry_name(self._rank, self._world_size, 0, 1)
        return {name: b"" if asked == "load" else shards.pack(self._own_state())}

    def load_state_dict(self, state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
                        strict: bool = True) -> None:
        """Takes over what ``state_dict`` gave, on all ranks before the same step.

        state: this rank's own of a run with as many ranks, which goes on bit for bit; or a list of all ranks'
            states, on any mesh of one or two dimensions:
            residuals are cut along other shards and split among other ranks so that their sum is kept.
        strict: as for ``register``'s handle.

        Raises ValueError for a state of another rank or mesh, of other parameters or shapes,
        and for states of different steps; nothing has changed then.
        """
        states = shards.unpack(state)
        sizes = self._sizes()
        own = shards.own_of(states, self._rank, self._world_size)
        if own is None:
            whole = saved_state.for_rank(shards.for_shard(states, 0, 1, sizes), self._rank, self._world_size)
            fitting = shards.in_parts(whole, self._shards, sizes)
        else:
            shards.require_one_step(states)
            fitting = saved_state.for_rank(own, self._rank, self._world_size)
        rests = shards.rests_for(states, own, self._rank, self._shards, sizes)
        for gather in self._gathers:
            gather.require(rests)
        self._take_over(fitting, strict)
        for gather in self._gathers:
            gather.load(rests)

    def close(self) -> None:
        super().close()
        for gather in self._gathers:
            gather.close()
