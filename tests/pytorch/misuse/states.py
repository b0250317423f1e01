"""States that one rank writes alone, at a wrong moment, or cannot write."""
import warnings

import torch

import thinwire
from common import (RANK, WORLD, Net, batch, require_agreement, register, require_error, require_same, sgd,
                    train, values_of, wrap)


def states_within_backward():
    """A step is under way, and ranks are at different places of it."""
    model, plain = wrap(Net), wrap(Net)
    handle = register(model, "casq")
    optimizer = train(model, 2)
    state = handle.state_dict()
    said = []

    def ask(_):
        for call in (handle.state_dict, lambda: handle.state_dict(consolidate=True),
                     lambda: handle.load_state_dict(state)):
            said.append(require_error(RuntimeError, ["within backward"], call))

    removed = model.module.layers[0].weight.register_hook(ask)
    train(model, 1, first=2, optimizer=optimizer)
    removed.remove()
    assert len(said) == 3, said
    again = register(plain, "casq")
    train(plain, 3)
    require_same(values_of(model), values_of(plain), "with states that were asked for within backward")
    for name, value in again.state_dict()["values"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, handle.state_dict()["values"][name]), name


class FullDisk:
    """A writer that has no room left."""

    def add_scalar(self, tag, value, step):
        raise OSError(28, "No space left on device")


def a_writer_that_fails_ends_no_step():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 2)
    if RANK == 0:
        handle.log_to(FullDisk())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(model, 2, first=2)
    assert RANK != 0 or any("No space left" in str(warning.message) for warning in said), said
    assert handle.step == 4
    require_agreement(model, "casq")


def one_rank_cannot_begin_a_step():
    """The others hear of it, long before their deadline ends."""
    model = wrap(Net)
    optimizer = sgd(model)
    handle = thinwire.register(model, "casq", deadline_seconds=3600.0, optimizer=optimizer)
    train(model, 2, optimizer=optimizer)
    before = handle.state_dict()["values"]
    if RANK == WORLD - 1:
        optimizer.param_groups[0]["lr"] = "fast"
        words = ["set_learning_rate(): incompatible"]
    else:
        words = [f"rank {WORLD - 1}", "an error of its own", "set_learning_rate(): incompatible"]
    require_error(RuntimeError, words, lambda: model(batch(2)).sum().backward())
    after = handle.state_dict()["values"]
    assert after["step"] == before["step"] == 2
    handle.close()


def states_of_another_step_or_model():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 2)
    early = [{**handle.state_dict(), "rank": rank} for rank in range(WORLD)]
    train(model, 1, first=2)
    late = [{**handle.state_dict(), "rank": rank} for rank in range(WORLD)]
    before = handle.state_dict()["values"]
    for states, words in (
        ([early[0], *late[1:]], ["not of the same step", "2 and 3"]),
        ([*late[:-1], late[0]], ["all of ranks 0 to"]),
        ([*late[:-1], "nothing"], ["no state of Thinwire"]),
        ([*late[:-1], {**late[-1], "parameters": {"other": 3}}], ["different models"]),
    ):
        require_error(ValueError, words, lambda states=states: handle.load_state_dict(states))
    assert handle.step == before["step"] == 3
    handle.load_state_dict(late)
    train(model, 1, first=3)
    handle.load_state_dict((early if RANK == 0 else late)[RANK])  # each rank its own file, of another step
    require_error(RuntimeError, ["do not synchronize the same", "load states of the same step"],
                  lambda: train(model, 1, first=3))


def a_state_that_one_rank_gathers_alone():
    """Not taken for a bucket: all ranks are told who calls what."""
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 3)
    words = ["do not synchronize the same", "ranks' states", "where rank"]
    if RANK == 0:
        require_error(RuntimeError, words, lambda: handle.state_dict(consolidate=True))
    else:
        require_error(RuntimeError, words, lambda: train(model, 1, first=3))
