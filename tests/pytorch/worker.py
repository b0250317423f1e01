"""One rank of the PyTorch module's tests: worker.py GROUP_OF_SCENARIOS. run.py starts as many as a group wants.

Every scenario runs on all ranks; one that fails ends its process, and the others name the rank that left.
"""
import copy
import os
import signal
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire

DEADLINE = 30.0
COMPRESS_ON = "device"  # what register is told unless a scenario says it
torch.set_num_threads(1)


# --- Models and loops ---------------------------------------------------------------------------------------------------

class Net(nn.Module):
    """Several parameters of different sizes, so that small bucket limits make several buckets."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 5))

    def forward(self, x):
        return self.layers(x)


class Images(nn.Module):
    """Convolutions with batch normalisation, whose buffers DDP broadcasts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10),
        )

    def forward(self, images):
        return self.layers(images)


class Branches(nn.Module):
    """Uses one of two branches, as the caller says."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(20, 12), nn.Linear(20, 12), nn.Linear(12, 5)

    def forward(self, x, left):
        return self.head(self.left(x) if left else self.right(x))


class Words(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.table, self.head = nn.Embedding(300, 8, sparse=sparse), nn.Linear(8, 4)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


class Given(nn.Module):
    """Parameters whose gradients are exactly what forward() is given."""

    def __init__(self, sizes=(700, 33, 1200, 5), dtypes=(torch.float32,)):
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.zeros(size, dtype=dtypes[i % len(dtypes)])) for i, size in enumerate(sizes)]
        )

    def forward(self, gradients):
        return sum((weight * gradient.to(weight.dtype)).double().sum() for weight, gradient in zip(self.weights, gradients))


RANK = WORLD = None


def wrap(make, **options):
    torch.manual_seed(7)
    # About 4 kB per bucket, from the first one on.
    options.setdefault("bucket_cap_mb", 0.004)
    old = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = 4096
    try:
        return DDP(make(), **options)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = old


def register(model, spec="dense", **options):
    options.setdefault("compress_on", COMPRESS_ON)
    return thinwire.register(model, spec, deadline_seconds=DEADLINE, **options)


def batch(step, rank=None, examples=6):
    generator = torch.Generator().manual_seed(1000 * step + (RANK if rank is None else rank))
    return torch.randn(examples, 20, generator=generator)


def step_of(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def train(model, steps, first=0, optimizer=None):
    optimizer = optimizer or sgd(model)
    for step in range(first, first + steps):
        step_of(model, optimizer, model(batch(step)).square().mean())
    return optimizer


def values_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def require_same(one, other, what, tolerance=0.0):
    for a, b in zip(one, other):
        a, b = a.double(), b.double()
        gap = (a - b).abs().max().item() if a.numel() else 0.0
        limit = tolerance * max(1.0, b.abs().max().item() if b.numel() else 0.0)
        assert gap <= limit, f"{what}: differs by {gap}, {limit} is allowed"


def require_agreement(model, what):
    for parameter in model.parameters():
        mine = parameter.detach().double().contiguous()
        lowest, highest = mine.clone(), mine.clone()
        dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
        dist.all_reduce(highest, op=dist.ReduceOp.MAX)
        assert torch.equal(lowest, highest), f"{what}: ranks have different parameters"


def total(tensor):
    result = tensor.double().clone()
    dist.all_reduce(result)
    return result


def require_error(kind, words, action):
    try:
        action()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the message lacks {missing}: {error}"
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


# --- Like plain DDP -----------------------------------------------------------------------------------------------------

def dense_equals_plain_ddp():
    plain, ours = wrap(Images), wrap(Images)
    handle = register(ours)
    for model in (plain, ours):
        optimizer = sgd(model, 0.05)
        for step in range(100):
            generator = torch.Generator().manual_seed(1000 * step + RANK)
            labels = torch.randint(0, 10, (4,), generator=generator)
            images = torch.randn(4, 1, 28, 28, generator=generator) + labels.reshape(4, 1, 1, 1) / 5
            step_of(model, optimizer, nn.functional.cross_entropy(model(images), labels))
    require_same(values_of(ours), values_of(plain), "100 steps")
    report = handle.report()
    assert report["step"] == 100 and len(report["buckets"]) > 1, report
    elements = sum(parameter.numel() for parameter in ours.parameters())
    assert report["last_step"]["raw_bytes"] == 4 * elements
    assert WORLD == 1 or report["total"]["wire_bytes_sent"] >= 100 * 4 * elements * (WORLD - 1) / WORLD


def buckets_are_rebuilt():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 1)
    first = handle._engine.bucket_parameters()
    train(model, 2, first=1)
    assert handle._engine.bucket_parameters() != first, "DDP was expected to group parameters anew"
    assert sorted(sum(first, [])) == sorted(sum(handle._engine.bucket_parameters(), []))
    require_agreement(model, "rebuilt buckets")


def accumulation_without_synchronization():
    plain, ours = wrap(Net), wrap(Net)
    handle = register(ours)
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(6):
            optimizer.zero_grad()
            with model.no_sync():
                model(batch(3 * step)).square().mean().backward()
                model(batch(3 * step + 1)).square().mean().backward()
            model(batch(3 * step + 2)).square().mean().backward()
            optimizer.step()
    assert handle.step == 6
    require_same(values_of(ours), values_of(plain), "accumulated gradients")


def unused_parameters():
    plain, ours = (wrap(Branches, find_unused_parameters=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(8):
            # Ranks use different branches in some steps, none of them the right one in the last.
            left = (step + RANK) % 3 != 0 or step == 7
            step_of(model, optimizer, model(batch(step), left).square().mean())
    require_same(values_of(ours), values_of(plain), "unused parameters")


def static_graph():
    plain, ours = (wrap(Net, static_graph=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        train(model, 6)
    require_same(values_of(ours), values_of(plain), "static graph")


def gradients_as_views():
    plain, ours = (wrap(Net, gradient_as_bucket_view=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        train(model, 6)
    require_same(values_of(ours), values_of(plain), "gradients as views")


def uneven_inputs():
    plain, ours = wrap(Net), wrap(Net)
    register(ours)
    compressed = wrap(Net)
    handle = register(compressed, "ef_signsgd")
    for model in (plain, ours, compressed):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with model.join():
            for step in range(4 + 3 * RANK):
                step_of(model, optimizer, model(batch(step)).square().mean())
    assert handle.step == 4 + 3 * (WORLD - 1)
    require_same(values_of(ours), values_of(plain), "uneven inputs")
    require_agreement(compressed, "uneven inputs")


def frozen_and_unfrozen():
    plain, ours = (wrap(Net, find_unused_parameters=True) for _ in range(2))
    register(ours)
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(9):
            for parameter in model.module.layers[2].parameters():
                parameter.requires_grad_(not 3 <= step < 6)
            step_of(model, optimizer, model(batch(step)).square().mean())
    require_same(values_of(ours), values_of(plain), "frozen layer")


def two_models():
    models = [wrap(Net), wrap(lambda: Net(17)), wrap(Net), wrap(lambda: Net(17))]
    register(models[2])
    register(models[3], "dense")
    optimizers = [sgd(model) for model in models]
    for step in range(5):
        losses = [model(batch(step)).square().mean() for model in models]
        for optimizer, loss in zip(optimizers, losses):
            optimizer.zero_grad()
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    require_same(values_of(models[2]), values_of(models[0]), "first of two models")
    require_same(values_of(models[3]), values_of(models[1]), "second of two models")


def double_precision_is_exact():
    plain, ours = wrap(lambda: Net().double()), wrap(lambda: Net().double())
    register(ours, "signsgd")
    for model in (plain, ours):
        optimizer = sgd(model)
        for step in range(4):
            step_of(model, optimizer, model(batch(step).double()).square().mean())
    require_same(values_of(ours), values_of(plain), "float64")


def sparse_embedding():
    def run(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(6):
            words = torch.randint(0, 300, (5, 7), generator=torch.Generator().manual_seed(100 * step + RANK))
            words[0, :3] = 11  # a row that comes more than once, on every rank
            step_of(model, optimizer, model(words).square().mean())
        assert model.module.table.weight.grad.is_sparse
        return values_of(model)

    expected = run(wrap(Words))
    ours = wrap(Words)
    handle = register(ours)
    require_same(run(ours), expected, "rows by zen", 1e-6)
    rows = [bucket for bucket in handle.report()["buckets"] if bucket["parameters"] == ["table.weight"]]
    assert len(rows) == 1 and rows[0]["density_in"] < 0.2, rows
    adam = wrap(Words)
    register(adam, "casq", rows="agsparse")
    optimizer = torch.optim.SparseAdam(list(adam.module.table.parameters()))
    for step in range(3):
        optimizer.zero_grad()
        adam(torch.randint(0, 300, (5, 7), generator=torch.Generator().manual_seed(step + RANK))).square().sum().backward()
        optimizer.step()
    require_agreement(adam, "SparseAdam")
    lossy = wrap(Words)
    register(lossy, "rows=half,dense=dense")
    run(lossy)
    require_agreement(lossy, "rows by half")


def require_compression_on(handle, device):
    found = {bucket["compressed_on"] for bucket in handle.report()["buckets"]}
    assert found == {device}, found


def compresses_where_it_is_told():
    # The tests' build with an emulated device takes all memory for the device's.
    for where, expected in (("device", "cuda:0" if thinwire._C.cuda == "emulated" else "cpu"), ("cpu", "cpu")):
        model = wrap(Net)
        handle = register(model, "casq", compress_on=where)
        train(model, 2)
        require_compression_on(handle, expected)


PLAIN = [dense_equals_plain_ddp, compresses_where_it_is_told, buckets_are_rebuilt, accumulation_without_synchronization, unused_parameters, static_graph,
         gradients_as_views, uneven_inputs, frozen_and_unfrozen, two_models, double_precision_is_exact, sparse_embedding]


# --- What compression adds ----------------------------------------------------------------------------------------------

SPECS = ["dense", "half", "marsit:full_every=3", "casq", "sketched_sgd:ratio=0.1", "power_sgd:rank=2", "ef_signsgd", "signsgd", "ssdm",
         "qsgd:bits=3", "terngrad", "nuqsgd:bits=3", "alq:bits=3", "amq:bits=3", "zen", "agsparse", "top_k:ratio=0.1+zen",
         "dgc:ratio=0.1+agsparse", "block_top_k:ratio=0.25:block=16+s2_reducer:lambda=exact", "global_top_k:ratio=0.1", "omnireduce",
         "sparcml", "sparse_ps"]


def every_system_agrees():
    for spec in SPECS:
        model = wrap(Net)
        handle = register(model, spec)
        train(model, 4, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
        require_agreement(model, spec)
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), spec
        report = handle.report()
        sent, formula = report["last_step"]["wire_bytes_sent"], report["last_step"]["formula_bytes"]
        headers = report["last_step"]["frame_header_bytes"]
        assert sent == formula + headers, f"{spec}: {sent} bytes, formula {formula} and {headers} of headers"
        handle.close()


def given(step, sizes, scale=1.0):
    generator = torch.Generator().manual_seed(31 * step + RANK)
    return [scale * torch.randn(size, generator=generator) for size in sizes]


def owed(handle):
    """Of all parameters in order of names, this rank's residuals."""
    values = handle.state_dict()["values"]
    return {name.split("/", 1)[1]: value for name, value in values.items() if name.startswith("residual/")}


