"""Scenarios of processes that end with handles open: the last of their group, whose end is Python's own.
And scenarios of sharded models in which one rank fails alone."""
import atexit
import os
import time

import torch
import torch.distributed as dist

import thinwire
from thinwire.handle import _close_all
import sharded
from common import DEADLINE, RANK, WORLD, Mixed, Net, batch, register, require_error, train, wrap
from sharded import Raises, adamw, closing, mesh_of, net, opened

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
except ImportError:  # of an older torch, which shards nothing
    pass

LIMIT_SECONDS = 20
KEPT = []


def threads():
    return len(os.listdir("/proc/self/task"))


def wrap_and_keep(make, spec):
    model = wrap(make)
    KEPT.append(model)
    register(model, spec)
    return model


def with_handles_open():
    """Python's end closes them, and no thread is left that could ask for Python's lock."""
    plain = wrap(Net)
    train(plain, 1)
    before = threads()
    for spec in ("dense", "casq", "top_k:ratio=0.05+zen", "power_sgd:rank=4"):
        train(wrap_and_keep(Net, spec), 2)
    train(wrap_and_keep(Mixed, "rows=zen,dense=casq"), 2)
    unfinished = wrap_and_keep(Net, "casq")
    with unfinished.no_sync():
        unfinished(batch(0)).square().mean().backward()
    hooked = wrap(Net)
    hook, state = thinwire.comm_hook("casq", deadline_seconds=DEADLINE)
    hooked.register_comm_hook(state, hook)
    train(hooked, 1)
    KEPT.append(hooked)
    assert threads() > before

    def nothing_is_left():
        end = time.monotonic() + LIMIT_SECONDS
        while threads() > before and time.monotonic() < end:
            time.sleep(0.01)
        if threads() > before:
            print(f"rank {RANK}: {threads() - before} threads are left", flush=True)
            os._exit(1)  # Python would end well

    # The last that is registered comes first.
    atexit.unregister(_close_all)
    atexit.register(nothing_is_left)
    atexit.register(_close_all)
    dist.barrier()


# --- One rank fails ----------------------------------------------------------------------------------------

FAILING = 3
NEVER_SECONDS = 36000.0  # a rank that waited for its deadline would not end within any test's limit


def shard(mesh, spec, **options):
    model = net()
    modules = [model.layers[0], model.layers[2]]
    opened.append(thinwire.fully_shard(model, mesh, spec, modules=modules, deadline_seconds=NEVER_SECONDS,
                                       **options))
    return model


def flat():
    return init_device_mesh("cpu", (WORLD,), mesh_dim_names=("shard",))


def an_optimizer_in_backward(parameter):
    """What torch calls with each gradient: the hook refuses it, which only this rank has."""
    if RANK == FAILING:
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)


def words_between_hosts():
    """The failing rank says what is wrong, the one with the same shard names its host, and the others name
    the rank of their host that knows."""
    reason = "has a hook that takes its gradient within backward"
    return {FAILING: [reason], 1: ["rank 1 has failed", reason],
            0: ["on rank 1,", "another shard"], 2: ["on rank 3,", "another shard"]}[RANK]


def hook_fails_between_hosts():
    # Before the first step, when buckets are held back until its end, and later.
    for steps in (0, 3):
        model = shard(mesh_of(), "casq:bits=4")
        sharded.train(model, adamw(model), steps)
        an_optimizer_in_backward(list(model.parameters())[2])
        for _ in range(2):  # the second time without a wait
            require_error(RuntimeError, words_between_hosts(),
                          lambda: sharded.train(model, adamw(model), 1, first=steps))
            model.reset_iter_state()
        opened.pop().close()


def backward_of(model, step):
    """Without what ranks of a host exchange afterwards."""
    model.zero_grad()
    model(batch(step)).square().mean().backward()


def take_a_gradient_away(model, handle, when_means_came):
    """In the next step, when torch has written all gradients, as an optimizer at the end of backward does."""
    def take():
        for one in handle._backward.under_way if when_means_came else ():
            one.wait()
        next(model.parameters()).grad = None

    def at_the_end(gradient):
        hook.remove()
        torch.autograd.Variable._execution_engine.queue_callback(take)

    def watch(module, inputs, output):
        output.register_hook(at_the_end)

    hook = model.layers[3].register_forward_hook(watch)  # behind the first unit that is reduced


def late_error(mesh, spec, steps, words):
    """All ranks have exchanged all that they have when one of them fails:
    the step is undone on all of them, and none takes another."""
    model = shard(mesh, spec, check_replicas_every=0)
    handle = opened[-1]
    for step in range(steps):
        backward_of(model, step)
    before = sharded.tensors_of(handle)
    if RANK == FAILING:
        take_a_gradient_away(model, handle, when_means_came=steps > 1)
    for attempt in range(2):
        require_error(RuntimeError, words(attempt, steps), lambda: backward_of(model, steps))
        model.reset_iter_state()
        if steps > 0:  # no state is there before the first
            sharded.require_same_state(before, sharded.tensors_of(handle), f"{spec}, after a late error")
    opened.pop().close()


