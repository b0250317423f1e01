"""Scenarios of bad input, ranks that differ, and sub-groups."""
import copy
import datetime
import gc
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types
import warnings
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire import _C, agreement, at_end, group, parting, shards
from thinwire.handle import _live
from thinwire.hook import hook
from adam import Scale
from common import (DEADLINE, RANK, WORLD, Net, batch, require_agreement, register, require_error,
                    require_same, sgd, train, values_of, wrap)


def bad_input():
    require_error(TypeError, ["DistributedDataParallel", "Net"], lambda: register(Net()))
    require_error(TypeError, ["spec=5", "casq:bits=2"], lambda: register(wrap(Net), 5))
    require_error(ValueError, ["nosuch", "marsit"], lambda: register(wrap(Net), "nosuch"))
    require_error(ValueError, ["bits=7"], lambda: register(wrap(Net), "casq:bits=7"))
    require_error(ValueError, ["lanes=0"], lambda: register(wrap(Net), lanes=0))
    require_error(ValueError, ["seed=-1", "from 0"], lambda: register(wrap(Net), seed=-1))
    require_error(ValueError, ["optimizer='adam'"], lambda: register(wrap(Net), optimizer="adam"))
    require_error(ValueError, ["compress_on='gpu'"], lambda: register(wrap(Net), compress_on="gpu"))
    require_error(ValueError, ["checked_sums=1", "True or"], lambda: register(wrap(Net), checked_sums=1))
    require_error(ValueError, ["threads='2'"], lambda: register(wrap(Net), threads="2"))
    require_error(ValueError, ["deadline_seconds=0"],
                  lambda: thinwire.register(wrap(Net), "dense", deadline_seconds=0))
    require_error(ValueError, ["deadline_seconds='120'", "seconds"],
                  lambda: thinwire.register(wrap(Net), "dense", deadline_seconds="120"))
    limit = datetime.timedelta(seconds=5)
    require_error(ValueError, ["deadline_seconds=datetime.timedelta(seconds=5)", "needed, 5"],
                  lambda: thinwire.register(wrap(Net), "dense", deadline_seconds=limit))
    require_error(ValueError, ["grad_scaler=True", "get_scale"],
                  lambda: register(wrap(Net), grad_scaler=True))
    require_error(ValueError, ["rows="], lambda: register(wrap(Net), "rows=zen,dense=half", rows="zen"))
    model = wrap(Net)
    handle = register(model)
    require_error(RuntimeError, ["a communication hook already", "handle.set"], lambda: register(model))
    train(model, 1)
    require_error(ValueError, ["empty list of states"], lambda: handle.load_state_dict([]))
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
    require_error(ValueError, ["checked_sums=False on rank 0", "checked_sums=True on rank 1"],
                  lambda: register(wrap(Net), checked_sums=RANK == 1))
    require_error(ValueError, ["grad_scaler=False on rank 0", "grad_scaler=True on rank 1"],
                  lambda: register(wrap(Net), grad_scaler=Scale() if RANK == 1 else None))
    require_error(ValueError, ["lanes=1 on rank 0", "lanes=2 on rank 1"],
                  lambda: register(wrap(Net), lanes=1 + RANK))
    seeded = wrap(Net)
    register(seeded, "casq", seed=1 + RANK)
    require_error(RuntimeError, ["seed"], lambda: train(seeded, 1))


    require_error(ValueError, ["deadline_seconds=30.0 on rank 0", "deadline_seconds=31.0 on rank 1"],
                  lambda: thinwire.register(wrap(Net), "dense", deadline_seconds=30.0 + RANK))
    require_error(ValueError, ["step_limit_seconds=100 on rank 0", "step_limit_seconds=101 on rank 1"],
                  lambda: register(wrap(Net), step_limit_seconds=100 + RANK))


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


