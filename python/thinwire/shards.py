"""States of sharded models: kept for each rank, and cut anew for another mesh.
See ``state.py`` for what a state is.

One of a sharded model also has ``shard`` and ``shards``, and its parameters' elements are those of a shard,
with the padding that makes all shards of a parameter equally long.
"""
import importlib
import io
import math
import os
import re
import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

import torch

from thinwire import state as saved_state

if TYPE_CHECKING:
    from torch.distributed.checkpoint import StorageReader  # which older versions of torch have not

#: Shape of each whole parameter, and the dimension along which it is cut.
Sizes = Mapping[str, Tuple[Tuple[int, ...], int]]
#: Of a parameter's part that a rank owns, where a model is sharded among all of them: NAME@RANK.
_PART = re.compile(r"^(.*)@(\d+)$")
_ENTRY = re.compile(r"(^|\.)replica_\d+_of_\d+_shard_\d+_of_\d+$")


def torch_has(method: str) -> bool:
    """Of ``FSDPModule``."""
    try:
        from torch.distributed import fsdp
    except Exception:  # torch 1.13's own import fails in ways of its own
        return False
    return hasattr(getattr(fsdp, "FSDPModule", None), method)


def require_optimizer(optimizer: Optional[torch.optim.Optimizer], model: torch.nn.Module) -> None:
    """ValueError for one that holds parameters from before they were sharded."""
    if optimizer is None:
        return
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError(
            "optimizer holds none of the model's shards, as it was made before: apply torch's fully_shard "
            "over the mesh's second dimension, make the optimizer, and give both to thinwire.fully_shard"
        )


def entry_name(replica: int, replicas: int, shard: int, shards: int) -> str:
    """Of a rank's state among the entries of torch.distributed.checkpoint."""
    return f"replica_{replica}_of_{replicas}_shard_{shard}_of_{shards}"


def part_name(parameter: str, rank: int) -> str:
    return f"{parameter}@{rank}"


def of_part(name: str) -> Tuple[str, int]:
    """The parameter and the rank of ``part_name``; -1 where it is none's."""
    found = _PART.match(name)
    return (found.group(1), int(found.group(2))) if found else (name, -1)


class ShardedState(saved_state.State):
    """A rank's. Of a model that is sharded among all ranks it also has ``parts``,
    how many there are of each parameter, and ``all_gather``."""

    shard: int
    shards: int


def pack(state: ShardedState) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpack(state: saved_state.Given) -> List[Mapping[str, Any]]:
    """States as a list, whatever came: one, several, or what torch.distributed.checkpoint has loaded."""
    if isinstance(state, Mapping) and state and all(_ENTRY.search(str(name)) for name in state):
        return [saved_state.loaded(value) for value in state.values()]
    return list(state) if isinstance(state, (list, tuple)) else [cast(Mapping[str, Any], state)]


def states_in(checkpoint: Union[str, "os.PathLike[str]", "StorageReader"],
              name: Optional[str] = None) -> List[Mapping[str, Any]]:
    """All ranks' states in a checkpoint of torch.distributed.checkpoint,
    for ``load_state_dict`` on another mesh.

    checkpoint: its folder, or a StorageReader.
    name: of the handle among what was saved, as ``"thinwire"`` in ``{"thinwire": handle}``;
        needed where there are several.

    ValueError where the checkpoint has no state, none of that name, or states of several handles and no name
    is given. Not collective.
    """
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")  # Debian's torch has no types for it
    reader = checkpoint if isinstance(checkpoint, dcp.StorageReader) else dcp.FileSystemReader(checkpoint)
    entries: Dict[str, List[str]] = {}  # by the handle's name
    for entry in reader.read_metadata().state_dict_metadata:
        found = _ENTRY.search(entry)
        if found:
            entries.setdefault(entry[: found.start()], []).append(entry)
    if not entries:
        raise ValueError(f"the checkpoint {checkpoint!r} has no state of a handle of thinwire.fully_shard: "
                         f"save it with {{'thinwire': handle}}")
    names = ", ".join(repr(one) for one in sorted(entries))
    if name is None and len(entries) > 1:
        raise ValueError(f"the checkpoint {checkpoint!r} has states of several handles, {names}: "
                         "give name= the one of this handle")
    if name is not None and name not in entries:
        raise ValueError(f"name={name!r}: the checkpoint {checkpoint!r} has states of {names}")
    wanted: Dict[str, Any] = {entry: b"" for entry in entries[next(iter(entries)) if name is None else name]}
    with warnings.catch_warnings():
        # Each rank reads by itself, on purpose.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(wanted, storage_reader=reader, no_dist=True)
    return unpack(wanted)


