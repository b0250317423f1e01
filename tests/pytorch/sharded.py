"""Scenarios of models under torch's fully_shard, on 2 hosts of 2 ranks."""
import functools
import gc
import io
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import thinwire
from common import DEADLINE, RANK, WORLD, Net, batch, require_error, require_same, total
from dcp import shared_folder

try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy
    from torch.distributed.fsdp import fully_shard as torchs
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:  # of an older torch, which runs none of these
    torchs = None

try:
    # Debian's torch cannot import what lies around it.
    if torchs is not None:
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
except ImportError:  # of a torch that has one mesh for all parameters
    ShardPlacementResult = None

LOSSY = ["casq:bits=4", "top_k:ratio=0.05+zen", "marsit:full_every=3", "power_sgd:rank=2"]
opened = []
NAMES = ("replicate", "shard")


def mesh_of(hosts=2, ranks=2):
    return init_device_mesh("cpu", (hosts, ranks), mesh_dim_names=NAMES)


def net(width=47):
    """An odd number of rows: shards have padding."""
    torch.manual_seed(7)
    return Net(width)


def shard(model, spec, mesh=None, **options):
    layers = getattr(model, "layers", [])
    modules = [layers[i] for i in range(len(layers)) if isinstance(layers[i], nn.Linear)][:-1]
    handle = thinwire.fully_shard(
        model, mesh or mesh_of(), spec, modules=options.pop("modules", modules),
        deadline_seconds=DEADLINE, **options
    )
    opened.append(handle)
    return handle


def closing(scenario):
    """What a scenario leaves open is closed by all ranks at the same time,
    and not whenever Python finds its cycles."""

    @functools.wraps(scenario)
    def run():
        try:
            return scenario()
        finally:
            while opened:
                opened.pop().close()

    return run


def plain(model, mesh, **options):
    for layer in list(model.layers)[:-1]:
        if isinstance(layer, nn.Linear):
            torchs(layer, mesh=mesh, **options)
    return torchs(model, mesh=mesh, **options)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps, first=0, accumulate=1, examples=6):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            model.set_requires_gradient_sync(part == accumulate - 1)
            model(batch(100 * part + step, examples=examples)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def loss_of(model):
    with torch.no_grad():
        loss = model(batch(0, 0)).square().mean().item()
    model.reshard()  # forward without backward leaves whole parameters
    return loss


def locals_of(model):
    return [parameter.to_local().detach().clone() for parameter in model.parameters()]


def require_equal_replicas(values, mesh, what):
    for value in values:
        replicas = [torch.empty_like(value) for _ in range(mesh.size(0))]
        dist.all_gather(replicas, value, group=mesh.get_group(0))
        assert all(torch.equal(value, other) for other in replicas), f"{what}: replicas differ"


def residuals_of(handle):
    values = handle.state_dict()["values"]
    return {name.split("/", 1)[1]: value
            for name, value in sorted(values.items()) if name.startswith("residual/")}


def tensors_of(handle):
    """Without zen's measured times."""
    values = handle.state_dict()["values"]
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)
            and "_seconds/" not in name}


def require_same_state(before, after, what):
    assert before.keys() == after.keys(), f"{what}: {before.keys() ^ after.keys()}"
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"{what}: {name} has moved"


def dense_equals_plain_hsdp():
    """With AdamW, clipping and accumulation, over uneven shards; and in bfloat16."""
    mesh = mesh_of()
    bfloat = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    for accumulate, policy, tolerance in ((1, MixedPrecisionPolicy(), 0.0), (3, MixedPrecisionPolicy(), 0.0),
                                          (3, bfloat, 0.01)):
        ours, theirs = net(), plain(net(), mesh, mp_policy=policy)
        handle = shard(ours, "dense", mesh, mp_policy=policy)
        train(ours, adamw(ours), 4, accumulate=accumulate)
        train(theirs, adamw(theirs), 4, accumulate=accumulate)
        require_same(locals_of(ours), locals_of(theirs),
                     f"dense and HSDP, {accumulate} parts, {policy.reduce_dtype}", tolerance)
        assert handle.step == 4
        assert all(parameter.grad.dtype == torch.float32 for parameter in ours.parameters())


