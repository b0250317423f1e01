"""Scenarios of torch.distributed.checkpoint, which saves and loads handles themselves,
and of the files that adapters write."""
import contextlib
import os
import pickle
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire import adapter
from common import (DEADLINE, RANK, WORLD, Mixed, Net, register, require_agreement, require_error,
                    require_same, residuals_of, sgd, total, train, values_of, wrap)

LOSSY = ["casq", "top_k:ratio=0.05+zen", "power_sgd:rank=4", "rows=zen,dense=casq"]

try:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.stateful import Stateful
except ImportError:
    Stateful = None


@contextlib.contextmanager
def shared_folder():
    where = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(where)
    yield where[0]
    dist.barrier()
    if RANK == 0:
        shutil.rmtree(where[0])


def model_of(spec):
    return wrap(Mixed if "," in spec else Net)


def optimizer_of(model, spec):
    # Momentum of sparse gradients torch has not.
    return torch.optim.SGD(model.parameters(), lr=0.1) if "," in spec else sgd(model)


def parts_of(model, optimizer, handle):
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "thinwire": handle}


def load(folder, model, optimizer, handle, **more):
    parts = parts_of(model, optimizer, handle)
    dcp.load(parts, checkpoint_id=folder, **more)
    set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])


def dcp_resumes_bit_for_bit():
    if Stateful is None:
        return "skipped"
    for spec in LOSSY:
        model = model_of(spec)
        handle, optimizer = register(model, spec), optimizer_of(model, spec)
        assert isinstance(handle, Stateful)
        train(model, 4, optimizer=optimizer)
        with shared_folder() as folder:
            dcp.save(parts_of(model, optimizer, handle), checkpoint_id=folder)
            train(model, 3, first=4, optimizer=optimizer)
            again = model_of(spec)
            resumed, optimizer = register(again, spec), optimizer_of(again, spec)
            load(folder, again, optimizer, resumed)
        assert resumed.step == 4
        train(again, 3, first=4, optimizer=optimizer)
        require_same(values_of(again), values_of(model), f"{spec}, by torch.distributed.checkpoint")
        # Whoever asks by himself still gets a rank's own.
        assert handle.state_dict()["rank"] == RANK


def dcp_within_an_object_of_ones_own():
    """As in torch's own recipe: one Stateful, whose methods call the handle's."""
    if Stateful is None:
        return "skipped"

    class App(Stateful):
        def __init__(self, model, optimizer, handle):
            self.model, self.optimizer, self.handle = model, optimizer, handle

        @torch.no_grad()
        def state_dict(self):
            weights, moments = get_state_dict(self.model, self.optimizer)
            return {"model": weights, "optimizer": moments, "thinwire": self.of_the_handle()}

        def of_the_handle(self):
            return self.handle.state_dict()

        def load_state_dict(self, state):
            set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                           optim_state_dict=state["optimizer"])
            self.handle.load_state_dict(state["thinwire"])

    for spec in LOSSY[:2]:
        model, again = model_of(spec), model_of(spec)
        handle, optimizer = register(model, spec), optimizer_of(model, spec)
        train(model, 4, optimizer=optimizer)
        app = App(model, optimizer, handle)
        assert app.state_dict()["thinwire"]["rank"] == RANK, "no checkpoint asks"
        with shared_folder() as folder:
            dcp.save({"app": app}, checkpoint_id=folder)
            train(model, 3, first=4, optimizer=optimizer)
            resumed, optimizer = register(again, spec), optimizer_of(again, spec)
            dcp.load({"app": App(again, optimizer, resumed)}, checkpoint_id=folder)
        assert resumed.step == 4
        train(again, 3, first=4, optimizer=optimizer)
        require_same(values_of(again), values_of(model), f"{spec}, within an object of one's own")


def dcp_resumes_with_other_ranks():
    """From all ranks to one and back: what was not delivered stays."""
    if Stateful is None:
        return "skipped"
    alone = dist.new_group([0])
    for spec in LOSSY[:3]:
        model = model_of(spec)
        handle = register(model, spec)
        train(model, 4)
        sums = {name: total(value) for name, value in sorted(residuals_of(handle).items())}
        assert sums
        with shared_folder() as folder, shared_folder() as again:
            dcp.save({"thinwire": handle}, checkpoint_id=folder)
            if RANK == 0:
                torch.manual_seed(7)
                one = DDP(Net(), process_group=alone)
                resumed = register(one, spec)
                dcp.load({"thinwire": resumed}, checkpoint_id=folder, process_group=alone)
                assert resumed.step == 4
                for name, value in residuals_of(resumed).items():
                    require_same([value], [sums[name]], f"{spec}: {name} on one rank", 1e-6)
                dcp.save({"thinwire": resumed}, checkpoint_id=again, process_group=alone)
            dist.barrier()
            back = model_of(spec)
            resumed = register(back, spec)
            dcp.load({"thinwire": resumed}, checkpoint_id=again)
            for name, value in sorted(residuals_of(resumed).items()):
                require_same([total(value)], [sums[name]], f"{spec}: {name} on all ranks again", 1e-6)
        train(back, 2, first=4)
        require_agreement(back, spec)


