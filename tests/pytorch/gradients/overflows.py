"""Loss scales, and steps that do not count: values that overflow, a backward that raises."""
import torch

from common import (
    RANK, WORLD, Given, Net, Scaler, batch, given, register, require_agreement,
    require_agreement_of_gradients, require_error, require_same, residuals_of, sgd, values_of, wrap,
)


def states_of_another_scale():
    """Saved under one loss scale and loaded under another, or none: what is owed is the same gradient."""
    sizes = (700, 33)
    spec = "top_k:ratio=0.05+zen"
    for saved_at, loaded_at in ((1024.0, None), (None, 1024.0), (1024.0, 2.0), (None, None)):
        states = []
        model = wrap(lambda: Given(sizes))
        scaler = None if saved_at is None else Scaler()
        if scaler is not None:
            scaler.scale = saved_at
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model(given(step, sizes, saved_at or 1.0)).backward()
        state = handle.state_dict()
        other = wrap(lambda: Given(sizes))
        scaler = None if loaded_at is None else Scaler()
        if scaler is not None:
            scaler.scale = loaded_at
        resumed = register(other, spec, grad_scaler=scaler)
        for step in range(2):  # DDP's grouping of later steps
            other(given(50 + step, sizes)).backward()
        resumed.load_state_dict(state)
        for one, scale in ((model, saved_at or 1.0), (other, loaded_at or 1.0)):
            one.zero_grad()
            one(given(3, sizes, scale)).backward()
            states.append([weight.grad / scale for weight in one.module.weights])
        for straight, after in zip(*states):  # powers of two: to the bit
            assert torch.equal(straight, after), (saved_at, loaded_at, straight, after)


def loss_scaling():
    sizes = (700, 33, 1200, 5)
    for spec in ("top_k:ratio=0.05+zen", "casq", "marsit:full_every=3", "ef_signsgd", "half",
                 "mc+top_k:ratio=0.05+zen"):
        scaler = Scaler()
        model = wrap(lambda: Given(sizes))
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model(given(step, sizes, scaler.scale)).backward()
        before = residuals_of(handle)
        # One parameter overflows on one rank; the step is skipped everywhere, also for buckets that are fine.
        spoilt = given(3, sizes, scaler.scale)
        if RANK == WORLD - 1:
            spoilt[2][0] = float("inf")
        model.zero_grad()
        model(spoilt).backward()
        assert not torch.isfinite(model.module.weights[2].grad).all(), (
            f"{spec}: a rank did not see the overflow"
        )
        assert not torch.isfinite(model.module.weights[0].grad).any(), (
            f"{spec}: an optimizer of this parameter alone would apply what is delivered again"
        )
        after = residuals_of(handle)
        for name, value in before.items():
            assert torch.equal(value, after[name]), f"{spec}: a skipped step changed a residual"
        # The scale is halved; residuals follow.
        scaler.scale /= 2
        state = handle.state_dict()
        assert state["loss_scale"] == 2 * scaler.scale
        for name, value in state["values"].items():
            if name.split("/")[0] in ("residual", "velocity", "casq_centres", "casq_shard_centres",
                                      "marsit_eta"):
                state["values"][name] = value / 2
        other = wrap(lambda: Given(sizes))
        reference = register(other, spec)
        for step in range(2):  # DDP's grouping of later steps
            other(given(50 + step, sizes)).backward()
        # Without a GradScaler a state's scale becomes 1; here gradients come scaled, as the state is.
        reference.load_state_dict({**state, "loss_scale": None})
        gradients = given(4, sizes, scaler.scale)
        for one in (model, other):
            one.zero_grad()
            one(gradients).backward()
        require_same([w.grad for w in model.module.weights], [w.grad for w in other.module.weights],
                     f"{spec} after a new scale", 1e-5)


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
    """In DDP's second step some buckets are what they were and others are not:
    nothing of it may stay behind."""
    # At first a bucket for each type, then one for each parameter.
    sizes = (1500, 1400, 3000)
    model = wrap(lambda: Given(sizes, (torch.float32, torch.float32, torch.float16)))
    handle = register(model, "top_k:ratio=0.05+zen", grad_scaler=Scaler())
    model(given(0, sizes)).backward()
    before = residuals_of(handle)
    buckets = [bucket["parameters"] for bucket in handle.report()["buckets"]]
    spoilt = given(1, sizes)
    if RANK == 0:
        spoilt[1][0] = float("inf")
    model.zero_grad()
    model(spoilt).backward()
    rebuilt = [bucket["parameters"] for bucket in handle.report()["buckets"]]
    assert rebuilt[0] == buckets[0] and rebuilt != buckets, (buckets, rebuilt)
    after = residuals_of(handle)
    assert len(before) == len(sizes) and all(value.any() for value in before.values())
    for name, value in before.items():
        assert torch.equal(value, after[name]), f"a skipped step changed the residual of {name}"


def a_backward_that_raises():
    """After an overflow in one bucket backward ends before its last one:
    what other buckets have delivered is undone."""
    sizes = (1500, 1400, 1300, 1200)
    for spec in ("top_k:ratio=0.05+zen", "casq", "ef_signsgd", "half:feedback=on"):
        scaler = Scaler()
        model = wrap(lambda: Given(sizes))
        handle = register(model, spec, grad_scaler=scaler)
        for step in range(3):
            model.zero_grad()
            model(given(step, sizes)).backward()
        buckets = [[int(name.split(".")[-1]) for name in bucket["parameters"]]
                   for bucket in handle.report()["buckets"]]
        assert len(buckets) > 2, buckets
        before = residuals_of(handle)
        spoilt = given(3, sizes)
        if RANK == WORLD - 1:
            spoilt[buckets[0][0]][0] = float("inf")

        def fail(_):
            raise ValueError("in the middle of backward")

        model.module.weights[buckets[-1][0]].register_hook(fail)
        model.zero_grad()
        require_error(ValueError, ["in the middle"], lambda: model(spoilt).backward())
        assert model.module.weights[buckets[1][0]].grad is not None, (
            f"{spec}: backward did not come to the second bucket"
        )
        after = residuals_of(handle)
        for name, value in before.items():
            assert torch.equal(value, after[name]), (f"{spec}: a step that was given up changed the "
                                                     f"residual of {name}")
        assert handle.step == 3 and handle.explain().startswith("the last step, "), handle.explain()


def means_beyond_float16():
    """Every rank's gradient is finite in float16, what is delivered is not:
    a step to leave out, like one with an infinite gradient."""
    model = wrap(lambda: Given((64,), (torch.float16,)))
    handle = register(model, "top_k:ratio=0.02+zen", grad_scaler=Scaler())
    gradient = (6e4 * (1 - 1e-3 * torch.arange(64))).half()
    model([gradient]).backward()
    assert torch.isfinite(model.module.weights[0].grad).all() and handle.report()["last_step"]["finite"]
    before = residuals_of(handle)
    model.zero_grad()
    model([gradient]).backward()  # of what was held back
    assert not torch.isfinite(model.module.weights[0].grad).all()
    assert not handle.report()["last_step"]["finite"]
    for name, value in before.items():
        assert torch.equal(value, residuals_of(handle)[name])


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


OVERFLOWS = [loss_scaling, states_of_another_scale, overflow_in_the_first_step,
             overflow_where_buckets_are_rebuilt, a_backward_that_raises, means_beyond_float16, skipped_steps]