def _place_of(state: object) -> Tuple[int, int]:
    """Shard and number of shards."""
    if (not isinstance(state, Mapping) or not isinstance(state.get("shards"), int)
        or not isinstance(state.get("shard"), int) or not isinstance(state.get("values"), Mapping)
        or not isinstance(state.get("parameters"), Mapping) or not isinstance(state.get("parts", 0), int)):
        raise ValueError("this is no state of a sharded model: "
                         "give what state_dict() of thinwire.fully_shard's handle returned")
    return state["shard"], state["shards"]


def require_one_step(states: Sequence[Mapping[str, Any]]) -> None:
    """ValueError for states of several ranks that are not of the same step of the same run. A rank that goes
    on with its own would train with others that are elsewhere."""
    for state in states:
        _place_of(state)
    saved_state.require_one_step([saved_state.check(state) for state in states])


def for_shard(states: Sequence[Mapping[str, Any]], shard: int, shards: int,
              sizes: Sizes) -> saved_state.Given:
    """What ``state.for_rank`` takes, of this shard."""
    if not states:
        raise ValueError("an empty list of states: give those of all ranks")
    for state in states:
        _place_of(state)
    states = [_whole(state, sizes) if state.get("parts") else state for state in states]
    places = [_place_of(state) for state in states]
    counts = {count for _, count in places}
    if len(counts) > 1:
        raise ValueError(f"states of meshes with {sorted(counts)} shards: "
                         "give those that all ranks saved at the same moment")
    require_one_step(states)
    saved = counts.pop()
    if saved == shards:
        mine = [state for state, (place, _) in zip(states, places) if place == shard]
        if mine:
            return mine if len(mine) > 1 else mine[0]
        raise ValueError(f"the state is of shard {places[0][0]} of {shards}, "
                         f"and this rank holds shard {shard}: give this rank's own, or all ranks'")
    by_shard = [[state for state, (place, _) in zip(states, places) if place == one] for one in range(saved)]
    if any(not own for own in by_shard):
        raise ValueError(
            f"the state is of a mesh with {saved} shards, and here are {shards}: give load_state_dict the "
            "list of all ranks' states, which thinwire.fsdp.states_in(checkpoint) reads"
        )
    return cut([saved_state.merge(own) for own in by_shard], shard, shards, sizes)