def what_register_leaves_behind():
    """Nothing of a spec that is refused, and no reference to handles that are gone."""
    model = wrap(Net)
    before = sorted(_C.open_tcp_sockets())
    dist.barrier()
    try:
        register(model, "casq:bits=7")
    except ValueError as error:
        kept = error  # as an interpreter keeps the last one, and with it what its frames hold
    dist.barrier()
    # What others have closed meanwhile may be missing.
    # The store's host learns in a thread of its own that another rank has closed its connection.
    end = time.monotonic() + DEADLINE
    while set(_C.open_tcp_sockets()) - set(before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(_C.open_tcp_sockets()) - set(before), kept
    del kept
    live = len(_live)
    handles = [register(wrap(Net)) for _ in range(3)]
    assert len(_live) == live + 3
    handles[0].close()
    assert len(_live) == live + 2
    del handles
    gc.collect()
    assert len(_live) == live, _live


def a_group_without_the_cpu():
    class Sums:
        options = None

    class Group:
        def _get_backend(self, device):
            if device.type == "cpu":
                raise RuntimeError("No backend type associated with device type cpu")
            return Sums()

    assert group.timeout_of(Group()) == min(dist.distributed_c10d.default_pg_timeout.total_seconds(),
                                            _C.longest_deadline_seconds)


def ranks_that_ended_do_not_wait():
    """Rank 0, which an error ends, stays for those that wait in register, not for those that ended too."""
    keys = agreement.Keys(dist.HashStore(), "next")
    assert not agreement._some_wait(keys, 3)
    keys.set("1", json.dumps({"ended": "rank 1 has ended before it called register"}))
    assert not agreement._some_wait(keys, 3)
    keys.set("2", json.dumps({"job": "", "model": "2 parameters"}))
    assert agreement._some_wait(keys, 3)


def a_store_found_silent_is_not_asked_at_the_end():
    """And where it is asked, once: before the others hear of it, where the error is this process's own."""
    error = RuntimeError("an error before register")
    # Whom the engine blames, the ranks of its group, and how often the store is asked. Rank 0 of a group of
    # ranks 1 and 2 is rank 1 of the job. Where rank 0 of the job hears the same, it alone tells.
    for culprits, ranks, count in (([], [0, 1, 2], 1), ([0], [1, 2], 1), ([0], [0, 1, 2], 0),
                                   ([1], [0, 1, 2], 1 - RANK)):
        engine = types.SimpleNamespace(verdict=lambda: (culprits, "it said nothing", False, False),
                                       tell_end=lambda: None, end_with=lambda verdict: None,
                                       fail=lambda text: None)
        told = []
        with mock.patch.object(agreement, "tell_of_error", told.append), \
                mock.patch.object(parting, "error_of_process", lambda: error), \
                mock.patch.object(parting, "silent", set()), mock.patch.object(at_end, "_told", []):
            parting.tell(error, [parting.Part(engine, ranks)])
            assert told == [error] * (1 if RANK > 0 and not culprits else 0), (culprits, told)
            for _ in range(2):
                at_end.tell_of_error()
            assert told == [error] * count, (culprits, told)


def a_silent_store_of_register_is_not_asked_at_the_end():
    with mock.patch.object(parting, "silent", set()):
        def fails():
            with agreement.in_words("reach"):
                raise RuntimeError("no answer within 10 s")

        require_error(RuntimeError, ["rank 0, whose process serves it, is gone or silent"], fails)
        assert parting.silent == {0}


def a_step_limit_that_ends_on_one_rank():
    """The others hear why."""
    model = wrap(Net)
    thinwire.register(model, "casq", deadline_seconds=30.0, step_limit_seconds=2)
    train(model, 2)
    if RANK == 0:
        require_error(RuntimeError, ["this step has waited for more than 2 s in all, lately for rank 1"],
                      lambda: train(model, 1, first=2))
        dist.barrier()
        return
    dist.barrier()  # rank 0 has given up
    require_error(RuntimeError, ["on rank 0 this step has waited for more than 2 s in all"],
                  lambda: train(model, 1, first=2))


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


def ranks_of_another_build():
    """What no build like this one has written in the store is refused with the rank that wrote it."""
    words = ["rank 1 runs another build of Thinwire than rank 0"]
    for written in ("[1", "[1]", '{"job": ""}'):
        if RANK == 1:
            agreement.json = types.SimpleNamespace(loads=json.loads, dumps=lambda said: written)
        try:
            require_error(ValueError, words, lambda: register(wrap(Net)))
        finally:
            agreement.json = json
        if RANK == 0:
            agreement.json = types.SimpleNamespace(
                loads=json.loads, dumps=lambda said: written if "token" in said else json.dumps(said))
        try:
            require_error(RuntimeError, ["ranks have concluded", repr(written), "the same version"],
                          lambda: register(wrap(Net)))
        finally:
            agreement.json = json


def numbers_in_a_subgroup():
    """Messages that count ranks within the model's group say which of the job's these are."""
    pair = dist.new_group([1, 2])
    if RANK == 0:
        return
    words = ["rank 1", "(ranks 0 to 1 of this message are ranks 1, 2 of the job)"]
    model = DDP(Net(), process_group=pair)
    handle = register(model, "casq", check_replicas_every=1)
    if RANK == 2:
        next(model.parameters()).data += 1
    require_error(RuntimeError, ["replicas differ before step 0", *words], lambda: train(model, 1))
    handle.close()
    model = DDP(Net(), process_group=pair)
    handle = register(model, "casq" if RANK == 1 else "ef_signsgd")
    require_error(RuntimeError, ["configured differently", *words], lambda: train(model, 1))
    handle.close()


def a_rank_that_does_not_register():
    """The last one here: ranks have then registered different numbers of models."""
    model = wrap(Net)
    if RANK == 0:
        missing = ["within 1 s, missing: 1.", "has to call register"]
        require_error(RuntimeError, missing, lambda: thinwire.register(model, "dense", deadline_seconds=1.0))
    dist.barrier()


def models_in_another_order():
    """Said at once: at the deadline the error would be another one."""
    small, large = wrap(Net), wrap(lambda: Net(50))
    one, other = (small, large) if RANK == 0 else (large, small)
    words = ["rank 1 registers a model of 6 parameters, the first 'layers.0.weight' of 1000",
             "rank 0 registers one of 6 parameters, the first", "960"]
    words += (["On this rank, 1: parameter 0 is 'layers.0.weight' of 1000 elements (torch.float32) here and"]
              if RANK == 1 else [])
    require_error(ValueError, words, lambda: register(one))
    renamed = wrap(lambda: nn.ModuleDict({"a" if RANK == 0 else "b": nn.Linear(20, 5)}))
    require_error(ValueError, ["'a.weight'", "'b.weight'"], lambda: register(renamed))
    for model in (small, large):
        register(model)
        train(model, 2)
        require_agreement(model, "after a refusal")


def a_restart_that_finds_the_store_of_before():
    """What ranks see that a launcher has started again, with the store of the start before."""
    register(wrap(Net))
    counted = dict(agreement._opened)
    agreement._opened.clear()
    words = [f"rank {RANK} finds in the rendezvous store what it wrote before",
             "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]
    require_error(RuntimeError, words, lambda: register(wrap(Net)))
    agreement._opened.update(counted)
    again = wrap(Net)
    register(again)
    train(again, 1)


def copies_are_plain_ddp():
    model = wrap(Net)
    handle = register(model, "marsit")
    if not hasattr(model, "_comm_hooks"):
        model._comm_hooks = [(hook, handle)]  # where newer versions of torch keep them
    train(model, 2)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    plain = DDP(Net())
    plain.module.load_state_dict(model.module.state_dict())
    train(plain, 3, first=2)
    load = {"weights_only": False} if "weights_only" in inspect.signature(torch.load).parameters else {}
    for copied in (copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model).module,
                   torch.load(file, **load)):
        train(copied, 3, first=2)
        require_same(values_of(copied), values_of(plain), "a copy", 1e-6)
    require_error(RuntimeError, ["a copy of a Thinwire handle", "register"],
                  lambda: copy.deepcopy(handle).state_dict())
    train(model, 1, first=2)
    assert handle.step == 3


def replicas_that_differ():
    for every, found_at in ((1, 4), (3, 6), (0, None)):
        model = wrap(Net)
        handle = register(model, "ef_signsgd", check_replicas_every=every)
        optimizer = train(model, 4)
        if RANK == 1:
            with torch.no_grad():
                bits = model.module.layers[2].weight.view(-1)[17:18].view(torch.int32)
                bits ^= 1
        if found_at is None:
            train(model, 4, first=4, optimizer=optimizer)
            continue
        train(model, found_at - 4, first=4, optimizer=optimizer)
        names = ("rank 0, rank 1 hold different ones" if WORLD == 2
                 else "rank 1 holds other parameters than the rest of 3 ranks")
        words = [f"replicas differ before step {found_at}", names]
        require_error(RuntimeError, words, lambda: train(model, 1, first=found_at, optimizer=optimizer))
    require_error(ValueError, ["check_replicas_every=1 on rank 0, check_replicas_every=2 on rank 1"],
                  lambda: register(wrap(Net), check_replicas_every=1 + (RANK == 1)))
    require_error(ValueError, ["check_replicas_every=-1"],
                  lambda: register(wrap(Net), check_replicas_every=-1))


def a_load_of_different_models_is_found():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 2)
    state = handle.state_dict()
    torch.manual_seed(100 + RANK)
    model.module.load_state_dict(Net().state_dict())
    handle.load_state_dict(state)
    for _ in range(2):  # whoever catches it hears it again
        require_error(RuntimeError, ["replicas differ before step 2"], lambda: train(model, 1, first=2))
    assert handle.step == 2
    torch.manual_seed(100)
    model.module.load_state_dict(Net().state_dict())
    train(model, 2, first=2)