def conserve(model, handle, sizes, steps, sums, first):
    """Adds what went in and what came out, per parameter and over ranks."""
    for step in range(first, first + steps):
        gradients = given(step, sizes)
        model.zero_grad()
        model(gradients).backward()
        for i, gradient in enumerate(gradients):
            sums[i] += total(gradient) - WORLD * model.module.weights[i].grad.double()


def nothing_is_lost():
    """Over bucket changes, another system, a checkpoint: what went in came out or is owed."""
    sizes = (700, 33, 1200, 5)
    model = wrap(Given)
    handle = register(model, "top_k:ratio=0.05+zen")
    sums = [torch.zeros(size, dtype=torch.float64) for size in sizes]

    def require_balance(what):
        left = owed(handle)
        for i in range(len(sizes)):
            expected = total(left.get(f"weights.{i}", torch.zeros(sizes[i])))
            require_same([sums[i]], [expected], f"{what}, parameter {i}", 1e-4)

    conserve(model, handle, sizes, 4, sums, 0)
    assert any(value.abs().sum() > 0 for value in owed(handle).values())
    require_balance("top_k over rebuilt buckets")
    handle.set("casq")
    conserve(model, handle, sizes, 3, sums, 4)
    require_balance("casq after top_k")
    handle.set("dense")
    assert handle.spec.endswith("dense=dense:feedback=off")
    conserve(model, handle, sizes, 1, sums, 7)
    require_balance("dense pays what casq owed")
    assert not any(value.abs().sum() > 0 for value in owed(handle).values())
    handle.set("ef_signsgd")
    conserve(model, handle, sizes, 3, sums, 8)
    require_balance("ef_signsgd")
    require_error(ValueError, ["nosuch"], lambda: handle.set("nosuch"))
    conserve(model, handle, sizes, 1, sums, 11)
    require_balance("after a refused system")