def dcp_takes_hooks_and_runs():
    """What comm_hook and the adapters give."""
    if Stateful is None:
        return "skipped"
    for spec in LOSSY[:2]:
        model = wrap(Net)
        hook, state = thinwire.comm_hook(spec, deadline_seconds=DEADLINE)
        model.register_comm_hook(state, hook)
        with shared_folder() as folder, shared_folder() as again, shared_folder() as other:
            # Of another rank, or of one that failed: all hear of it.
            require_error(BaseException, ["before the first backward"],
                          lambda: dcp.save({"thinwire": state}, checkpoint_id=folder))
            train(model, 4)
            dcp.save({"thinwire": state}, checkpoint_id=folder)
            expected = state.state_dict()["values"]
            hooked = wrap(Net)
            hook, loaded = thinwire.comm_hook(spec, deadline_seconds=DEADLINE)
            hooked.register_comm_hook(loaded, hook)
            dcp.load({"thinwire": loaded}, checkpoint_id=folder)  # for the first backward
            dcp.save({"thinwire": loaded}, checkpoint_id=again)
            loaded.load_state_dict({})
            dcp.load({"thinwire": loaded}, checkpoint_id=again)
            hooked.module.load_state_dict(model.module.state_dict())
            train(hooked, 1, first=4)
            assert loaded.handle.step == 5
            run = adapter.Synchronization(wrap(Net), spec, remedy="", deadline_seconds=DEADLINE)
            dcp.load({"run": run, "thinwire": run}, checkpoint_id=folder,
                     planner=dcp.default_planner.DefaultLoadPlanner(allow_partial_load=True))
            dcp.save({"thinwire": run}, checkpoint_id=other)
            handle = register(wrap(Net), spec)
            dcp.load({"thinwire": handle}, checkpoint_id=other)
        for one in (run.handle, handle):
            for name, value in one.state_dict()["values"].items():
                assert (torch.equal(value, expected[name]) if isinstance(value, torch.Tensor)
                        else value == expected[name]), name


def dcp_refuses_what_is_no_state():
    if Stateful is None:
        return "skipped"
    with shared_folder() as folder:
        model = wrap(Net)
        handle = register(model, "casq")
        train(model, 2)
        before = handle.state_dict()["values"]
        dcp.save({"model": model.module}, checkpoint_id=folder)
        require_error(BaseException, ["Missing key", "thinwire"],
                      lambda: dcp.load({"thinwire": handle}, checkpoint_id=folder))
    for damage, words in ((lambda packed: packed[: len(packed) // 2], ["damaged"]),
                          (lambda packed: b"", ["damaged"]), (lambda packed: 5, ["damaged"])):
        packed = handle._for_dcp("save")
        (name, value), = packed.items()
        require_error(ValueError, words, lambda: handle.load_state_dict({name: damage(value)}))
    require_error(ValueError, ["empty list"], lambda: handle.load_state_dict(handle._for_dcp("load")))
    after = handle.state_dict()["values"]
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
        assert same, name
    assert WORLD == 2


def damaged_files_of_an_adapter():
    """One rank's file is damaged, and all ranks refuse the checkpoint at once."""
    model = wrap(Net)
    run = adapter.Synchronization(model, "casq", remedy="", deadline_seconds=DEADLINE)
    train(model, 2)
    with shared_folder() as folder:
        run.save(folder)
        dist.barrier()
        name = f"thinwire.rank_{WORLD - 1}_of_{WORLD}.pt"
        with open(os.path.join(folder, name), "rb") as file:
            whole = file.read()
        others = pickle.dumps({"state": Net})  # a class, which is not read
        for damage in (b"", bytes(4096), b"no state of Thinwire", whole[:100], others, pickle.dumps(5),
                       whole):
            dist.barrier()
            if RANK == 0:
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(damage)
            dist.barrier()
            if damage == whole:
                run.load(folder)
            else:
                require_error(ValueError, [f"rank {WORLD - 1} cannot load its state of Thinwire: "],
                              lambda: run.load(folder))
        assert not [one for one in os.listdir(folder) if one.endswith(".new")], os.listdir(folder)
    assert run.handle.step == 2
    train(model, 1, first=2)


DCP = [damaged_files_of_an_adapter, dcp_resumes_bit_for_bit, dcp_within_an_object_of_ones_own,
       dcp_resumes_with_other_ranks,
       dcp_takes_hooks_and_runs, dcp_refuses_what_is_no_state]