def gradients_over_several_backwards():
    """Each reduces its gradients, and means add up."""
    mesh = mesh_of()
    ours, theirs = net(), plain(net(), mesh)
    handle = shard(ours, "dense", mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    for model in (ours, theirs):
        for step in range(3):
            model(batch(step)).square().mean().backward()
    require_same([p.grad.to_local() for p in ours.parameters()],
                 [p.grad.to_local() for p in theirs.parameters()], "sums of means", 1e-6)
    assert handle.step == 3


class Given(nn.Module):
    """Parameters whose gradients are exactly what forward() is given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(30, 41), nn.Linear(25, 20, bias=False)])
        self.frozen = nn.Parameter(torch.zeros(5), requires_grad=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, gradients):
        # Through forward() of each layer, where torch hands out the whole parameters.
        weight, bias, other = gradients
        rows = self.layers[0](torch.eye(30))  # bias + column of weight
        first = (rows * weight.t()).sum() + (self.layers[0](torch.zeros(1, 30))
                                             * (bias - weight.sum(1))).sum()
        return first + (self.layers[1](torch.eye(25)) * other.t()).sum()


def given(step, rank=RANK):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in ((41, 30), (41,), (20, 25))]


def nothing_is_lost():
    """Gradients of all replicas = what was delivered + what the residuals have, per shard;
    and replicas stay equal to the bit."""
    mesh = mesh_of()
    for spec in LOSSY + ["dense"]:
        model = Given()
        handle = shard(model, spec, mesh, modules=[model.layers[1]])
        shards_of = [parameter for parameter in model.parameters() if parameter.requires_grad]
        delivered = [torch.zeros_like(parameter.to_local()) for parameter in shards_of]
        entered = [torch.zeros(gradient.shape) for gradient in given(0)]
        for step in range(6):
            model.zero_grad()
            model(given(step)).backward()
            for rank in range(WORLD):
                for whole, gradient in zip(entered, given(step, rank)):
                    whole += gradient / mesh.size(1)
            for value, parameter in zip(delivered, shards_of):
                value += parameter.grad.to_local()
            require_equal_replicas([parameter.grad.to_local() for parameter in shards_of], mesh, spec)
        residuals = residuals_of(handle)
        if "marsit" not in spec and spec != "dense":
            assert len(residuals) == 3 and max(value.abs().max() for value in residuals.values()) > 0, spec
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        for name, whole, value in zip(names, entered, delivered):
            expected = distribute_tensor(whole, mesh["shard"], [next(iter(shards_of)).placements[0]],
                                         src_data_rank=None).to_local()
            left = residuals.get(name, torch.zeros(value.numel())).clone()
            dist.all_reduce(left, group=mesh.get_group(0))
            require_same([mesh.size(0) * value + left[: value.numel()].view(value.shape)], [expected],
                         f"{spec}: {name}", 1e-4)
        handle.close()


def trained_replicas_are_equal():
    mesh = mesh_of()
    for spec in LOSSY:
        model = net()
        handle = shard(model, spec, mesh, check_replicas_every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05) if "marsit" in spec else adamw(model)
        before = loss_of(model)
        train(model, optimizer, 5)
        after = loss_of(model)
        assert after < before, (spec, before, after)
        require_equal_replicas(locals_of(model), mesh, spec)
        report = handle.report()
        assert (report["rank"], report["world_size"], report["shard"],
                report["shards"]) == (RANK // 2, 2, RANK % 2, 2)
        assert report["step"] == 5 and report["total"]["finite"]
        handle.set("dense")
        train(model, optimizer, 1, first=5)
        assert not residuals_of(handle), "dense delivers what casq and others kept"
        require_equal_replicas(locals_of(model), mesh, spec)


def bytes_are_those_of_the_formulas():
    mesh = mesh_of()
    elements = sum(-(-parameter.shape[0] // 2) * parameter[0].numel() for parameter in net().parameters())
    for spec, payload in (("dense", 4 * elements), ("half", 2 * elements),
                          ("marsit:full_every=0:eta_s=0.1", elements / 8)):
        model = net()
        handle = shard(model, spec, mesh)
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), 3)
        last = handle.report()["last_step"]
        assert last["raw_bytes"] == 4 * elements, (last["raw_bytes"], elements)
        # Each of 2 replicas sends half of it twice;
        # signs are padded to whole bytes or words for each bucket and segment.
        most = payload + (0 if payload >= elements else 200)
        assert payload <= last["formula_bytes"] <= most, (spec, last["formula_bytes"], payload)
        assert last["wire_bytes_sent"] == last["formula_bytes"] + last["frame_header_bytes"]
        names = {name for bucket in handle.report()["buckets"] for name in bucket["parameters"]}
        assert names == {name for name, _ in Net().named_parameters()}


def saved(model, optimizer, handle):
    """As a file has it."""
    file = io.BytesIO()
    torch.save([locals_of(model), optimizer.state_dict(), handle.state_dict()], file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def put_back(model, optimizer, handle, parts):
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), parts[0]):
            parameter.to_local().copy_(value)
    optimizer.load_state_dict(parts[1])
    handle.load_state_dict(parts[2])


def resumes_bit_for_bit():
    mesh = mesh_of()
    for spec in LOSSY:
        model = net()
        handle = shard(model, spec, mesh)
        optimizer = adamw(model)
        train(model, optimizer, 3)
        parts = saved(model, optimizer, handle)
        train(model, optimizer, 3, first=3)
        again = net()
        resumed, optimizer = shard(again, spec, mesh), adamw(again)
        put_back(again, optimizer, resumed, parts)
        assert resumed.step == 3
        train(again, optimizer, 3, first=3)
        require_same(locals_of(again), locals_of(model), f"{spec}, resumed")
        require_same_state(tensors_of(handle), tensors_of(resumed), spec)
        other = {**parts[2], "shard": 1 - parts[2]["shard"]}
        require_error(ValueError, [f"this rank holds shard {RANK % 2}", "all ranks'"],
                      lambda: resumed.load_state_dict(other))
        require_error(ValueError, ["of a mesh with 4 shards, and here are 2", "states_in"],
                      lambda: resumed.load_state_dict({**parts[2], "shards": 4}))
        require_error(ValueError, ["no state of a sharded model"],
                      lambda: resumed.load_state_dict({**parts[2], "shards": None}))


def checkpoints_of_torch():
    """Saved and loaded by torch.distributed.checkpoint, bit for bit,
    and on other meshes with residuals' sums."""
    mesh = mesh_of()
    for spec in ("casq:bits=4", "top_k:ratio=0.05+zen"):
        model = net()
        handle = shard(model, spec, mesh)
        train(model, adamw(model), 3)
        whole = whole_residuals(handle, model, mesh)
        assert max(value.abs().max() for value in whole) > 0
        with shared_folder() as folder:
            dcp.save({"model": model.state_dict(), "thinwire": handle}, checkpoint_id=folder)
            again = net()
            resumed = shard(again, spec, mesh)
            parts = {"model": again.state_dict(), "thinwire": resumed}
            dcp.load(parts, checkpoint_id=folder)
            require_same_state(tensors_of(handle), tensors_of(resumed),
                               f"{spec}, by torch.distributed.checkpoint")
            require_same(locals_of(again), locals_of(model), spec)
            for hosts, ranks in ((1, 4), (4, 1)):
                other = mesh_of(hosts, ranks)
                cut = net()
                elsewhere = shard(cut, spec, other)
                require_error(BaseException, ["Missing key", f"of_{hosts}_shard"],
                              lambda: dcp.load({"thinwire": elsewhere}, checkpoint_id=folder))
                elsewhere.load_state_dict(thinwire.fsdp.states_in(folder))
                assert elsewhere.step == 3
                # A host's mean was that of two ranks.
                expected = [one * 2 / ranks for one in whole]
                require_same(whole_residuals(elsewhere, cut, other), expected,
                             f"{spec} on {hosts} x {ranks}", 1e-6)
                train(cut, adamw(cut), 1, first=3)
                require_equal_replicas(locals_of(cut), other, f"{spec} on {hosts} x {ranks}")
        with shared_folder() as folder:
            dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
            require_error(ValueError, ["no state of a handle"], lambda: thinwire.fsdp.states_in(folder))


def two_models_in_a_checkpoint():
    """Each moves to another mesh by its handle's name."""
    with shared_folder() as folder:
        handles, models = {}, [net(), net(), net()]
        for name, model, spec, steps in (("one", models[0], "casq:bits=4", 1),
                                         ("other", models[1], "top_k:ratio=0.05+zen", 2)):
            handles[name] = shard(model, spec)
            train(model, adamw(model), steps)
        dcp.save(handles, checkpoint_id=folder)
        require_error(ValueError, ["several handles, 'one', 'other'", "name="],
                      lambda: thinwire.fsdp.states_in(folder))
        require_error(ValueError, ["name='two'", "'one', 'other'"],
                      lambda: thinwire.fsdp.states_in(folder, "two"))
        elsewhere = shard(models[2], "top_k:ratio=0.05+zen", mesh_of(1, 4))
        elsewhere.load_state_dict(thinwire.fsdp.states_in(folder, "other"))
        assert elsewhere.step == 2


def whole_residuals(handle, model, mesh):
    """Of every parameter, over replicas and shards."""
    sums = []
    residuals = residuals_of(handle)
    for name, parameter in model.named_parameters():
        own = residuals[name].double()
        dist.all_reduce(own, group=mesh.get_group(0))
        parts = [torch.empty_like(own) for _ in range(mesh.size(1))]
        dist.all_gather(parts, own, group=mesh.get_group(1))
        sums.append(torch.cat(parts)[: parameter.numel()])
    return sums


def states_of_another_mesh():
    """What belongs to shards as they were begins anew; the same shards on another number of hosts keep it."""
    for spec in ("power_sgd:rank=2", "casq:double_momentum=0.5", "mc:momentum=0.5+top_k:ratio=0.1+zen",
                 "auto:settle=0:steps=2"):
        model = net()
        handle = shard(model, spec)
        train(model, adamw(model), 2)
        states = [None] * WORLD
        dist.all_gather_object(states, handle.state_dict())
        mesh = mesh_of(1, 4)
        again = net()
        other = shard(again, spec, mesh)
        require_error(ValueError, ["a mesh with 2 shards, and here are 4"],
                      lambda: other.load_state_dict(states[0]))
        other.load_state_dict(states)
        kinds = {name.partition("/")[0] for name in tensors_of(other)}
        assert "power_sgd_right" not in kinds and "marsit_eta" not in kinds, kinds
        assert ("mc" not in spec) == ("velocity" not in kinds), (spec, kinds)
        assert other.step == 2
        train(again, adamw(again), 2, first=2)
        require_equal_replicas(locals_of(again), mesh, spec)
        wrong = [{**state, "values": {**state["values"], "step": 7}} if state["shard"] else state
                 for state in states]
        require_error(ValueError, ["ranks 0 (shard 0) and 0 (shard 1) are not of the same step: 2 and 7"],
                      lambda: other.load_state_dict(wrong))
        require_error(ValueError, ["not of the same step: 2 and 7"], lambda: handle.load_state_dict(wrong))


def torn_files_are_refused():
    """Each rank loads its own, and those of one shard are of a later step: replicas agree."""
    model = net()
    handle = shard(model, "casq:bits=4")
    train(model, adamw(model), 3)
    state = handle.state_dict()
    torn = {**state, "values": {**state["values"], "step": 7 if RANK % 2 else 3}}
    handle.load_state_dict(torn)
    for tries in range(2):  # it stays refused, and each try has a number
        words = [f"shard is at step {tries + (7 if RANK % 2 else 3)}",
                 f"at steps from {3 + tries} to {7 + tries}", "same moment"]
        require_error(RuntimeError, words, lambda: model(batch(3)).square().mean().backward())
    # One that some ranks have not loaded at all is torn as well.
    again = net()
    other = shard(again, "casq:bits=4")
    if RANK % 2:
        other.load_state_dict(state)
    require_error(RuntimeError, ["at steps from 0 to 3"],
                  lambda: again(batch(3)).square().mean().backward())
    handle.load_state_dict(state)
    model.zero_grad()
    train(model, adamw(model), 1, first=3)
    assert handle.step == 4
    require_equal_replicas(locals_of(model), mesh_of(), "after torn files")


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(context, x, now):
        context.now = now
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if context.now:
            raise ArithmeticError("given up")
        return gradient, None


def given_up_backward_leaves_no_trace():
    for spec in LOSSY[1:]:
        model = net()
        handle = shard(model, spec)
        optimizer = adamw(model)
        train(model, optimizer, 2)
        before = tensors_of(handle)
        optimizer.zero_grad()
        # The whole model's forward, with a failure between its first and its second layer.
        model.layers[1].register_forward_hook(
            lambda module, inputs, output: Raises.apply(output, model.fails)
        )
        model.fails = True
        require_error(ArithmeticError, ["given up"], lambda: model(batch(2)).square().mean().backward())
        model.reset_iter_state()
        model.fails = False
        assert handle.step == 2
        require_same_state(before, tensors_of(handle), f"{spec}, given up")
        train(model, optimizer, 1, first=2)
        assert handle.step == 4, handle.step  # the number of the one that was given up is passed over
        require_equal_replicas(locals_of(model), mesh_of(), spec)


class WithLoss(Net):
    """Called by its method: the hooks of a module's forward do not see it."""

    def loss(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def given_up_backward_of_another_method():
    from torch.distributed.fsdp import register_fsdp_forward_method

    for spec in LOSSY[1:]:
        torch.manual_seed(7)
        model = WithLoss(47)
        handle = shard(model, spec)
        register_fsdp_forward_method(model, "loss")
        model.fails = False
        model.layers[1].register_forward_hook(
            lambda module, inputs, output: Raises.apply(output, model.fails)
        )
        model.loss(batch(0)).backward()
        before = tensors_of(handle)
        model.zero_grad()
        model.fails = True
        require_error(ArithmeticError, ["given up"], lambda: model.loss(batch(1)).backward())
        model.reset_iter_state()
        model.fails = False
        require_same_state(before, tensors_of(handle), f"{spec}, given up")
        model.zero_grad()
        model.loss(batch(1)).backward()
        assert handle.step == 3, handle.step
        gradients = [parameter.grad.to_local() for parameter in model.parameters()]
        assert any(gradient.count_nonzero() for gradient in gradients), f"{spec}: nothing was delivered"


def spoiled_step_is_undone_in_all_shards():
    """inf on one rank, in a row that only one shard has: all gradients are NaN everywhere,
    and no state has changed."""
    mesh = mesh_of()
    for spec in LOSSY:
        model = Given()
        handle = shard(model, spec, mesh, modules=[model.layers[1]])
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


def loss_scale_is_followed():
    """A GradScaler leaves out the step that overflows on one rank, and residuals follow its scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=100)
    model = net()
    handle = shard(model, "top_k:ratio=0.05+zen", grad_scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for step in range(4):
        before = locals_of(model)
        optimizer.zero_grad()
        inputs = batch(step)
        if step == 2 and RANK == 1:
            inputs[0, 0] = float("inf")
        scaler.scale(model(inputs).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(value, other) for value, other in zip(locals_of(model), before))
        assert same == (step == 2), f"step {step} was {'left out' if same else 'taken'}"
        norms.append(torch.cat(list(residuals_of(handle).values())).norm().item())
    assert scaler.get_scale() == 128.0
    assert norms[2] == norms[1] and norms[3] < 0.9 * norms[2], norms
    require_equal_replicas(locals_of(model), mesh_of(), "under a GradScaler")


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 5))
        self.other = nn.Linear(20, 5)

    def forward(self, x, other=False):
        x = self.layers[0](x)
        return self.layers[1](x) + (self.other(x) if other else 0.0)


class Ordered(nn.Module):
    """Uses those of its layers that the caller names, in his order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.ModuleList([nn.Linear(20, 20) for _ in range(4)])
        self.head = nn.Linear(20, 5)

    def forward(self, x, order):
        for place in order:
            x = self.layers[place](x).tanh()
        return self.head(x)


def layers_in_another_order():
    """Means are right whichever layers a step uses, and those left out keep their residuals.
    A step that does not count leaves all as it was, also where it is the first with these layers."""
    mesh = mesh_of()
    orders = [(0, 1, 2, 3), (0, 1, 2, 3), (3, 2, 1, 0), (0, 2), (1, 3), (0, 1, 2, 3), (3,),
              (2, 0, 1, 3), (0, 3, 1)]
    for spec in ("dense", "top_k:ratio=0.05+zen", "ef_signsgd", "casq"):
        ours, theirs = Ordered(), Ordered()
        handle = shard(ours, spec, mesh, modules=list(ours.layers))
        for layer in theirs.layers:
            torchs(layer, mesh=mesh)
        torchs(theirs, mesh=mesh)
        for step, order in enumerate(orders):
            before = residuals_of(handle) if step else {}
            if before and spec != "dense":
                ours.zero_grad()
                (ours(batch(step), order) * (float("nan") if dist.get_rank() == 0 else 1)).sum().backward()
                for name, residual in residuals_of(handle).items():
                    assert torch.equal(before[name], residual), f"{spec}: {name} has moved in {order}"
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
                    assert torch.equal(before[name],
                                       residuals_of(handle)[name]), f"{name} has lost its residual in {order}"
            require_equal_replicas([p.grad.to_local() for p in ours.parameters() if p.grad is not None], mesh,
                                   f"{spec}, {order}")
        assert handle.step == len(orders) + (0 if spec == "dense" else len(orders) - 1)


class Chunks(nn.Module):
    """Its head is called by whoever computes the loss, a part of the batch at a time."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first, self.last, self.head = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5)

    def forward(self, x):
        return self.last(self.first(x))


class Checkpointed(Net):
    """Its middle activations are computed anew in backward."""

    def __init__(self, reentrant):
        torch.manual_seed(7)
        super().__init__(47)
        self.reentrant = reentrant

    def forward(self, x):
        return self.layers[4](checkpoint(self.layers[1:4], self.layers[0](x), use_reentrant=self.reentrant))


def what_a_backward_cannot():
    """Named on every rank, and the next step is as if it had not been."""
    model = Parts()
    handle = shard(model, "casq")
    require_error(RuntimeError, ["the whole model", "got no gradient", "modules=[...]"],
                  lambda: model(batch(0)).sum().backward())
    model.zero_grad()
    model(batch(1), True).sum().backward()
    require_equal_replicas([parameter.grad.to_local() for parameter in model.parameters()], mesh_of(),
                           "after errors")
    model.set_force_sum_reduction_for_comms(True)
    require_error(RuntimeError, ["come as sums", "set_gradient_divide_factor"],
                  lambda: model(batch(0), True).sum().backward())
    handle.close()
    require_error(RuntimeError, ["is closed", "makes another"],
                  lambda: model(batch(0), True).sum().backward())
    for unused, words in ((False, ["some parameters of last, head got no gradient"]),
                          (True, ["of last, head were reduced twice", "a fully_shard of its own"])):
        chunks = Chunks()
        torchs([chunks.last, chunks.head], mesh=mesh_of()["shard"])
        torchs(chunks, mesh=mesh_of()["shard"])
        shard(chunks, "casq", modules=())
        chunks.set_reduce_scatter_unused_params(unused)
        loss = sum(chunks.head(part).sum() for part in chunks(batch(0)).chunk(2))
        require_error(RuntimeError, words, lambda: loss.backward())
    nested = Checkpointed(True)
    shard(nested, "casq")
    require_error(RuntimeError, ["use_reentrant=False"], lambda: nested(batch(0)).sum().backward())
    late = net()
    shard(late, "casq")
    late.set_manual_backward_finalization(True)
    late(batch(0)).sum().backward()
    require_error(RuntimeError, ["outside of backward", "set_manual_backward_finalization"],
                  late.finalize_backward)
    half = net()
    shard(half, "casq", mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float16))
    require_error(RuntimeError, ["float16", "reduce_dtype=torch.float32"],
                  lambda: half(batch(0)).sum().backward())
    stepping = net()
    shard(stepping, "casq")
    for parameter in stepping.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    require_error(RuntimeError, ["within backward", "step after backward"],
                  lambda: stepping(batch(0)).sum().backward())


def what_cannot_be_sharded():
    mesh, flat = mesh_of(), init_device_mesh("cpu", (WORLD,), mesh_dim_names=("shard",))
    require_error(ValueError, ["a mesh of shape (2, 2) named None"],
                  lambda: shard(net(), "casq", init_device_mesh("cpu", (2, 2))))
    require_error(ValueError, ["mesh=7"], lambda: shard(net(), "casq", 7))
    require_error(ValueError, ["nosuch"], lambda: shard(net(), "nosuch", mesh))
    require_error(ValueError, ["lanes=0"], lambda: shard(net(), "casq", mesh, lanes=0))
    require_error(TypeError, ["thinwire.register(model, spec)", "model.module"],
                  lambda: shard(DDP(net()), "casq", mesh))
    require_error(TypeError, ["a part of the model is wrapped"],
                  lambda: shard(nn.Sequential(DDP(net())), "casq", mesh))
    older = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    require_error(TypeError, ["(FSDP1)", "thinwire.fully_shard"], lambda: shard(older, "casq", mesh))
    require_error(TypeError, ["not int"], lambda: shard(7, "casq", mesh))
    require_error(ValueError, ["HSDP", "mesh['shard'] instead"],
                  lambda: shard(plain(net(), mesh), "casq", mesh, modules=()))
    require_error(ValueError, ["over ranks [0, 1, 2, 3]", "give both the same mesh"],
                  lambda: shard(plain(net(), flat), "casq", mesh, modules=()))
    inner = net()
    torchs(inner.layers[0], mesh=mesh["shard"])
    require_error(ValueError, ["not to the model itself"], lambda: shard(inner, "casq", mesh))
    tensor_parallel = net()
    bias = nn.Parameter(distribute_tensor(tensor_parallel.layers[4].bias.data, flat, [Replicate()]))
    tensor_parallel.layers[4].register_parameter("bias", bias)
    require_error(TypeError, ["layers.4.bias is a DTensor", "tp_plan"],
                  lambda: shard(tensor_parallel, "casq", mesh))
    used = plain(net(), mesh["shard"])
    used(batch(0))
    require_error(ValueError, ["holds whole parameters", "reshard()"],
                  lambda: shard(used, "casq", mesh, modules=()))
    used.reshard()
    shard(used, "casq", mesh, modules=())
    model = net()
    early = adamw(model)
    require_error(ValueError, ["none of the model's shards"],
                  lambda: shard(model, "casq", mesh, optimizer=early))
    handle = shard(model, "casq", mesh, modules=())
    require_error(RuntimeError, ["a handle already"], lambda: shard(model, "casq", mesh, modules=()))
    require_error(TypeError, ["(FSDP2)", "thinwire.fully_shard", "DistributedDataParallel"],
                  lambda: thinwire.register(model, "casq"))
    handle.close()
    shard(model, "casq", mesh, modules=())


def a_mesh_for_each_parameter():
    """torch has a group of parameters for each mesh then."""
    if ShardPlacementResult is None:
        return "skipped"
    mesh = mesh_of()
    between_hosts = FSDPMeshInfo(mesh["replicate"], shard_mesh_dim=0)

    def place(parameter):
        return ShardPlacementResult(Shard(0), between_hosts) if parameter.dim() == 1 else None

    words = ["ShardPlacementResult", "Shard without it", "a fully_shard of their own"]
    model = net()
    require_error(ValueError, [*words, "parameter layers.0.bias"],
                  lambda: shard(model, "casq", mesh, shard_placement_fn=place))
    assert not any(hasattr(module, "set_all_reduce_hook") for module in model.modules()), "torch's came first"
    applied = plain(net(), mesh["shard"], shard_placement_fn=place)
    require_error(ValueError, [*words, "applied to the model"],
                  lambda: shard(applied, "casq", mesh, modules=()))
    # One dimension for each is torch's own business.
    shard(model, "casq", mesh, shard_placement_fn=lambda parameter: Shard(0))


def after_torchs_own():
    """Sharded by torch over one dimension; with an optimizer that holds its variance still,
    and activations computed anew."""
    mesh = mesh_of()
    model = plain(Checkpointed(False), mesh["shard"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    handle = shard(model, "one_bit_adam:freeze=2", mesh, modules=(), optimizer=optimizer)
    train(model, optimizer, 5)
    assert handle.step == 5
    require_equal_replicas(locals_of(model), mesh, "one_bit_adam")
    # A new handle of the same model goes on.
    handle.close()
    handle = shard(model, "casq", mesh, modules=())
    train(model, optimizer, 2)
    require_equal_replicas(locals_of(model), mesh, "casq")


def handles_live_as_long_as_their_models():
    model = net()
    held = weakref.ref(thinwire.fully_shard(model, mesh_of(), "casq", deadline_seconds=DEADLINE))
    train(model, adamw(model), 2)
    gc.collect()
    assert held().step == 2
    del model
    gc.collect()
    assert held() is None


def replicas_that_differ_are_found():
    """Also on the ranks of the other shard, whose replicas agree. Once they are equal all shards go on, at
    the same step: the one that was refused counts as given up in all of them."""
    model = net()
    handle = shard(model, "casq", check_replicas_every=1)
    for step in (0, 2):
        first = next(model.parameters()).detach().to_local()
        before = first.clone()
        if RANK == 3:
            first.add_(1)
        words = [f"replicas differ before step {handle.step}" if RANK % 2
                 else f"on rank {RANK + 1}, which holds another"]
        require_error(RuntimeError, words, lambda: model(batch(0)).sum().backward())
        first.copy_(before)
        model.reset_iter_state()
        train(model, adamw(model), 2, first=step)
        steps = [None] * WORLD
        dist.all_gather_object(steps, handle.step)
        assert steps == [3 if step == 0 else 6] * WORLD, steps


def equal_models_in_another_order():
    """On one rank, whose replica and the ranks of the other shard learn of it; and on one host, for all."""
    mesh = mesh_of()  # with a mesh for each, torch's own groups would belong to other models
    for reversed_on in ([2], [2, 3]):
        models = [net(), net()]
        for model in models if RANK not in reversed_on else models[::-1]:
            shard(model, "casq", mesh, check_replicas_every=0)
        of_this_shard = any((RANK - one) % 2 == 0 for one in reversed_on)
        words = ["in the same order on all ranks" if of_this_shard else "which holds another shard"]
        for model in models:
            require_error(RuntimeError, words, lambda: model(batch(0)).square().mean().backward())
    models = [net(), net()]
    for model in models:
        shard(model, "casq:bits=4", mesh)
    for model in reversed(models):
        train(model, adamw(model), 1)


SHARDED = [closing(scenario) for scenario in (
    dense_equals_plain_hsdp, gradients_over_several_backwards, nothing_is_lost, trained_replicas_are_equal,
    bytes_are_those_of_the_formulas, resumes_bit_for_bit, checkpoints_of_torch, states_of_another_mesh,
    two_models_in_a_checkpoint, torn_files_are_refused, given_up_backward_leaves_no_trace,
    given_up_backward_of_another_method,
    spoiled_step_is_undone_in_all_shards, loss_scale_is_followed, layers_in_another_order,
    what_a_backward_cannot, what_cannot_be_sharded, a_mesh_for_each_parameter, after_torchs_own,
    handles_live_as_long_as_their_models, replicas_that_differ_are_found, equal_models_in_another_order,
)]