def compare_with_the_cpu(where):
    """The same gradients give the same means on the CPU and from `where`: to the bit where the CPU compresses both, else but for
    step sizes whose sums are rounded in another order."""
    for spec in ("marsit:full_every=3", "casq", "ef_signsgd", "top_k:ratio=0.1+zen", "sketched_sgd:k=64:columns=512"):
        sizes = (700, 33, 1200, 5)
        host = wrap(lambda: Given(sizes, (torch.float32, torch.float16)))
        device = wrap(lambda: Given(sizes, (torch.float32, torch.float16)).to(where))
        register(host, spec, compress_on="cpu")
        handle = register(device, spec)
        for step in range(4):
            gradients = given(step, sizes)
            for model, place in ((host, "cpu"), (device, where)):
                model.zero_grad()
                model([gradient.to(place) for gradient in gradients]).backward()
            exact = {bucket["compressed_on"] for bucket in handle.report()["buckets"]} == {"cpu"}
            for one, other in zip(host.parameters(), device.parameters()):
                apart = (one.grad - other.grad.cpu()).abs().float()
                # In float16 a last bit; a threshold that moves takes single elements along.
                allowed = 0.0 if exact else one.grad.abs().max().float() * (1e-3 if one.dtype == torch.float16 else 1e-5)
                count = int((apart > allowed).sum())
                assert count <= (0 if exact else len(apart) // 100), f"{spec}, step {step}: {count} of {len(apart)} differ"


def compression_is_the_same_on_an_emulated_device():
    compare_with_the_cpu("cpu")
    return None if thinwire._C.cuda == "emulated" else "skipped: no emulated device, compared with itself:"


def mixed_types():
    dtypes = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
    if torch.__version__.startswith("1."):
        dtypes.remove(torch.bfloat16)  # DDP itself cannot broadcast it over Gloo
    sizes = (300, 64, 500, 20)
    for spec in ("dense", "casq", "marsit"):
        model = wrap(lambda: Given(sizes, dtypes))
        register(model, spec)
        for step in range(3):
            gradients = given(step, sizes)
            model.zero_grad()
            model(gradients).backward()
            require_agreement_of_gradients(model)
            if spec == "dense":
                for weight, gradient in zip(model.module.weights, gradients):
                    mean = total(gradient.to(weight.dtype)) / WORLD
                    tolerance = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(weight.dtype, 1e-6)
                    require_same([weight.grad], [mean], f"mean of {weight.dtype}", tolerance)


def require_agreement_of_gradients(model):
    for parameter in model.parameters():
        gradient = parameter.grad.double()
        summed = total(gradient) / WORLD
        require_same([gradient], [summed], "mean gradients of ranks", 1e-12)


class Scaler:
    """What is read from a GradScaler."""

    def __init__(self):
        self.scale = 1024.0

    def get_scale(self):
        return self.scale


def loss_scaling():
    sizes = (700, 33, 1200, 5)
    for spec in ("top_k:ratio=0.05+zen", "casq", "marsit:full_every=3", "ef_signsgd", "half", "mc+top_k:ratio=0.05+zen"):
        scaler = Scaler()
        model = wrap(lambda: Given(sizes))
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model(given(step, sizes, scaler.scale)).backward()
        before = owed(handle)
        # One parameter overflows on one rank; the step is skipped everywhere, also for buckets that are fine.
        spoilt = given(3, sizes, scaler.scale)
        if RANK == WORLD - 1:
            spoilt[2][0] = float("inf")
        model.zero_grad()
        model(spoilt).backward()
        assert not torch.isfinite(model.module.weights[2].grad).all(), f"{spec}: a rank did not see the overflow"
        assert torch.isfinite(model.module.weights[0].grad).all(), f"{spec}: was meant to be in another bucket"
        after = owed(handle)
        for name, value in before.items():
            assert torch.equal(value, after[name]), f"{spec}: a skipped step changed what is owed"
        # The scale is halved; what is owed follows.
        scaler.scale /= 2
        state = handle.state_dict()
        assert state["loss_scale"] == 2 * scaler.scale
        for name, value in state["values"].items():
            if name.split("/")[0] in ("residual", "velocity", "casq_centres", "casq_shard_centres", "marsit_eta"):
                state["values"][name] = value / 2
        other = wrap(lambda: Given(sizes))
        reference = register(other, spec)
        for step in range(2):  # DDP's grouping of later steps
            other(given(50 + step, sizes)).backward()
        reference.load_state_dict(state)
        gradients = given(4, sizes, scaler.scale)
        for one in (model, other):
            one.zero_grad()
            one(gradients).backward()
        require_same([w.grad for w in model.module.weights], [w.grad for w in other.module.weights], f"{spec} after a new scale", 1e-5)


def overflow_in_the_first_step():
    """What a loss scale that begins too high does, before DDP groups parameters anew."""
    sizes = (700, 33, 1200, 5)
    for spec in ("marsit:full_every=3", "casq:double_momentum=0.5", "mc+top_k:ratio=0.05+zen"):
        model = wrap(lambda: Given(sizes))
        register(model, spec, grad_scaler=Scaler())
        for step in range(5):
            gradients = given(step, sizes)
            if step == 0 and RANK == 0:
                gradients[3][0] = float("nan")
            model.zero_grad()
            model(gradients).backward()
        require_agreement_of_gradients(model)


def overflow_where_buckets_are_rebuilt():
    """In DDP's second step some buckets are what they were and others are not: nothing of it may stay behind."""
    # At first a bucket for each type, then one for each parameter.
    sizes = (1500, 1400, 3000)
    model = wrap(lambda: Given(sizes, (torch.float32, torch.float32, torch.float16)))
    handle = register(model, "top_k:ratio=0.05+zen", grad_scaler=Scaler())
    model(given(0, sizes)).backward()
    before = owed(handle)
    buckets = [bucket["parameters"] for bucket in handle.report()["buckets"]]
    spoilt = given(1, sizes)
    if RANK == 0:
        spoilt[1][0] = float("inf")
    model.zero_grad()
    model(spoilt).backward()
    rebuilt = [bucket["parameters"] for bucket in handle.report()["buckets"]]
    assert rebuilt[0] == buckets[0] and rebuilt != buckets, (buckets, rebuilt)
    after = owed(handle)
    assert len(before) == len(sizes) and all(value.any() for value in before.values())
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"a skipped step changed what {name} owes"


def means_beyond_float16():
    """Every rank's gradient is finite in float16, what is delivered is not: a step to leave out, like one with an infinite gradient."""
    model = wrap(lambda: Given((64,), (torch.float16,)))
    handle = register(model, "top_k:ratio=0.02+zen", grad_scaler=Scaler())
    gradient = (6e4 * (1 - 1e-3 * torch.arange(64))).half()
    model([gradient]).backward()
    assert torch.isfinite(model.module.weights[0].grad).all() and handle.report()["last_step"]["finite"]
    before = owed(handle)
    model.zero_grad()
    model([gradient]).backward()  # of what was held back
    assert not torch.isfinite(model.module.weights[0].grad).all()
    assert not handle.report()["last_step"]["finite"]
    for name, value in before.items():
        assert torch.equal(value, owed(handle)[name])


def skipped_steps():
    """A real GradScaler, where torch has one for the CPU: all ranks skip the step in which one overflows."""
    if not hasattr(torch.amp, "GradScaler"):
        return "skipped: this torch has no GradScaler for the CPU"
    model = wrap(Net)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    register(model, "casq", grad_scaler=scaler)
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        inputs = batch(step)
        if step == 3 and RANK == 0:
            inputs[0, 0] = float("inf")
        scaler.scale(model(inputs).square().mean()).backward()
        before = values_of(model)
        scaler.step(optimizer)
        scaler.update()
        skipped = all(torch.equal(a, b) for a, b in zip(before, values_of(model)))
        assert skipped == (step == 3), f"step {step}"
    assert scaler.get_scale() == 128.0
    require_agreement(model, "skipped step")


def tiny_model():
    for spec in ("dense", "casq", "marsit", "top_k:ratio=0.5+zen", "power_sgd", "sketched_sgd:ratio=0.5"):
        model = wrap(lambda: Given((1,)))
        register(model, spec)
        for step in range(3):
            model.zero_grad()
            model(given(step, (1,))).backward()
            assert torch.isfinite(model.module.weights[0].grad).all()
        require_agreement_of_gradients(model)


class Writer:
    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))


