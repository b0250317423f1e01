"""Local steps: each rank's optimizer moves the model several times from one synchronization to the next."""
import copy

import torch
import torch.distributed as dist
from torch import nn

import thinwire
from common import RANK, WORLD, Images, Mixed, Net, batch, register, require_agreement, require_error, wrap


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


def local_step(model, optimizer, local, number):
    with local.no_sync():
        (model(batch(number)) - 1).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return local.step()


def flat(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def of_all_ranks(tensor):
    found = [torch.empty_like(tensor) for _ in range(WORLD)]
    dist.all_gather(found, tensor)
    return found


def a_round_moves_ranks_by_their_mean_update():
    for outer_rate in (1.0, 0.5):
        model = wrap(Net)
        register(model, "dense")
        plain = copy.deepcopy(model.module)  # what this rank would do alone
        optimizer, alone = adam(model), adam(plain)
        local = thinwire.LocalSteps(model, optimizer, every=3, outer_rate=outer_rate)
        begun = flat(model)
        for number in range(3):
            ended = local_step(model, optimizer, local, number)
            assert ended == (number == 2)
            alone.zero_grad()
            (plain(batch(number)) - 1).square().mean().backward()
            alone.step()
            if not ended:
                assert torch.equal(flat(model), flat(plain))
        mean = sum(begun - one for one in of_all_ranks(flat(plain))) / WORLD
        assert torch.allclose(flat(model), begun - outer_rate * mean, atol=1e-6), outer_rate
        require_agreement(model, "dense")
        # Each rank's optimizer goes on as it was.
        for one, other in zip(model.parameters(), plain.parameters()):
            assert torch.equal(optimizer.state[one]["exp_avg"], alone.state[other]["exp_avg"])


def systems_synchronize_updates_and_lose_nothing():
    for spec in ("marsit:full_every=2", "ef_signsgd", "power_sgd:rank=2", "casq", "klt", "auto",
                 "warm_up:steps=2+top_k:ratio=0.1+zen"):
        model = wrap(Net)
        handle = register(model, spec)
        optimizer = adam(model)
        local = thinwire.LocalSteps(model, optimizer, every=2)
        before = (model.module(batch(0)) - 1).square().mean()
        for number in range(24):
            if local_step(model, optimizer, local, number):
                require_agreement(model, spec)
        assert handle.step == 12, (spec, handle.step)
        assert not local.finish()
        assert (model.module(batch(0)) - 1).square().mean() < before, spec


def a_begun_round_can_be_finished():
    model = wrap(Net)
    handle = register(model, "casq")
    optimizer = adam(model)
    local = thinwire.LocalSteps(model, optimizer, every=5)
    for number in range(7):
        local_step(model, optimizer, local, number)
    assert len({one.sum().item() for one in of_all_ranks(flat(model))}) == WORLD
    assert local.finish() and handle.step == 2
    require_agreement(model, "casq")
    # The next round is a whole one, and a resumed run goes on as this one does.
    weights, moments = copy.deepcopy((model.module.state_dict(), optimizer.state_dict()))
    state = handle.state_dict()
    again = wrap(Net)
    resumed, other = register(again, "casq"), adam(again)
    at_once = thinwire.LocalSteps(again, other, every=5)
    again.module.load_state_dict(weights)  # which comes before the first round
    resumed.load_state_dict(state)
    other.load_state_dict(moments)
    for one, steps in ((model, (optimizer, local)), (again, (other, at_once))):
        for number in range(7, 12):
            assert local_step(one, *steps, number) == (number == 11)
    assert torch.equal(flat(model), flat(again))


def a_round_with_nan_on_one_rank_is_undone_on_all():
    torch.manual_seed(3)
    model = wrap(Images)
    register(model, "ef_signsgd")
    optimizer = adam(model)
    local = thinwire.LocalSteps(model, optimizer, every=2)

    def one_step(spoilt=False):
        with local.no_sync():
            loss = model(torch.randn(6, 1, 28, 28)).square().mean()
            (loss * float("nan") if spoilt else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        return local.step()

    assert [one_step() for _ in range(2)] == [False, True]
    weights = flat(model)
    buffers = [one.clone() for one in model.module.buffers()]
    moments = [optimizer.state[one]["exp_avg"].clone() for one in model.parameters()]
    one_step()
    assert one_step(spoilt=RANK == 1)
    assert torch.equal(flat(model), weights)
    assert all(torch.equal(one, other) for one, other in zip(model.module.buffers(), buffers))
    assert all(torch.equal(optimizer.state[one]["exp_avg"], other)
               for one, other in zip(model.parameters(), moments))
    one_step()
    assert one_step() and not torch.equal(flat(model), weights)
    assert torch.isfinite(flat(model)).all()
    require_agreement(model, "ef_signsgd")


def a_synchronization_that_raises_undoes_the_round():
    model = wrap(Net)
    handle = register(model, "casq")
    optimizer = adam(model)
    local = thinwire.LocalSteps(model, optimizer, every=2)
    for number in range(2):
        local_step(model, optimizer, local, number)
    weights = flat(model)
    handle.set("half" if RANK == 1 else "casq:bits=3")
    local_step(model, optimizer, local, 2)
    require_error(RuntimeError, ["casq:bits=3"], lambda: local_step(model, optimizer, local, 3))
    assert torch.equal(flat(model), weights)
    assert all(state["step"] == 2 for state in optimizer.state.values())
    require_agreement(model, "casq")
    handle.close()


def several_backwards_make_one_local_step():
    model = wrap(Net)
    handle = register(model, "dense")
    plain = copy.deepcopy(model.module)
    optimizer, alone = adam(model), adam(plain)
    local = thinwire.LocalSteps(model, optimizer, every=2)
    for number in range(2):
        for part in range(2):
            with local.no_sync():
                model(batch(2 * number + part)).square().mean().backward()
            plain(batch(2 * number + part)).square().mean().backward()
        if number == 0:
            assert torch.equal(flat(model), flat(plain))
        for one in (optimizer, alone):
            torch.nn.utils.clip_grad_norm_(one.param_groups[0]["params"], 0.1)
            one.step()
            one.zero_grad()
        if number == 0:
            assert torch.equal(flat(model), flat(plain))
        local.step()
    assert handle.step == 1
    mean = sum(of_all_ranks(flat(plain))) / WORLD
    assert torch.allclose(flat(model), mean, atol=1e-6)


def unused_parameters_and_frozen_layers_take_part():
    model = wrap(Net, find_unused_parameters=True)
    register(model, "casq")
    model.module.layers[4].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    local = thinwire.LocalSteps(model, optimizer, every=2)
    bias = model.module.layers[4].bias.clone()
    for number in range(4):
        local_step(model, optimizer, local, number)
    require_agreement(model, "casq")
    assert torch.equal(model.module.layers[4].bias, bias)


class Tied(nn.Module):
    """One weight in two places, as language models have it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 20), nn.Linear(20, 20)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def tied_weights_schedules_and_another_spec_within_a_round():
    """And a backward that raises, after which the batch is taken again."""
    model = wrap(Tied)
    handle = register(model, "power_sgd:rank=2")
    plain = copy.deepcopy(model.module)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for one in (model, plain)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(one, 8) for one in optimizers]
    local = thinwire.LocalSteps(model, optimizers[0], every=4)
    handle.set("dense")
    for number in range(8):
        if number == 2:
            with local.no_sync():
                loss = model(batch(number)).square().mean()
                loss.register_hook(lambda _: 1 / 0)
                require_error(ZeroDivisionError, [], loss.backward)
            optimizers[0].zero_grad()
        handle.set("casq" if number % 4 == 1 else "dense")
        ended = local_step(model, optimizers[0], local, number)
        optimizers[1].zero_grad()
        (plain(batch(number)) - 1).square().mean().backward()
        optimizers[1].step()
        for schedule in schedules:
            schedule.step()
        if ended:
            mean = sum(of_all_ranks(flat(plain))) / WORLD
            assert torch.allclose(flat(model), mean, atol=1e-6)
            with torch.no_grad():
                for one, other in zip(plain.parameters(), model.parameters()):
                    one.copy_(other)
    assert handle.step == 2
    require_agreement(model, "dense")


def hooks_on_parameters_change_no_update():
    model = wrap(Net)
    register(model, "dense")
    plain = copy.deepcopy(model.module)
    for one in (model.module, plain):
        one.layers[0].weight.register_hook(lambda gradient: gradient * 0.1)
    optimizer, alone = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain))
    local = thinwire.LocalSteps(model, optimizer, every=2)
    for number in range(4):
        local_step(model, optimizer, local, number)
        alone.zero_grad()
        (plain(batch(number)) - 1).square().mean().backward()
        alone.step()
        if number % 2:
            mean = sum(of_all_ranks(flat(plain))) / WORLD
            assert torch.allclose(flat(model), mean, atol=1e-6)
            with torch.no_grad():
                for one, other in zip(plain.parameters(), model.parameters()):
                    one.copy_(other)


def ranks_have_one_model_behind_a_round():
    """Buffers too, also where forward goes past DDP."""
    for past in (False, True):
        model = wrap(Images)
        register(model, "dense")
        optimizer = adam(model)
        local = thinwire.LocalSteps(model, optimizer, every=2)
        torch.manual_seed(RANK)
        for _ in range(2):
            with local.no_sync():
                examples = torch.randn(6, 1, 28, 28) + RANK
                (model.module if past else model)(examples).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            local.step()
        held = torch.cat([one.double().reshape(-1) for one in (*model.parameters(), *model.buffers())])
        assert all(torch.equal(one, held) for one in of_all_ranks(held.detach()))


def what_is_frozen_and_unfrozen_between_rounds():
    model = wrap(Net, find_unused_parameters=True)
    register(model, "casq")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer.state["count"] = 1  # some keep more than a dict for each parameter
    local = thinwire.LocalSteps(model, optimizer, every=2)
    bias = model.module.layers[4].bias
    for trained in (True, False, True):
        bias.requires_grad_(trained)
        before = bias.detach().clone()
        for number in range(2):
            local_step(model, optimizer, local, number)
        require_agreement(model, "casq")
        assert torch.equal(bias, before) != trained
    local_step(model, optimizer, local, 0)
    bias.requires_grad_(False)
    require_error(ValueError, ["requires_grad of layers.4.bias has changed"], local.finish)
    bias.requires_grad_(True)
    assert local.finish()
    require_agreement(model, "casq")


def a_round_that_ddp_does_not_end_is_undone():
    model = wrap(Net)
    handle = register(model, "dense")
    model.module.layers[4].bias.requires_grad_(False)  # for which DDP waits
    optimizer = adam(model)
    local = thinwire.LocalSteps(model, optimizer, every=2)
    weights = flat(model)
    local_step(model, optimizer, local, 0)
    require_error(RuntimeError, ["find_unused_parameters=True"],
                  lambda: local_step(model, optimizer, local, 1))
    assert torch.equal(flat(model), weights)
    handle.close()


def local_steps_say_what_does_not_fit():
    model = wrap(Net)
    optimizer = adam(model)
    require_error(TypeError, ["wrap and register it first"],
                  lambda: thinwire.LocalSteps(model.module, optimizer, every=2))
    require_error(ValueError, ["the model is not registered"],
                  lambda: thinwire.LocalSteps(model, optimizer, every=2))
    handle = register(model, "casq")
    for every in (0, 2.5, True):
        require_error(ValueError, [f"every={every!r}: a whole number"],
                      lambda: thinwire.LocalSteps(model, optimizer, every=every))
    for rate in (0, -1.0, float("inf"), "1"):
        require_error(ValueError, [f"outer_rate={rate!r}: a number above 0"],
                      lambda: thinwire.LocalSteps(model, optimizer, every=2, outer_rate=rate))
    require_error(ValueError, ["optimizer=4: a torch.optim.Optimizer"],
                  lambda: thinwire.LocalSteps(model, 4, every=2))
    local = thinwire.LocalSteps(model, optimizer, every=2)
    (model(batch(0)) - 1).square().mean().backward()  # synchronizes a gradient
    optimizer.step()
    require_error(RuntimeError, ["let forward and backward of local steps run within"], local.step)
    handle.set("clip+casq")
    require_error(ValueError, ["clip is for gradients"],
                  lambda: thinwire.LocalSteps(model, optimizer, every=2))
    handle.close()
    require_error(ValueError, ["the model is not registered"], local.step)
    still = wrap(Net, static_graph=True)
    register(still, "casq")
    require_error(ValueError, ["static_graph=True"],
                  lambda: thinwire.LocalSteps(still, adam(still), every=2))
    rows = wrap(Mixed)
    register(rows, "casq")
    require_error(ValueError, ["table has sparse gradients"],
                  lambda: thinwire.LocalSteps(rows, adam(rows), every=2))
    other = wrap(Net)
    register(other, "casq", optimizer=adam(other))
    require_error(ValueError, ["registered with optimizer=..."],
                  lambda: thinwire.LocalSteps(other, adam(other), every=2))


LOCAL = [
    a_round_moves_ranks_by_their_mean_update, systems_synchronize_updates_and_lose_nothing,
    a_begun_round_can_be_finished, a_round_with_nan_on_one_rank_is_undone_on_all,
    a_synchronization_that_raises_undoes_the_round, several_backwards_make_one_local_step,
    unused_parameters_and_frozen_layers_take_part, tied_weights_schedules_and_another_spec_within_a_round,
    hooks_on_parameters_change_no_update, ranks_have_one_model_behind_a_round,
    what_is_frozen_and_unfrozen_between_rounds, a_round_that_ddp_does_not_end_is_undone,
    local_steps_say_what_does_not_fit,
]
