"""States of ranks: what ``Handle.state_dict`` gives, merged over ranks, shared out among others,
and checked against a model.

A state is ``{"format", "rank", "world_size", "loss_scale", "parameters", "values"}``. ``loss_scale`` is what
the values were scaled by, or None for 1; ``parameters`` has the elements of each parameter by name.
``values`` has flat tensors, keyed ``KIND/PARAMETER``, and for each kind a text ``kind/KIND`` that says
whether ranks have it in common; ``spec``, ``seed`` and ``step`` stand beside them.
"""
import io
import math
import sys
from types import FrameType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, TypedDict, Union, cast

import torch

from thinwire.extension import _C

FORMAT = 1
#: ``rank`` of a consolidated state.
ALL = -1
#: Of what ``pack`` gives.
_PACKED = "states_of_ranks"

Values = Dict[str, Union[torch.Tensor, int, float, str]]
#: What somebody gives for a state, or for the list of all ranks' states: not looked into yet.
Given = Union[Mapping[str, Any], Sequence[Mapping[str, Any]]]


class State(TypedDict):
    """See above."""

    format: int
    rank: int
    world_size: int
    loss_scale: Optional[float]
    parameters: Dict[str, int]
    values: Values


def _damaged(what: str) -> ValueError:
    return ValueError(f"this state of Thinwire is damaged: {what}; give what state_dict() returned, "
                      "as it was saved")


def _brief(value: object) -> str:
    """For a message of one line."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    return (repr(value) if value is None or isinstance(value, (bool, int, float))
            else f"a {type(value).__name__}")


def _is_count(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _check_value(name: object, value: object) -> None:
    """One of a state's values, as it goes on to C++."""
    if not isinstance(name, str):
        raise _damaged(f"one of its names is {_brief(name)}")
    if isinstance(value, torch.Tensor):
        good = value.dim() == 1 and value.is_floating_point() and value.layout == torch.strided
    else:
        good = isinstance(value, (str, float)) or _is_count(value, 2**64)
    if not good:
        raise _damaged(f"its value {name!r} is {_brief(value)}")


def check(state: Mapping[str, Any]) -> State:
    """The state itself. Raises ValueError for what is none."""
    if (not isinstance(state, Mapping) or "values" not in state or not _is_count(state.get("format"), 2**31)
        or state["format"] != FORMAT):
        raise ValueError(f"this is no state of Thinwire in format {FORMAT}: give what state_dict() returned")
    for name, kind in (("rank", int), ("world_size", int), ("parameters", Mapping), ("values", Mapping)):
        if not isinstance(state.get(name), kind) or isinstance(state[name], bool):
            raise _damaged(f"its {name} is {_brief(state.get(name))}")
    if not ALL <= state["rank"] < state["world_size"] < 2**31:
        raise _damaged(f"it is of rank {state['rank']} of {state['world_size']}")
    scale = state.get("loss_scale", "missing")
    if (scale is not None
        and not (isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale < math.inf)):
        raise _damaged(f"its loss_scale is {_brief(scale)}")
    for name, elements in state["parameters"].items():
        if not isinstance(name, str) or not _is_count(elements, 2**63):
            raise _damaged(f"its parameter {_brief(name) if not isinstance(name, str) else repr(name)} has "
                           f"{_brief(elements)} elements")
    for name, value in state["values"].items():
        _check_value(name, value)
    return cast(State, state)


def _whose(state: Mapping[str, Any]) -> str:
    """The rank; of a sharded model also the shard, which several ranks of the same number hold."""
    shard = f" (shard {state['shard']})" if state.get("shards", 1) != 1 else ""
    return f"{state['rank']}{shard}"


def require_one_step(states: Sequence[State]) -> None:
    """That the states are of the same moment of the same run: sums over others are no state of any run."""
    first = states[0]
    for state in states[1:]:
        whose = f"{_whose(first)} and {_whose(state)}"
        pairs: List[Tuple[str, object, object]] = [
            (name, first["values"].get(name), state["values"].get(name)) for name in ("step", "spec", "seed")
        ]
        pairs += [("loss scale", first["loss_scale"], state["loss_scale"]),
                  ("number of ranks", first["world_size"], state["world_size"])]
        for name, one, other in pairs:
            if one != other:
                shown = [_C.readable(value) if name == "spec" and isinstance(value, str) else value
                         for value in (one, other)]
                raise ValueError(
                    f"the states of ranks {whose} are not of the same {name}: "
                    f"{shown[0]} and {shown[1]}. Give those that all ranks saved at the same moment"
                )
        if state["parameters"] != first["parameters"]:
            names = sorted(set(first["parameters"].items()) ^ set(state["parameters"].items()))
            raise ValueError(f"the states of ranks {whose} are of different models: "
                             f"{names[0][0]!r} differs")


