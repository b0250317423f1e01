"""Scenarios of models that torch's fully_shard shards among all 4 ranks,
with a system in place of its reduce-scatter."""
import torch
import torch.distributed as dist

import thinwire
from common import RANK, WORLD, batch, require_error, require_same
from dcp import shared_folder
from sharded import (
    Given, Net, Ordered, Parts, Raises, adamw, closing, given, locals_of, loss_of, mesh_of, net, plain,
    put_back, require_same_state, residuals_of, saved, shard, tensors_of, torchs, train,
)

try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
    from torch.distributed.tensor import distribute_tensor
except ImportError:  # of an older torch, which runs none of these
    pass

KEEPING = ["half:feedback=on", "ef_signsgd", "qsgd:feedback=on", "casq:bits=4", "top_k:ratio=0.05+zen"]


def flat():
    return init_device_mesh("cpu", (WORLD,), mesh_dim_names=("shard",))


def padded_elements(model):
    """Of one rank's shards."""
    return sum(-(-parameter.shape[0] // WORLD) * parameter[0].numel() for parameter in model.parameters())


def dense_equals_plain_fully_shard():
    """With AdamW, clipping and accumulation, over uneven shards; and in bfloat16."""
    mesh = flat()
    bfloat = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for accumulate, policy, tolerance in ((1, MixedPrecisionPolicy(), 1e-6),
                                          (3, MixedPrecisionPolicy(), 1e-6), (3, bfloat, 0.01)):
        ours, theirs = net(), plain(net(), mesh, mp_policy=policy)
        handle = shard(ours, "dense", mesh, mp_policy=policy)
        train(ours, adamw(ours), 4, accumulate=accumulate)
        train(theirs, adamw(theirs), 4, accumulate=accumulate)
        require_same(locals_of(ours), locals_of(theirs),
                     f"dense and fully_shard, {accumulate} parts, {policy.reduce_dtype}", tolerance)
        assert handle.step == 4
        assert all(parameter.grad.dtype == torch.float32 for parameter in ours.parameters())


def means_of_several_backwards_add_up():
    mesh = flat()
    ours, theirs = net(), plain(net(), mesh)
    handle = shard(ours, "dense", mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    for model in (ours, theirs):
        for step in range(3):
            model(batch(step)).square().mean().backward()
    require_same([p.grad.to_local() for p in ours.parameters()],
                 [p.grad.to_local() for p in theirs.parameters()], "sums of means", 1e-6)
    assert handle.step == 3


def whole_residuals(handle, model):
    """Of every parameter, over ranks, without padding."""
    residuals = residuals_of(handle)
    sums = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            own = torch.cat([residuals[f"{name}@{rank}"]
                             for rank in range(WORLD)])[: parameter.numel()].double()
            dist.all_reduce(own)
            sums.append(own.view(parameter.shape))
    return sums


def nothing_is_lost():
    """Gradients of all ranks = what was delivered + what the residuals have."""
    mesh = flat()
    for spec in KEEPING:
        model = Given()
        handle = shard(model, spec, mesh, modules=[model.layers[1]])
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        delivered = [torch.zeros_like(parameter.to_local()) for parameter in trained]
        entered = [torch.zeros(gradient.shape, dtype=torch.float64) for gradient in given(0)]
        for step in range(6):
            model.zero_grad()
            model(given(step)).backward()
            for rank in range(WORLD):
                for whole, gradient in zip(entered, given(step, rank)):
                    whole += gradient
            for value, parameter in zip(delivered, trained):
                value += parameter.grad.to_local()
        left = whole_residuals(handle, model)
        assert max(value.abs().max() for value in left) > 0, spec
        for parameter, whole, rest, value in zip(trained, entered, left, delivered):
            expected = distribute_tensor((whole - rest).float() / WORLD, mesh, parameter.placements,
                                         src_data_rank=None).to_local()
            require_same([value], [expected], spec, 1e-4)
        assert handle.step == 6
        handle.close()


def lossy_systems_learn():
    for spec in KEEPING + ["qsgd:bits=8"]:
        model = net()
        handle = shard(model, spec, flat())
        optimizer = adamw(model)
        before = loss_of(model)
        train(model, optimizer, 6)
        after = loss_of(model)
        assert after < before, (spec, before, after)
        report = handle.report()
        assert (report["rank"], report["world_size"], report["shard"],
                report["shards"]) == (RANK, WORLD, RANK, WORLD)
        assert report["step"] == 6 and report["total"]["finite"]
        assert {name for bucket in report["buckets"]
                for name in bucket["parameters"]} == {name for name, _ in Net().named_parameters()}
        handle.set("dense")
        train(model, optimizer, 1, first=6)
        assert not residuals_of(handle), "dense delivers what others kept"


def bytes_are_those_of_the_formulas():
    elements = padded_elements(net())
    units = [padded_elements(unit) for unit in (net().layers[0], net().layers[2], net().layers[4])]
    for spec, payload in (
        ("dense", 4 * elements),
        ("half", 2 * elements),
        ("ef_signsgd", sum(8 + -(-unit // 8) for unit in units)),
        ("qsgd:bits=4:chunk=128", sum(-(-unit // 2) + 4 * -(-unit // 128) for unit in units)),
    ):
        model = net()
        handle = shard(model, spec, flat())
        train(model, adamw(model), 3)
        last = handle.report()["last_step"]
        assert last["raw_bytes"] == 4 * WORLD * elements, (last["raw_bytes"], elements)
        assert last["formula_bytes"] == (WORLD - 1) * payload, (spec, last["formula_bytes"], payload)
        assert last["wire_bytes_sent"] == last["formula_bytes"] + last["frame_header_bytes"]


def resumes_bit_for_bit():
    for spec, gather in [(spec, "exact") for spec in KEEPING] + [("casq:bits=4", "8bit")]:
        model = net()
        handle = shard(model, spec, flat(), all_gather=gather)
        optimizer = adamw(model)
        train(model, optimizer, 3)
        parts = saved(model, optimizer, handle)
        train(model, optimizer, 3, first=3)
        again = net()
        resumed, optimizer = shard(again, spec, flat(), all_gather=gather), adamw(again)
        put_back(again, optimizer, resumed, parts)
        assert resumed.step == 3
        train(again, optimizer, 3, first=3)
        require_same(locals_of(again), locals_of(model), f"{spec}, {gather}, resumed")
        require_same_state(tensors_of(handle), tensors_of(resumed), spec)
        other = {**parts[2], "rank": (RANK + 1) % WORLD}
        require_error(ValueError, [f"this is rank {RANK} of {WORLD}", "all ranks' states"],
                      lambda: resumed.load_state_dict(other))


def checkpoints_of_torch():
    """Saved and loaded by torch.distributed.checkpoint: bit for bit on this mesh,
    with residuals' sums from and to one of hosts."""
    for spec in ("casq:bits=4", "top_k:ratio=0.05+zen"):
        model = net()
        handle = shard(model, spec, flat(), all_gather="8bit")
        train(model, adamw(model), 3)
        whole = whole_residuals(handle, model)
        assert max(value.abs().max() for value in whole) > 0
        with shared_folder() as folder:
            dcp.save({"model": model.state_dict(), "thinwire": handle}, checkpoint_id=folder)
            again = net()
            resumed = shard(again, spec, flat(), all_gather="8bit")
            parts = {"model": again.state_dict(), "thinwire": resumed}
            dcp.load(parts, checkpoint_id=folder)
            require_same_state(tensors_of(handle), tensors_of(resumed),
                               f"{spec}, by torch.distributed.checkpoint")
            require_same_state(handle.state_dict()["all_gather"], resumed.state_dict()["all_gather"],
                               f"{spec}, what 8 bits left out")
            require_same(locals_of(again), locals_of(model), spec)
            in_hosts = net()
            elsewhere = shard(in_hosts, spec, mesh_of())
            elsewhere.load_state_dict(thinwire.fsdp.states_in(folder))
            assert elsewhere.step == 3
            train(in_hosts, adamw(in_hosts), 1, first=3)
        with shared_folder() as folder:
            dcp.save({"thinwire": elsewhere}, checkpoint_id=folder)
            from_hosts = net()
            back = shard(from_hosts, spec, flat())
            require_error(BaseException, ["Missing key", f"of_{WORLD}_shard_0_of_1"],
                          lambda: dcp.load({"thinwire": back}, checkpoint_id=folder))
            before = elsewhere.state_dict(consolidate=True)["values"]
            back.load_state_dict(thinwire.fsdp.states_in(folder))
            assert back.step == 4
            for (name, parameter), sums in zip(from_hosts.named_parameters(),
                                               whole_residuals(back, from_hosts)):
                shards_of = [None] * WORLD
                dist.all_gather_object(shards_of, before[f"residual/{name}"])
                expected = torch.cat(shards_of[:2])[: parameter.numel()].view(parameter.shape)
                # A host's mean is that of two ranks.
                require_same([sums.float()], [2 * expected], f"{spec}: {name}", 1e-6)
            train(from_hosts, adamw(from_hosts), 1, first=4)


def fewer_ranks_take_the_state_of_more():
    """What 2 ranks load of 4: residuals with the same sums, and what 8-bit codes left out."""
    model = net()
    handle = shard(model, "casq:bits=4", flat(), all_gather="8bit")
    train(model, adamw(model), 3)
    states = [None] * WORLD
    dist.all_gather_object(states, handle.state_dict())
    whole = whole_residuals(handle, model)
    rests = {name: torch.cat([state["all_gather"][name] for state in states])
             for name, _ in model.named_parameters()}
    pairs = mesh_of()["shard"]  # ranks 0 and 1, and ranks 2 and 3
    few = net()
    resumed = shard(few, "casq:bits=4", pairs, all_gather="8bit")
    require_error(ValueError, [f"rank {RANK} of {WORLD}", "list of all"],
                  lambda: resumed.load_state_dict(states[RANK]))
    resumed.load_state_dict(states)
    assert resumed.step == 3
    residuals = residuals_of(resumed)
    for (name, parameter), expected in zip(few.named_parameters(), whole):
        own = torch.cat([residuals[f"{name}@{rank}"] for rank in range(2)])[: parameter.numel()].double()
        dist.all_reduce(own, group=pairs.get_group())
        require_same([own.view(parameter.shape)], [expected], f"{name} on 2 ranks", 1e-6)
        local, rest = parameter.to_local(), resumed.state_dict()["all_gather"][name]
        begin = pairs.get_local_rank() * rest.numel()
        assert torch.equal(rest[: local.numel()], rests[name][begin : begin + local.numel()]), name
    train(few, adamw(few), 1, first=3)
    consolidated = handle.state_dict(consolidate=True)
    assert "all_gather" not in consolidated
    handle.load_state_dict(consolidated)
    for own, expected in zip(whole_residuals(handle, model), whole):
        require_same([own], [expected], "consolidated", 1e-6)
    wrong = [{**state, "values": {**state["values"], "step": 7}} if state["rank"] else state
             for state in states]
    for one in (resumed, handle):  # the latter finds its own among them
        require_error(ValueError, ["not of the same step: 3 and 7"], lambda: one.load_state_dict(wrong))


def what_the_first_rounding_left_out_is_kept():
    """And a state with anything else in its place is refused before anything has changed."""
    model = net()
    handle = shard(model, "casq:bits=4", flat(), all_gather="8bit")
    train(model, adamw(model), 1)
    state = handle.state_dict()
    rests = state["all_gather"]
    assert max(rest.abs().max() for rest in rests.values()) > 0, rests
    before, name = tensors_of(handle), next(iter(rests))
    nan = rests[name].clone()
    nan[0] = float("nan")
    for wrong in (rests[name][:-1], rests[name].to(torch.int8), nan, "rest"):
        bad = {**state, "all_gather": {**rests, name: wrong}}
        require_error(ValueError, ["all_gather entry", name], lambda: handle.load_state_dict(bad))
    for wrong in ({**state, "values": None}, {**state, "parts": "four"}):
        require_error(ValueError, [], lambda: handle.load_state_dict(wrong))
    require_same_state(before, tensors_of(handle), "refused states")


def given_up_backward_leaves_no_trace():
    for spec in ("casq:bits=4", "top_k:ratio=0.05+zen"):
        model = net()
        handle = shard(model, spec, flat(), all_gather="8bit")
        optimizer = adamw(model)
        train(model, optimizer, 2)
        before, rests = tensors_of(handle), handle.state_dict()["all_gather"]
        optimizer.zero_grad()
        model.layers[1].register_forward_hook(
            lambda module, inputs, output: Raises.apply(output, model.fails)
        )
        model.fails = True
        require_error(ArithmeticError, ["given up"], lambda: model(batch(2)).square().mean().backward())
        model.reset_iter_state()
        model.fails = False
        assert handle.step == 2
        require_same_state(before, tensors_of(handle), f"{spec}, given up")
        require_same_state(rests, handle.state_dict()["all_gather"], f"{spec}, what 8 bits left out")
        train(model, optimizer, 1, first=2)
        assert handle.step == 4, handle.step  # the number of the one that was given up is passed over


def spoiled_step_is_undone():
    """inf on one rank, in a row that another rank owns: all gradients are NaN everywhere,
    and no state has changed."""
    for spec in KEEPING:
        model = Given()
        handle = shard(model, spec, flat(), modules=[model.layers[1]])
        model(given(0)).backward()
        before = tensors_of(handle)
        model.zero_grad()
        gradients = given(1)
        if RANK == 3:
            gradients[2][0, 0] = float("inf")
        model(gradients).backward()
        for parameter in model.parameters():
            if parameter.requires_grad:
                assert parameter.grad.to_local().isnan().all(), f"{spec}: a shard is not NaN"
        require_same_state(before, tensors_of(handle), f"{spec}, spoiled")
        model.zero_grad()
        model(given(2)).backward()
        for parameter in model.parameters():
            if parameter.requires_grad:
                assert parameter.grad.to_local().isfinite().all(), spec
        handle.close()


def a_mean_too_large_for_its_type_is_undone():
    """What a system kept back and dense delivers, together with the largest gradients of bfloat16, exceeds
    these by too much. The owner's mean says so, and the gradient of a rank that kept nothing does not."""
    largest = torch.finfo(torch.bfloat16).max
    row = 12  # of rank 2
    model = Given()
    handle = shard(model, "top_k:ratio=0.05+zen", flat(), modules=[model.layers[1]],
                   mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))

    def step(gradient):
        model.zero_grad()
        model([torch.zeros(41, 30), torch.zeros(41), gradient]).backward()
        return torch.cat([parameter.grad.to_local().flatten()
                          for parameter in model.parameters() if parameter.requires_grad])

    sent = torch.zeros(20, 25)
    sent[0] = largest / 8
    sent[row] = 0.0 if RANK == 3 else 0.0035 * largest
    step(sent)
    handle.set("dense")
    before = tensors_of(handle)
    large = torch.zeros(20, 25)
    large[row] = largest
    assert step(large).isnan().all(), "a rank takes its part of a step that another undoes"
    require_same_state(before, tensors_of(handle), "the step whose mean is too large")
    kept = step(torch.zeros(20, 25)).max().item()
    expected = 0.75 * 0.0035 * largest if RANK == 2 else 0.0
    assert abs(kept - expected) <= 0.01 * expected, (kept, expected)


def layers_in_another_order():
    """Means are right whichever layers a step uses, and those left out keep their residuals."""
    mesh = flat()
    orders = [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2), (1, 3), (3,), (2, 0, 1, 3)]
    for spec in ("dense", "top_k:ratio=0.05+zen"):
        ours, theirs = Ordered(), Ordered()
        handle = shard(ours, spec, mesh, modules=list(ours.layers))
        for layer in theirs.layers:
            torchs(layer, mesh=mesh)
        torchs(theirs, mesh=mesh)
        for step, order in enumerate(orders):
            before = residuals_of(handle) if step else {}
            for model in (ours, theirs):
                model.zero_grad()
                model(batch(step), order).square().mean().backward()
            for (name, parameter), other in zip(ours.named_parameters(), theirs.parameters()):
                used = not name.startswith("layers") or int(name.split(".")[1]) in order
                assert (parameter.grad is not None) == used, (name, order)
                if spec == "dense" and used:
                    require_same([parameter.grad.to_local()], [other.grad.to_local()],
                                 f"{name}, {order}", 1e-6)
                elif not used and spec != "dense":
                    for rank in range(WORLD):
                        part = f"{name}@{rank}"
                        assert torch.equal(before[part], residuals_of(handle)[part]), (
                            f"{part} has lost its residual in {order}"
                        )
        assert handle.step == len(orders)


class Watched(Net):
    """Notes what its middle layer computes with, in forward and anew in backward."""

    def __init__(self):
        torch.manual_seed(7)
        super().__init__(47)
        self.seen = []
        self.layers[2].register_forward_hook(
            lambda module, inputs, output: self.seen.append(module.weight.detach().clone())
        )


def all_ranks_compute_with_the_same_8_bits():
    mesh = flat()
    model = Watched()
    handle = shard(model, "half:feedback=on", mesh, all_gather="8bit", reshard_after_forward=True)
    exact = net()
    shard(exact, "half:feedback=on", mesh)
    optimizer, other = adamw(model), adamw(exact)
    for step in range(8):
        master = model.layers[2].weight.full_tensor()
        train(model, optimizer, 1, first=step)
        train(exact, other, 1, first=step)
        used = model.seen.pop()
        everyones = [torch.empty_like(used) for _ in range(WORLD)]
        dist.all_gather(everyones, used)
        assert all(torch.equal(used, one)
                   for one in everyones), f"step {step}: ranks compute with different parameters"
        # A block's values are multiples of a 127th of its largest,
        # which the rest makes at most a 254th larger.
        error = (used - master).abs().max().item()
        assert 0 < error <= 2 * 1.02 * master.abs().max().item() / 254, (step, error)
    ours, theirs = loss_of(model), loss_of(exact)
    assert abs(ours - theirs) < 0.05 * theirs, (ours, theirs)
    gathered = handle.report()["all_gather"]
    shard_sizes = [padded_elements(unit) for unit in (net().layers[0], net().layers[2], net().layers[4])]
    messages = [size + 4 * -(-size // 256) for size in shard_sizes]
    # loss_of computes once more, without backward; the last layer stays whole from forward to backward.
    assert gathered["gathers"] > 8 * len(messages)
    assert gathered["sent_bytes"] < 0.27 * gathered["raw_bytes"], gathered
    assert (gathered["sent_bytes"] % (WORLD - 1) == 0
            and gathered["sent_bytes"] >= 8 * (WORLD - 1) * sum(messages))


def what_8_bits_leave_out_is_not_lost():
    """Parameters that stand still: the mean over steps of what ranks compute with comes to the
    parameters themselves."""
    model = Watched()
    handle = shard(model, "dense", flat(), all_gather="8bit")
    master = model.layers[2].weight.full_tensor()
    used = []
    for step in range(40):
        model.zero_grad()
        model(batch(step)).square().mean().backward()
        used.append(model.seen.pop())
    one, mean = (used[0] - master).norm().item(), (torch.stack(used).mean(0) - master).norm().item()
    assert mean < one / 10, (one, mean)
    with torch.no_grad():
        first = model(batch(0))
        second = model(batch(0))
    assert torch.equal(first, second), "a forward without backward has changed what ranks compute with"
    model.reshard()
    model.seen.clear()
    handle.close()
    with torch.no_grad():
        model(batch(0))
    assert torch.equal(model.seen.pop(), master), "after close() parameters are gathered as they are"


def what_a_backward_cannot():
    model = Parts()
    handle = shard(model, "casq", flat())
    require_error(RuntimeError, ["the whole model", "got no gradient", "modules=[...]"],
                  lambda: model(batch(0)).sum().backward())
    model.zero_grad()
    model(batch(1), True).sum().backward()
    assert all(parameter.grad.to_local().isfinite().all() for parameter in model.parameters())
    handle.close()
    require_error(RuntimeError, ["is closed", "makes another"],
                  lambda: model(batch(0), True).sum().backward())
    half = net()
    shard(half, "casq", flat(), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    require_error(RuntimeError, ["float16", "reduce_dtype=torch.float32"],
                  lambda: half(batch(0)).sum().backward())
    double = net().double()
    shard(double, "casq", flat())
    require_error(RuntimeError, ["as sums in torch.float64", "reduce_dtype=torch.float32"],
                  lambda: double(batch(0).double()).sum().backward())
    several = net()
    several.layers[2].bias.data = several.layers[2].bias.data.double()
    several.layers[2].bias.requires_grad_(False)
    shard(several, "dense", flat(), all_gather="8bit")
    require_error(RuntimeError, ["layers.2.weight, layers.2.bias", "several types", "'exact'"],
                  lambda: several(batch(0)))


def what_cannot_be_scattered():
    mesh = flat()
    for spec in ("marsit", "power_sgd", "top_k", "auto", "warm_up:steps=2+casq"):
        require_error(ValueError, ["cannot leave each rank its part", "dense, half, ef_signsgd"],
                      lambda spec=spec: shard(net(), spec, mesh))
    require_error(ValueError, ["mesh has one rank"], lambda: shard(net(), "casq", mesh_of(4, 1)["shard"]))
    require_error(ValueError, ["all_gather='4bit'", "'exact'", "'8bit'"],
                  lambda: shard(net(), "casq", mesh, all_gather="4bit"))
    require_error(ValueError, ["all_gather='8bit'", "one dimension"],
                  lambda: shard(net(), "casq", mesh_of(), all_gather="8bit"))
    require_error(ValueError, ["HSDP", "give it mesh instead"],
                  lambda: shard(plain(net(), mesh_of()), "casq", mesh, modules=()))
    model = net()
    handle = shard(model, "casq", mesh)
    require_error(ValueError, ["power_sgd", "cannot leave each rank its part"],
                  lambda: handle.set("power_sgd"))
    train(model, adamw(model), 1)
    assert "dense=casq" in handle.spec and handle.step == 1
    # Sharded by torch before, and by a new handle of the same model.
    before = plain(net(), mesh)
    first = shard(before, "qsgd", mesh, modules=())
    train(before, adamw(before), 1)
    first.close()
    second = shard(before, "half", mesh, modules=())
    train(before, adamw(before), 2)
    assert second.step == 2


def equal_models_in_another_order():
    """torch goes by the order of forward and backward, so it gathers the shards of one model all the same."""
    for together in (False, True):
        models = [net(), net()]
        with torch.no_grad():
            for parameter in models[1].parameters():
                parameter.add_(1)
        for model in models if RANK != 2 else models[::-1]:
            shard(model, "casq:bits=4", flat())
        words = ["in the same order on all ranks"]
        if together:
            loss = sum(model(batch(0)).square().mean() for model in models)
            require_error(RuntimeError, words, loss.backward)
        else:
            for model in models:
                require_error(RuntimeError, words, lambda: model(batch(0)).square().mean().backward())
    models = [net(), net()]
    for model in models:
        shard(model, "casq:bits=4", flat())
    for model in reversed(models):
        train(model, adamw(model), 1)


SCATTERED = [closing(scenario) for scenario in (
    dense_equals_plain_fully_shard, means_of_several_backwards_add_up, nothing_is_lost, lossy_systems_learn,
    bytes_are_those_of_the_formulas, resumes_bit_for_bit, checkpoints_of_torch,
    fewer_ranks_take_the_state_of_more, what_the_first_rounding_left_out_is_kept,
    given_up_backward_leaves_no_trace, spoiled_step_is_undone, a_mean_too_large_for_its_type_is_undone,
    layers_in_another_order, equal_models_in_another_order, all_ranks_compute_with_the_same_8_bits,
    what_8_bits_leave_out_is_not_lost, what_a_backward_cannot, what_cannot_be_scattered,
)]