def own_of(states: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> Optional[Mapping[str, Any]]:
    """The state with which a rank of a model that is sharded among ``ranks`` ranks goes on as it is,
    if it is among these."""
    for state in states:
        if (isinstance(state, Mapping) and state.get("parts") == ranks
            and (state.get("rank"), state.get("world_size")) == (rank, ranks)):
            return state
    return None


def _whole(state: Mapping[str, Any], sizes: Sizes) -> Dict[str, Any]:
    """A state in parts as that of whole parameters, of shard 0 of 1.
    What is no value for each element begins anew, as in ``cut``."""
    parts: int = state["parts"]
    values: Dict[str, Any] = {}
    found: Dict[str, Dict[int, Any]] = {}
    for name, value in state["values"].items():
        kind, _, part = name.partition("/")
        parameter, rank = of_part(part)
        if kind == "kind" or rank < 0:
            values[name] = value
        else:
            found.setdefault(f"{kind}/{parameter}", {})[rank] = value
    dropped: List[str] = []
    for name, own in found.items():
        parameter = name.partition("/")[2]
        elements = state["parameters"].get(part_name(parameter, 0))
        if (parameter in sizes and len(own) == parts
            and all(isinstance(one, torch.Tensor) and len(one) == elements for one in own.values())):
            _require_rows(parameter, sizes)
            values[name] = _cut_one([own[rank] for rank in range(parts)], sizes[parameter][0], 0, 1)
        elif any(isinstance(one, torch.Tensor) for one in own.values()):
            dropped.append(name)
    names = {of_part(name)[0] for name in state["parameters"]}
    parameters = {name: math.prod(sizes[name][0]) if name in sizes else 0 for name in sorted(names)}
    return {
        **{name: value for name, value in state.items() if name not in ("parts", "all_gather")},
        "shard": 0, "shards": 1, "parameters": parameters,
        "values": _without_common(values) if dropped else values,
    }


def in_parts(state: saved_state.State, parts: int, sizes: Sizes) -> saved_state.State:
    """A state of whole parameters as that of a model sharded among so many ranks: the reverse."""
    values: Dict[str, Any] = {}
    parameters: Dict[str, int] = {}
    for name in state["parameters"]:
        shape, _ = sizes.get(name, ((0,), 0))
        for rank in range(parts):
            parameters[part_name(name, rank)] = _padded_rows(shape, parts) * math.prod(shape[1:])
    all_are_cut = True
    for name, value in state["values"].items():
        kind, _, parameter = name.partition("/")
        if kind == "kind" or parameter not in sizes:
            values[name] = value
        elif isinstance(value, torch.Tensor) and len(value) == state["parameters"].get(parameter):
            _require_rows(parameter, sizes)
            for rank in range(parts):
                part = _cut_one([value], sizes[parameter][0], rank, parts)
                values[f"{kind}/{part_name(parameter, rank)}"] = part
        else:
            all_are_cut = all_are_cut and not isinstance(value, torch.Tensor)
    return cast(saved_state.State, {**state, "parameters": parameters,
                                    "values": values if all_are_cut else _without_common(values)})


def rests_for(
    states: Sequence[Mapping[str, Any]], own: Optional[Mapping[str, Any]], rank: int, parts: int, sizes: Sizes
) -> Dict[str, torch.Tensor]:
    """What 8-bit codes of this rank's shards have left out, of a state of its own or of all ranks';
    empty where these do not say."""
    if own is not None:
        return dict(own.get("all_gather", {}))
    by_rank = sorted((state for state in states if isinstance(state, Mapping) and state.get("parts")),
                     key=lambda state: int(state["rank"]))
    if not by_rank or [state["rank"] for state in by_rank] != list(range(by_rank[0]["parts"])):
        return {}
    names = [name for name in by_rank[0].get("all_gather", {})
             if all(name in state["all_gather"] for state in by_rank) and name in sizes]
    return {name: _cut_one([state["all_gather"][name] for state in by_rank], sizes[name][0], rank, parts)
            for name in names}


def _require_rows(parameter: str, sizes: Sizes) -> None:
    dimension = sizes[parameter][1]
    if dimension != 0:
        raise ValueError(f"parameter {parameter!r} is sharded along dimension {dimension}: "
                         "its state fits the mesh alone on which it was saved")


def _without_common(values: Mapping[str, Any]) -> Dict[str, Any]:
    """Without what all ranks have in common of any parameter."""
    common = {name.partition("/")[2] for name, text in values.items() if name.startswith("kind/")
              and "ranks=same" in text}
    return {name: value for name, value in values.items() if name.partition("/")[0] not in common}


def cut(merged: Sequence[Mapping[str, Any]], shard: int, shards: int, sizes: Sizes) -> Dict[str, Any]:
    """Of one state per old shard, that of a new one. What has a value for each element is cut. Where the
    system keeps anything else of a parameter, which belongs to shards as they were, all that its ranks have
    in common begins anew, as for a new parameter.

    A shard's gradient is a mean over the ranks of its shard group. So where these were more, what they have
    not delivered counts for more ranks, and the other way round.
    """
    first = merged[0]
    weight = len(merged) / shards
    summed = {name.partition("/")[2] for name, text in first["values"].items()
              if name.startswith("kind/") and "ranks=sum" in text}
    parameters: Dict[str, int] = {}
    for name, elements in first["parameters"].items():
        shape, _ = sizes.get(name, ((elements,), 0))
        if name in sizes:
            _require_rows(name, sizes)
        parameters[name] = _padded_rows(shape, shards) * math.prod(shape[1:])
    values: Dict[str, Any] = {}
    all_are_cut = True
    for name, value in first["values"].items():
        parts = [state["values"].get(name) for state in merged]
        parameter = name.partition("/")[2]
        if not isinstance(value, torch.Tensor) or parameter not in sizes:
            values[name] = value
        elif all(isinstance(part, torch.Tensor) and len(part) == first["parameters"][parameter]
                 for part in parts):
            own = _cut_one(parts, sizes[parameter][0], shard, shards)
            values[name] = own * weight if name.partition("/")[0] in summed else own
        else:
            all_are_cut = False
    if not all_are_cut:
        values = _without_common(values)
    return {**first, "shard": shard, "shards": shards, "parameters": parameters, "values": values}


def _padded_rows(shape: Sequence[int], shards: int) -> int:
    return -(-shape[0] // shards)


def _cut_one(parts: Sequence[torch.Tensor], shape: Sequence[int], shard: int, shards: int) -> torch.Tensor:
    """A shard of the values that lie in equally long parts, padding behind them."""
    width = math.prod(shape[1:])
    rows, begin = _padded_rows(shape, shards), _padded_rows(shape, shards) * shard
    own = torch.cat(list(parts))[: shape[0] * width][begin * width : (begin + rows) * width]
    return torch.cat([own, own.new_zeros(rows * width - own.numel())])