def _of_all_ranks(states: Sequence[Mapping[str, Any]]) -> List[State]:
    """The states by rank. Raises ValueError for a rank that is missing or comes twice, and for states of
    different steps, specs, seeds, loss scales or models."""
    if not states:
        raise ValueError("an empty list of states: give those of all ranks")
    checked = [check(state) for state in states]
    world_size = checked[0]["world_size"]
    found = sorted(state["rank"] for state in checked)
    if found != list(range(world_size)):
        raise ValueError(f"states of ranks {found} are given, "
                         f"and all of ranks 0 to {world_size - 1} are needed")
    by_rank = sorted(checked, key=lambda state: state["rank"])
    require_one_step(by_rank)
    return by_rank


def merge(states: Sequence[Mapping[str, Any]]) -> State:
    """All ranks' states as one: what ranks have of their own as sums, the rest as rank 0 has it.

    Raises ValueError for a rank that is missing or comes twice, for states of different steps, specs, seeds,
    loss scales or models, and for those of parts, as ``ranks_per_host`` has them.
    """
    by_rank = _of_all_ranks(states)
    per_host = by_rank[0]["values"].get("ranks_per_host", 1)
    if per_host != 1:
        raise ValueError(f"these states were saved with ranks_per_host={per_host}: each is of another part "
                         "of the gradients: there is no sum of them. Save every rank's own, and go on with "
                         "as many ranks and the same ranks_per_host")
    return {**by_rank[0], "rank": ALL, "values": _C.merge_states([state["values"] for state in by_rank])}


def for_rank(given: Given, rank: int, world_size: int) -> State:
    """The state with which rank ``rank`` of ``world_size`` goes on."""
    one: Any = given
    if isinstance(given, (list, tuple)):
        by_rank = _of_all_ranks(given)
        one = by_rank[rank] if len(by_rank) == world_size else merge(by_rank)
    state = check(one)
    if state["rank"] == ALL:
        return {**state, "values": _C.share_state(state["values"], state["world_size"], world_size)}
    if state["rank"] != rank or state["world_size"] != world_size:
        own = f"what rank {rank} saved, " if state["world_size"] == world_size else ""
        raise ValueError(
            f"this state is of rank {state['rank']} of {state['world_size']}, and this is rank {rank} of "
            f"{world_size}: give {own}the list of all ranks' states, or one made by "
            "state_dict(consolidate=True)"
        )
    return cast(State, dict(state))


def fit(state: State, shapes: Mapping[str, torch.Size], strict: bool) -> Values:
    """The values of a state for a model with parameters of these shapes;
    see ``Handle.load_state_dict`` for ``strict``."""
    saved = state["parameters"]
    gone = sorted(set(saved) - set(shapes))
    new = sorted(set(shapes) - set(saved))
    if strict and (gone or new):
        what = (f"has {gone[0]!r}, which the model has not" if gone
                else f"has not {new[0]!r}, which the model has")
        raise ValueError(f"the state {what}: load it into the same model, or with strict=False")
    for name, elements in saved.items():
        if name in shapes and shapes[name].numel() != elements:
            raise ValueError(f"parameter {name!r} had {elements} elements when the state was saved, "
                             f"and has {shapes[name].numel()}")
    return _C.fit_state(state["values"], {name: shape.numel() for name, shape in shapes.items()}, list(saved))


def asked_by_dcp() -> str:
    """"save" or "load" where torch.distributed.checkpoint asks for the state, also by way of functions of the
    script's own, else "".

    It takes values of one name for the same on all ranks and keeps one rank's, so what it saves has to be
    everyone's. It loads names that are there already, whatever they hold.
    Its protocol, ``Stateful``, does not say who asks.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch.distributed.checkpoint."):
            return "load" if module.endswith(".state_dict_loader") else "save"
        frame = frame.f_back
    return ""


def pack(states: Sequence[Mapping[str, Any]]) -> Dict[str, bytes]:
    """All ranks' states for torch.distributed.checkpoint: one entry, the same on all ranks."""
    buffer = io.BytesIO()
    torch.save(list(states), buffer)
    return {_PACKED: buffer.getvalue()}


def unpack(state: object) -> Any:
    """What was packed; anything else as it is. Raises ValueError for what is damaged."""
    return loaded(state[_PACKED]) if isinstance(state, Mapping) and set(state) == {_PACKED} else state


def loaded(packed: Any) -> Any:
    """What ``torch.save`` made these bytes of. Raises ValueError for what is damaged."""
    try:
        return torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch says of bytes that are none of its own
        raise _damaged((str(error) or type(error).__name__).splitlines()[0]) from error