def reports_and_logs():
    model = wrap(Net)
    handle = register(model, "marsit:full_every=0", lanes=3)
    writer = Writer()
    handle.log_to(writer, every=2)
    train(model, 5)
    handle.log_to(None)
    report = handle.report()
    assert report["rank"] == RANK and report["world_size"] == WORLD and report["step"] == 5
    assert "marsit:full_every=0" in report["spec"]
    names = sorted(name for bucket in report["buckets"] for name in bucket["parameters"])
    assert names == sorted(name for name, _ in model.module.named_parameters())
    assert [bucket["bucket"] for bucket in report["buckets"]] == list(range(len(report["buckets"])))
    assert report["total"]["raw_bytes"] == 5 * report["last_step"]["raw_bytes"]
    assert sorted({step for _, _, step in writer.scalars}) == [2, 4]
    assert any(tag == "thinwire/compression" and value > 1 for tag, value, _ in writer.scalars) or WORLD == 1


COMPRESSION = [every_system_agrees, compression_is_the_same_on_an_emulated_device, nothing_is_lost, mixed_types,
               loss_scaling, overflow_in_the_first_step,
               overflow_where_buckets_are_rebuilt, means_beyond_float16, skipped_steps, tiny_model, reports_and_logs]


# --- States -------------------------------------------------------------------------------------------------------------

