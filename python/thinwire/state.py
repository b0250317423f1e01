"""States of ranks: what ``Handle.state_dict`` gives, merged over ranks, split among others, and checked against a model.

A state is ``{"format", "rank", "world_size", "loss_scale", "parameters", "values"}``; ``loss_scale`` is what the values were scaled by
(or None), ``parameters`` has the elements of each parameter of the
model by name. Values are keyed ``KIND/PARAMETER`` and flat: ``residual`` (what the
rank still owes) and ``velocity`` (of momentum correction, before it is averaged) differ between ranks, everything else is the
same on all. ``spec``, ``seed`` and ``step`` stand beside them.
"""
from typing import Any, Dict, List, Mapping, Sequence, Union

import torch

FORMAT = 1
#: Kinds of which ranks have different values.
_OWN = ("residual", "velocity")
#: ``rank`` of a consolidated state.
_ALL = -1


def _kind(name: str) -> str:
    return name.split("/", 1)[0]


def _check(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or "values" not in state or state.get("format") != FORMAT:
        raise ValueError(f"this is no state of Thinwire in format {FORMAT}: give what state_dict() returned")


def merge(states: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """All ranks' states as one: residuals and velocities are sums over ranks, the rest is rank 0's."""
    if not states:
        raise ValueError("an empty list of states: give those of all ranks")
    for state in states:
        _check(state)
    world_size = states[0]["world_size"]
    found = sorted(state["rank"] for state in states)
    if found != list(range(world_size)):
        raise ValueError(f"states of ranks {found} are given, and all of ranks 0 to {world_size - 1} are needed")
    by_rank = sorted(states, key=lambda state: state["rank"])
    values = dict(by_rank[0]["values"])
    for name in {name for state in by_rank for name in state["values"]}:
        if _kind(name) in _OWN:
            values[name] = sum(state["values"][name].double() for state in by_rank if name in state["values"]).float()
    return {**by_rank[0], "rank": _ALL, "values": values}


def for_rank(state: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]], rank: int, world_size: int) -> Dict[str, Any]:
    """The state with which rank ``rank`` of ``world_size`` goes on."""
    if isinstance(state, (list, tuple)):
        mine = [one for one in state if isinstance(one, Mapping) and one.get("rank") == rank]
        if len(state) == world_size and len(mine) == 1 and mine[0].get("world_size") == world_size:
            state = mine[0]
        else:
            state = merge(state)
    _check(state)
    if state["rank"] == _ALL:
        # Sums of residuals are kept. A velocity smooths a rank's gradients, so every rank begins with the mean of all.
        divisor = {"residual": world_size}
        values = {
            name: value / divisor.get(_kind(name), state["world_size"]) if _kind(name) in _OWN else value
            for name, value in state["values"].items()
        }
        return {**state, "values": values}
    if state["rank"] != rank or state["world_size"] != world_size:
        raise ValueError(
            f"this state is of rank {state['rank']} of {state['world_size']}, and this is rank {rank} of {world_size}: give the "
            "list of all ranks' states, or one made by state_dict(consolidate=True)"
        )
    return dict(state)


def fit(state: Mapping[str, Any], shapes: Mapping[str, torch.Size], strict: bool) -> Dict[str, Any]:
    """The values of a state for a model with parameters of these shapes; see ``Handle.load_state_dict`` for ``strict``."""
    saved: Dict[str, int] = state["parameters"]
    gone: List[str] = sorted(set(saved) - set(shapes))
    new: List[str] = sorted(set(shapes) - set(saved))
    if strict and (gone or new):
        what = f"has {gone[0]!r}, which the model has not" if gone else f"has not {new[0]!r}, which the model has"
        raise ValueError(f"the state {what}: load it into the same model, or with strict=False")
    for name, elements in saved.items():
        if name in shapes and shapes[name].numel() != elements:
            raise ValueError(f"parameter {name!r} had {elements} elements when the state was saved, and has {shapes[name].numel()}")
    values = {name: value for name, value in state["values"].items() if "/" not in name or name.split("/", 1)[1] in shapes}
    for name, value in values.items():
        if _kind(name) in _OWN and value.numel() != shapes[name.split("/", 1)[1]].numel():
            raise ValueError(f"the state's {name!r} has {value.numel()} elements, the parameter {shapes[name.split('/', 1)[1]].numel()}")
    if not new:
        return values
    # New parameters owe nothing. What systems know beside that is known for whole buckets, and learnt again.
    values = {name: value for name, value in values.items() if "/" not in name or _kind(name) in _OWN}
    for kind in {_kind(name) for name in values if "/" in name}:
        for name in new:
            values[f"{kind}/{name}"] = torch.zeros(shapes[name].numel())
    return values