def late_words_between_hosts(attempt, steps):
    reason = "was taken away within backward"
    with_same_shard = (["on rank 3, which says why"] if attempt == 0 and steps > 1
                       else ["rank 1 has failed", reason])
    return {FAILING: [reason], 1: with_same_shard, 0: ["on rank 1,"], 2: ["on rank 3,"]}[RANK]


def late_error_between_hosts():
    for spec in ("dense", "casq:bits=4"):
        for steps in (0, 3):
            late_error(mesh_of(), spec, steps, late_words_between_hosts)


def late_error_among_all():
    reason = "was taken away within backward"
    late_error(flat(), "casq:bits=4", 3, lambda attempt, steps: (
        [reason] if RANK == FAILING else
        ["on rank 3, which says why"] if attempt == 0 else ["rank 3 has failed", reason]))


def giving_means_fails_between_hosts():
    """Others take the step for good, and none takes another."""
    def no_room(mean):
        raise RuntimeError("no room for a mean")

    for spec in ("dense", "casq:bits=4"):
        model = shard(mesh_of(), spec, check_replicas_every=0)
        for step in range(3):
            backward_of(model, step)
        if RANK == FAILING:
            opened[-1]._units[0].deliver = no_room
            require_error(RuntimeError, ["no room for a mean"], lambda: backward_of(model, 3))
            model.reset_iter_state()
        else:
            backward_of(model, 3)
        words = {FAILING: ["no room for a mean"], 1: ["rank 1 has failed", "no room for a mean"],
                 0: ["on rank 1,"], 2: ["on rank 3,"]}[RANK]
        require_error(RuntimeError, words, lambda: backward_of(model, 4))
        opened.pop().close()


def words_among_all(reason):
    return [reason] if RANK == FAILING else [f"rank {FAILING} has failed", "an error of its own", reason]


def hook_fails_among_all():
    for place in (0, 2, 4):  # of the first unit, the second and the last
        model = shard(flat(), "casq:bits=4")
        sharded.train(model, adamw(model), 3)
        an_optimizer_in_backward(list(model.parameters())[place])
        words = words_among_all("has a hook that takes its gradient within backward")
        require_error(RuntimeError, words, lambda: sharded.train(model, adamw(model), 1, first=3))
        opened.pop().close()


def bad_type_among_all():
    kind = torch.float16 if RANK == FAILING else torch.float32
    model = shard(flat(), "ef_signsgd", mp_policy=MixedPrecisionPolicy(reduce_dtype=kind))
    require_error(RuntimeError, words_among_all("float16"),
                  lambda: model(batch(0)).square().mean().backward())


def raises_in_backward(mesh, words):
    """One rank's backward raises, and its process ends. run.py expects that of this rank alone."""
    model = shard(mesh, "casq:bits=4")
    model.layers[1].register_forward_hook(
        lambda module, inputs, output: Raises.apply(output, model.fails)
    )
    model.fails = False
    optimizer = adamw(model)
    sharded.train(model, optimizer, 3)
    model.fails = RANK == FAILING
    if RANK == FAILING:
        sharded.train(model, optimizer, 1, first=3)
    require_error(RuntimeError, words, lambda: sharded.train(model, optimizer, 1, first=3))
    opened.pop().close()
    # Rank 0's process serves the store, in which others look for what has failed.
    store = dist.distributed_c10d._get_default_store()
    others = [rank for rank in range(WORLD) if rank != FAILING]
    store.set(f"ended/{RANK}", "")
    store.wait([f"ended/{rank}" for rank in others])
    # It leaves last, or another one's wait could end with a broken connection.
    store.set(f"left/{RANK}", "")
    if RANK == 0:
        store.wait([f"left/{rank}" for rank in others])
    os._exit(0)


def raises_between_hosts():
    # A rank of the same host waits in torch's reduce-scatter, whose errors name nobody.
    # It catches that and closes its handle, which the rank with its shard finds.
    words = {0: ["rank 1 has not come", "an error ended its step"],
             1: ["rank 1 has failed", "ArithmeticError: given up"]}
    raises_in_backward(mesh_of(), words.get(RANK, []))


def raises_among_all():
    raises_in_backward(flat(), [f"rank {FAILING} has failed", "ArithmeticError: given up"])


SHARDED_FAILURES = [closing(scenario) for scenario in (
    hook_fails_between_hosts, late_error_between_hosts, giving_means_fails_between_hosts,
)]
SCATTERED_FAILURES = [closing(scenario) for scenario in (
    hook_fails_among_all, late_error_among_all, bad_type_among_all,
)]
SHARDED_RAISES = [raises_between_hosts]
SCATTERED_RAISES = [raises_among_all]
EXITS = [with_handles_open]
