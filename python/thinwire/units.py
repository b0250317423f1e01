"""Units of a model under torch's ``fully_shard``: parameters whose gradients torch reduces together."""
import weakref
from typing import Any, Callable, Dict, List, Mapping, Set, Tuple, TypeVar

import torch

#: A module or a parameter as torch's fully_shard makes them, for which older versions of torch have no types.
Sharded = Any

ONE_MESH_ADVICE = ("the gradients of a unit go over one mesh. Shard without it, "
                   "or give the modules with such parameters a fully_shard of their own over the same mesh")


class Unit:
    """Parameters whose gradients torch reduces together:
    those of one module to which ``fully_shard`` was applied."""

    def __init__(self, module: Sharded, name: str, group: Any, names: Mapping[int, str]) -> None:
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

    def parameters(self) -> List[Sharded]:
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


def group_of(module: Sharded, name: str) -> Any:
    """torch's group of a module's own parameters; None where it has none.
    ValueError where torch has several, each over a mesh of its own."""
    state = module._get_fsdp_state()
    if len(getattr(state, "_fsdp_param_groups", ())) > 1:
        raise ValueError(f"torch's fully_shard was applied to {name or 'the model'} with a "
                         f"shard_placement_fn that gives ShardPlacementResult: {ONE_MESH_ADVICE}")
    return state._fsdp_param_group


AnyUnit = TypeVar("AnyUnit", bound=Unit)


def units_of(model: Sharded, make: Callable[[Any, str, Any, Mapping[int, str]], AnyUnit]) -> List[AnyUnit]:
    """In order of modules. Parameters are shards here, so it is asked before the first forward."""
    names = {id(parameter): name.replace("_orig_mod.", "")
             for name, parameter in model.named_parameters(remove_duplicate=False)}
    units: List[AnyUnit] = []
    known: Set[int] = set()
    modules: Dict[Sharded, str] = {module: name.replace("_orig_mod.", "")
                                    for name, module in model.named_modules()}
    for module in modules:
        if not hasattr(module, "set_all_reduce_hook"):
            continue
        group = group_of(module, modules[module])
        if group is None or id(group) in known:
            continue
        known.add(id(group))
        if any(id(one.sharded_param) not in names for one in group.fsdp_params):
            raise ValueError(f"{modules[module] or 'the model'} holds whole parameters since its last "
                             "forward: call its reshard() first")
        units.append(make(module, ", ".join(modules[one] for one in group.modules), group, names))
    return units