def a_group_waits_longer_than_it_was_opened():
    """Gloo's limit while a group is opened must not be the one on its sums."""
    store = dist.PrefixStore("lengthened", dist.distributed_c10d._get_default_store())
    opened = dist.ProcessGroupGloo(store, RANK, WORLD, timeout=datetime.timedelta(seconds=2))
    group._lengthen(opened)
    if RANK == 0:
        time.sleep(4)  # longer than the limit: what is tested
    ones = torch.ones(3)
    opened.allreduce([ones]).wait(datetime.timedelta(seconds=60))
    assert ones.tolist() == 3 * [WORLD]


def fully_shard_under_an_older_torch():
    if shards.torch_has("set_all_reduce_hook"):
        return "skipped"
    require_error(ImportError, [torch.__version__, "set_all_reduce_hook", "install a current torch"],
                  lambda: thinwire.fully_shard(Net(), None, "casq"))


def an_extension_for_another_torch():
    """Whichever module is imported first says so. Of frameworks there are only names that adapters need."""
    if RANK != 0:
        return
    lines = ["import thinwire; thinwire.register", "from thinwire import comm_hook",
             "from thinwire.ddp import register", "import thinwire.fsdp", "import thinwire.scattered",
             "import thinwire.state", "import thinwire.accelerate",
             "from thinwire.lightning import ThinwireCallback",
             "from thinwire.transformers import ThinwireCallback"]
    stubs = {"accelerate.py": "Accelerator = object", "lightning/__init__.py": "",
             "lightning/pytorch.py": "Callback = object",
             "transformers/__init__.py": "Trainer = TrainerCallback = object",
             "transformers/trainer_utils.py": "get_last_checkpoint = None",
             "thinwire/_built.py": "VERSION, TORCH, CXX11_ABI = '5', '0.4.1', True",
             "torch-9.7.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 9.7.0\n",
             "tried.py": "".join(f"try:\n    {line}\nexcept ImportError as error:\n    print(error)\n"
                                 for line in lines)}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(os.path.dirname(thinwire.__file__), os.path.join(folder, "thinwire"),
                        ignore=shutil.ignore_patterns("*.so"))
        for name, text in stubs.items():
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        done = subprocess.run([sys.executable, os.path.join(folder, "tried.py")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    said = done.stdout.splitlines()
    # The import warns, by the version that pip has written down.
    warning = ("RuntimeWarning: This Thinwire was built for torch 0.4, and torch 9.7.0 is installed. "
               "A wheel for it is called thinwire-5+torch9.7.")
    assert done.stderr.count(warning) == 1, done.stderr
    here = ".".join(torch.__version__.split(".")[:2])
    for line, answer in zip(lines, [*said, *len(lines) * [""]]):
        assert answer.startswith("This Thinwire was built for torch 0.4, and torch "), (line, answer)
        assert f"called thinwire-5+torch{here}." in answer, (line, answer)


def equal_models_in_another_order():
    """Of the same shapes: plain DDP keeps them apart by the order in which backward comes to them."""
    one, other = wrap(Net), wrap(Net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    mine, theirs = (one, other) if RANK == 0 else (other, one)
    for model in (mine, theirs):
        require_error(ValueError, ["other values than on rank 0", "same order", "check_replicas_every=0"],
                      lambda model=model: register(model))
    handles = [register(one, "casq"), register(other, "casq")]
    train(one, 2)
    train(other, 2)
    assert [handle.step for handle in handles] == [2, 2]
    # Two that differ in nothing: backward shows it.
    for together in (False, True):
        models = [wrap(Net), wrap(Net)]
        for model in models if RANK == 0 else models[::-1]:
            register(model, "casq", check_replicas_every=0 if together else 1000)
        words = ["registered the model of this backward as its number", "in the same order on all ranks"]
        if together:
            loss = sum(model(batch(0)).square().mean() for model in models)
            require_error(RuntimeError, words, loss.backward)
        for model in models if not together else []:
            require_error(RuntimeError, words, lambda: model(batch(0)).square().mean().backward())


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


def a_system_that_one_rank_sets():
    model = wrap(Net)
    handle = register(model, "casq")
    train(model, 2)
    if RANK == 0:
        handle.set("half")
    require_error(RuntimeError, ["do not synchronize the same",
                                 "rank 0 compares configurations, as at its start, after set()",
                                 "all ranks do so before the same step"],
                  lambda: train(model, 1, first=2))
    # Ranks that hear of it before they have compared by themselves read the same, and of no silence.
    _, reason, _, failed = handle._engine.verdict()
    assert failed and "do not synchronize the same" in reason, reason


MISUSE = [bad_input, equal_models_in_another_order, states_within_backward,
          a_writer_that_fails_ends_no_step, one_rank_cannot_begin_a_step,
          states_of_another_step_or_model, a_system_that_one_rank_sets, an_extension_for_another_torch,
          models_in_another_order,
          a_restart_that_finds_the_store_of_before, copies_are_plain_ddp, replicas_that_differ,
          a_load_of_different_models_is_found, a_group_waits_longer_than_it_was_opened,
          a_group_without_the_cpu, ranks_that_ended_do_not_wait,
          a_store_found_silent_is_not_asked_at_the_end,
          a_silent_store_of_register_is_not_asked_at_the_end, what_register_leaves_behind,
          a_state_that_one_rank_gathers_alone, a_step_limit_that_ends_on_one_rank, ranks_that_differ,
          ranks_of_another_build,
          a_rank_that_does_not_register, fully_shard_under_an_older_torch]
