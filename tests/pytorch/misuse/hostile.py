"""What comes from files and from the store, changed at random: it is refused, or taken for what it says."""
import json
import math
import random
import string

import torch

from thinwire import agreement
from common import RANK, Net, batch, register, require_agreement, sgd, step_of, train, values_of, wrap

_NUMBERS = [-1, 0, 1, 7, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, True, 0.5, math.nan,
            math.inf]


def _junk(rng):
    """Anything that JSON, or a file of torch's, may hold."""
    text = "".join(rng.choice(string.printable) for _ in range(rng.randrange(12)))
    return rng.choice([None, text, [], {}, [text], {text: text}, rng.choice(_NUMBERS)])


def _changed_text(rng, text):
    at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    return rng.choice([text[:at], text[at:end], text[:at] + rng.choice(string.printable) + text[at:],
                       text[:at] + text[end:], json.dumps(_junk(rng))])


def texts_of_register():
    """What a rank reads of the others while it registers. Each rank by itself."""
    rng = random.Random(RANK)
    signature = agreement.Signature([("a.weight", torch.ones(3, 2)), ("b", torch.ones(4))])
    own = {"job": "1", "model": signature.summary, "hash": signature.hash, "values": 5, "spec": "casq"}
    one = agreement.Agreement.__new__(agreement.Agreement)
    one._ranks = [0, 1]
    conclusions = [{"token": "00ff"}, {"missing": True, "came": 1, "text": "rank 1 is missing"},
                   {"came": 1, "text": "other models", "hash": "f0", "parameters": signature.parameters}]
    taken = 0
    for _ in range(20000):
        whole = rng.choice(conclusions)
        name = rng.choice(list(whole))
        text = json.dumps(rng.choice([whole, {**whole, name: _junk(rng)}]))
        try:
            found = agreement._conclusion_in(_changed_text(rng, text) if rng.random() < 0.8 else text)
        except RuntimeError as error:
            assert "Install the same version on all hosts" in str(error), error
            continue
        taken += 1
        assert "token" in found or found["text"] is not None, found
        if "parameters" in found:
            assert "here" in signature.difference(found["parameters"], 0)
    assert taken > 2000, taken  # both ends are reached
    for _ in range(20000):
        other = agreement._read(_changed_text(rng, json.dumps({**own, rng.choice(list(own)): _junk(rng)})))
        refused = one._refused(1, other, own, ["spec"])
        assert refused is None or "rank 1" in refused, refused


def _changed_value(rng, value):
    if not isinstance(value, torch.Tensor) or rng.random() < 0.2:
        return rng.choice([_junk(rng), rng.choice(_NUMBERS), torch.zeros(rng.randrange(3))])
    at = rng.randrange(max(1, value.numel()))
    held = value.clone()
    if held.numel():
        held[at] = rng.choice([math.nan, math.inf, -3e38, 0.0])
    return rng.choice([held, value[at:], torch.cat([value, value]), value.double(), value.half(), value.int(),
                       value.reshape(1, -1), value.to_sparse(), value.expand(2, -1)])


def _changed(rng, state):
    """With one to three changes."""
    state = {**state, "parameters": dict(state["parameters"]), "values": dict(state["values"])}
    for _ in range(rng.randrange(1, 4)):
        place = rng.choice([state, state["parameters"], state["values"], state["values"]])
        if not isinstance(place, dict) or not place:
            continue
        name = rng.choice(sorted(place, key=str))
        change = rng.randrange(5)
        if change == 0:
            del place[name]
        elif change == 1:
            place[rng.choice(["", "other", name[:-1], 5, f"{name}/{name}"])] = place[name]
        elif change == 2 and isinstance(place[name], str):
            place[name] = _changed_text(rng, place[name])
        elif change == 3:
            place[name] = place[rng.choice(sorted(place, key=str))]
        else:
            place[name] = _changed_value(rng, place[name])
        if not all(isinstance(state.get(part), dict) for part in ("parameters", "values")):
            break
    return state


def states_of_any_kind():
    """A state that is refused changes nothing; after one that was taken the right one restores all."""
    taken = refused = 0
    for spec in ("casq", "power_sgd:rank=2", "demo", "warm_up:steps=3+marsit", "decay:factor=0.9+top_k+zen",
                 "auto:lossless"):
        rng = random.Random(spec)  # the same on all ranks
        model = wrap(Net)
        handle = register(model, spec)
        optimizer = sgd(model)
        train(model, 3, optimizer=optimizer)
        good, parameters = handle.state_dict(), values_of(model)
        step_of(model, sgd(model), model(batch(3)).square().mean())
        wanted = handle.state_dict()["values"]
        handle.load_state_dict(good)
        for _ in range(120):
            given = _changed(rng, good)
            before = handle.state_dict()["values"]
            try:
                packed = {"states_of_ranks": repr(given).encode()}
                handle.load_state_dict(rng.choice([given, given, [given], packed]))
            except (ValueError, RuntimeError) as error:
                refused += 1
                assert str(error) and "cast" not in str(error), error
                _require_equal(handle.state_dict()["values"], before, spec)
                continue
            taken += 1
        handle.load_state_dict(good)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), parameters):
                parameter.copy_(value)
        step_of(model, sgd(model), model(batch(3)).square().mean())
        _require_equal(handle.state_dict()["values"], wanted, spec)
        require_agreement(model, spec)
        handle.close()
    assert taken > 20 and refused > 200, (taken, refused)


def _require_equal(one, other, what):
    assert one.keys() == other.keys(), (what, one.keys() ^ other.keys())
    for name, value in one.items():
        if "seconds" in name:  # measured
            continue
        same = (torch.equal(torch.nan_to_num(value), torch.nan_to_num(other[name]))
                if isinstance(value, torch.Tensor) else value == other[name])
        assert same, (what, name, value, other[name])