def resumes_bit_for_bit():
    for spec in ("casq", "marsit:full_every=3", "mc:momentum=0.9+top_k:ratio=0.1+agsparse", "power_sgd:rank=2", "qsgd:bits=3"):
        model = wrap(Net)
        handle = register(model, spec)
        optimizer = train(model, 4)
        with tempfile.TemporaryFile() as file:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "thinwire": handle.state_dict()}, file)
            train(model, 3, first=4, optimizer=optimizer)
            file.seek(0)
            saved = torch.load(file)
        again = wrap(Net)
        resumed = register(again, spec)
        train(again, 2, first=50)  # the grouping of later steps
        again.module.load_state_dict(saved["model"])
        optimizer = sgd(again)
        optimizer.load_state_dict(saved["optimizer"])
        resumed.load_state_dict(saved["thinwire"])
        assert resumed.step == 4
        train(again, 3, first=4, optimizer=optimizer)
        require_same(values_of(again), values_of(model), f"{spec}, resumed")


def resumes_in_other_buckets():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 3)
    state, before = handle.state_dict(), owed(handle)
    other = wrap(Net, bucket_cap_mb=25)
    resumed = register(other, "top_k:ratio=0.1+zen", lanes=1)
    resumed.load_state_dict(state)
    assert {k: v.tolist() for k, v in owed(resumed).items()} == {k: v.tolist() for k, v in before.items()}
    train(other, 1)
    assert len(resumed.report()["buckets"]) < len(handle.report()["buckets"])
    require_agreement(other, "resumed in other buckets")


def another_system_before_the_first_step():
    model = wrap(Net)
    handle = register(model, "top_k:ratio=0.1+zen")
    train(model, 2)
    before = owed(handle)
    fresh = wrap(Net)
    resumed = register(fresh, "top_k:ratio=0.1+zen")
    resumed.load_state_dict(handle.state_dict())
    resumed.set("ef_signsgd")
    assert {k: v.tolist() for k, v in owed(resumed).items()} == {k: v.tolist() for k, v in before.items()}
    # A step of zeros: what was owed goes in, and what comes out or is still owed adds up to it.
    optimizer = torch.optim.SGD(fresh.parameters(), lr=1.0)
    optimizer.zero_grad()
    (0.0 * fresh(batch(9)).sum()).backward()
    for name, parameter in fresh.module.named_parameters():
        out = WORLD * parameter.grad.double() + total(owed(resumed)[name]).reshape(parameter.shape)
        require_same([out], [total(before[name]).reshape(parameter.shape)], f"{name} by another system", 1e-5)


def resumes_with_other_ranks():
    """A run of all ranks goes on with one fewer, by both ways to save."""
    model = wrap(Net)
    handle = register(model, "ef_signsgd")
    train(model, 3)
    whole = handle.state_dict(consolidate=True)
    everyones = [None] * WORLD
    dist.all_gather_object(everyones, handle.state_dict())
    sums = {name: total(value) for name, value in sorted(owed(handle).items())}
    small = dist.new_group(list(range(WORLD - 1)))
    if RANK < WORLD - 1:
        torch.manual_seed(7)
        for state in (whole, everyones):
            fewer = DDP(Net(), process_group=small)
            resumed = register(fewer, "ef_signsgd")
            require_error(ValueError, ["list of all ranks"], lambda: resumed.load_state_dict(everyones[RANK]))
            require_error(ValueError, ["needed"], lambda: resumed.load_state_dict(everyones[:-1]))
            resumed.load_state_dict(state)
            for name, value in sorted(owed(resumed).items()):
                value = value.double()
                dist.all_reduce(value, group=small)
                require_same([value], [sums[name]], f"sum of {name}", 1e-6)
            train(fewer, 2)
    dist.barrier()


def refuses_what_does_not_fit():
    handle = register(wrap(Net), "ef_signsgd")
    state = handle.state_dict()
    wider = register(wrap(lambda: Net(50)), "ef_signsgd")
    require_error(ValueError, ["elements"], lambda: wider.load_state_dict(state))
    branches = register(wrap(Branches, find_unused_parameters=True), "ef_signsgd")
    require_error(ValueError, ["strict=False"], lambda: branches.load_state_dict(state))
    require_error(ValueError, ["state_dict()"], lambda: handle.load_state_dict({"model": 1}))
    trained = wrap(Net)
    handle = register(trained, "ef_signsgd", seed=3)
    train(trained, 2)
    before = owed(handle)
    other = wrap(Net)
    seeded = register(other, "ef_signsgd", seed=4)
    train(other, 1)
    kept = owed(seeded)
    require_error(RuntimeError, ["seed 3", "seed 4"], lambda: seeded.load_state_dict(handle.state_dict()))
    assert all(torch.equal(kept[name], value) for name, value in owed(seeded).items())
    untrained = register(wrap(Net), "ef_signsgd", seed=4)
    require_error(RuntimeError, ["seed 3", "seed 4"], lambda: untrained.load_state_dict(handle.state_dict()))
    # A layer more than when it was saved: what is known is kept.
    bigger = wrap(lambda: nn.ModuleDict({"layers": Net().layers, "more": nn.Linear(2, 2)}), find_unused_parameters=True)
    grown = register(bigger, "ef_signsgd", seed=3)
    grown.load_state_dict(handle.state_dict(), strict=False)
    assert all(torch.equal(owed(grown)[name], value) for name, value in before.items())


STATES = [resumes_bit_for_bit, resumes_in_other_buckets, another_system_before_the_first_step, resumes_with_other_ranks, refuses_what_does_not_fit]


# --- Misuse -------------------------------------------------------------------------------------------------------------

def bad_input():
    require_error(TypeError, ["DistributedDataParallel", "Net"], lambda: register(Net()))
    require_error(ValueError, ["nosuch", "marsit"], lambda: register(wrap(Net), "nosuch"))
    require_error(ValueError, ["bits=7"], lambda: register(wrap(Net), "casq:bits=7"))
    require_error(ValueError, ["lanes=0"], lambda: register(wrap(Net), lanes=0))
    require_error(ValueError, ["compress_on='gpu'"], lambda: register(wrap(Net), compress_on="gpu"))
    require_error(ValueError, ["threads='2'"], lambda: register(wrap(Net), threads="2"))
    require_error(ValueError, ["deadline_seconds=0"], lambda: thinwire.register(wrap(Net), "dense", deadline_seconds=0))
    require_error(ValueError, ["rows="], lambda: register(wrap(Net), "rows=zen,dense=half", rows="zen"))
    model = wrap(Net)
    handle = register(model)
    require_error(RuntimeError, ["register_comm_hook"], lambda: register(model))
    handle.close()
    require_error(RuntimeError, ["closed"], lambda: train(model, 1))
    require_error(RuntimeError, ["closed"], lambda: handle.load_state_dict(handle.state_dict()))
    require_error(RuntimeError, ["closed"], lambda: handle.state_dict(consolidate=True))
    uneven = wrap(Net)
    register(uneven)
    with uneven.join(divide_by_initial_world_size=False):
        require_error(RuntimeError, ["divide_by_initial_world_size"], lambda: train(uneven, 1))


def ranks_that_differ():
    model = wrap(Net)
    register(model, "casq" if RANK == 0 else "half")
    message = require_error(RuntimeError, ["rank"], lambda: train(model, 1))
    assert "casq" in message or "half" in message, message
    require_error(ValueError, ["lanes=1 on rank 0", "lanes=2 on rank 1"], lambda: register(wrap(Net), lanes=1 + RANK))
    seeded = wrap(Net)
    register(seeded, "casq", seed=1 + RANK)
    require_error(RuntimeError, ["seed"], lambda: train(seeded, 1))


def subgroups():
    pairs = [dist.new_group([0, 1]), dist.new_group([2])]
    if RANK == 2:
        alone = DDP(Net(), process_group=pairs[1])
        register(alone, "casq")
        train(alone, 3)
        return
    torch.manual_seed(7)
    plain, ours = DDP(Net(), process_group=pairs[0]), DDP(Net(), process_group=pairs[0])
    ours.module.load_state_dict(plain.module.state_dict())
    register(ours)
    train(plain, 3)
    train(ours, 3)
    require_same(values_of(ours), values_of(plain), "a group of two of three ranks")


MISUSE = [bad_input, ranks_that_differ]


def dies(how, victim):
    """A rank leaves in the fourth step; the others must say so. run.py checks what they print."""
    model = wrap(Net)
    thinwire.register(model, "ef_signsgd", deadline_seconds=3.0)
    train(model, 3)
    if RANK == victim:
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}[how])
    try:
        train(model, 1, first=3)
    except RuntimeError as error:
        print(f"survivor {RANK}: {error}", flush=True)
        os._exit(0)
    raise AssertionError("the loss of a rank went unnoticed")


# --- Gradients on CUDA devices, which ranks share -------------------------------------------------------------------------

CUDA = "cuda:0"


def wrap_on_device(make, **options):
    return wrap(lambda: make().to(CUDA), **options)


def train_on_device(model, steps, first=0):
    optimizer = sgd(model)
    for step in range(first, first + steps):
        step_of(model, optimizer, model(batch(step).to(CUDA)).square().mean())


def device_dense_equals_plain_ddp():
    plain, ours = wrap_on_device(Net), wrap_on_device(Net)
    handle = register(ours)
    for model in (plain, ours):
        train_on_device(model, 20)
    # DDP over NCCL may sum in another order.
    require_same(values_of(ours), values_of(plain), "20 steps on a device", 0.0 if WORLD <= 2 else 1e-6)
    assert len(handle.report()["buckets"]) > 1
    require_compression_on(handle, CUDA if COMPRESS_ON == "device" and thinwire._C.cuda == "yes" else "cpu")


def device_equals_host():
    """The same gradients give the same means wherever they lie: values, types and residuals."""
    compare_with_the_cpu(CUDA)


def device_rows():
    host, device = wrap(Words), wrap_on_device(Words)
    for model, where in ((host, "cpu"), (device, CUDA)):
        register(model)
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + RANK)
            words = torch.randint(0, 300, (5, 6), generator=generator).to(where)
            model.zero_grad()
            model(words).square().sum().backward()
            if step < 3:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad)
    gap = [a.detach().cpu() for a in device.parameters()]
    require_same(gap, values_of(host), "rows on a device", 1e-5)
    assert device.module.table.weight.grad.is_sparse and str(device.module.table.weight.grad.device) == CUDA


def device_other_streams():
    """Backward on a stream of the user's own, the optimizer on it too."""
    plain, ours = wrap_on_device(Net), wrap_on_device(Net)
    register(ours)
    stream = torch.cuda.Stream()
    for model in (plain, ours):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            train_on_device(model, 10)
        torch.cuda.synchronize()
    require_same(values_of(ours), values_of(plain), "another stream")


def device_graphs_are_refused():
    model = wrap_on_device(Net)
    register(model)
    train_on_device(model, 3)
    inputs = batch(0).to(CUDA)
    graph = torch.cuda.CUDAGraph()

    def capture():
        with torch.cuda.graph(graph):
            model(inputs).square().mean().backward()

    try:
        capture()
    except RuntimeError as error:
        # The refusal spoils the capture, of which CUDA complains as well, as the cause's context.
        chain, messages = error, []
        while chain is not None:
            messages.append(str(chain))
            chain = chain.__context__
        assert any("CUDA graph" in message for message in messages), messages
        return
    raise AssertionError("a captured backward went through")


def device_amp():
    model = wrap_on_device(Net)
    optimizer = sgd(model)
    scaler = torch.cuda.amp.GradScaler(init_scale=2.0 ** 40, growth_interval=2)
    register(model, "casq", grad_scaler=scaler)
    for step in range(30):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch(step).to(CUDA)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() < 2.0 ** 40, "no step was skipped"
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


DEVICE = [device_dense_equals_plain_ddp, device_equals_host, device_rows, device_other_streams, device_amp, device_graphs_are_refused]


GROUPS = {
    "cuda": DEVICE,
    "cuda_staged": DEVICE,
    "nccl": [scenario for scenario in DEVICE if scenario not in (device_equals_host, device_rows)],  # which have models on the host, too
    "plain": PLAIN,
    "compression": COMPRESSION,
    "states": STATES,
    "misuse": MISUSE,
    "three": [dense_equals_plain_ddp, uneven_inputs, sparse_embedding, subgroups, nothing_is_lost, resumes_with_other_ranks],
    "killed": [lambda: dies("killed", 1)],
    "frozen": [lambda: dies("frozen", 1)],
    "host_killed": [lambda: dies("killed", 0)],  # whose process serves the store
}


def main():
    global RANK, WORLD, COMPRESS_ON
    if sys.argv[1] == "cuda_staged":
        COMPRESS_ON = "cpu"
    if sys.argv[1] in ("cuda", "cuda_staged", "nccl") and not torch.cuda.is_available():
        print("skipped: no CUDA device")
        sys.exit(77)
    if sys.argv[1] == "nccl":
        torch.cuda.set_device(0)
        dist.init_process_group("nccl")
    else:
        dist.init_process_group("gloo")
    RANK, WORLD = dist.get_rank(), dist.get_world_size()
    for scenario in GROUPS[sys.argv[1]]:
        name = getattr(scenario, "__name__", "scenario").replace("_", " ")
        try:
            verdict = scenario() or "ok    "
        except BaseException:
            print(f"rank {RANK}: FAILED: {name}", flush=True)
            raise
        if RANK == 0:
            print(f"{verdict} {name}", flush=True)


main()
