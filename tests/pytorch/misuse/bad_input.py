"""Bad input, and installations that do not fit."""
import copy
import datetime
import gc
import inspect
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import thinwire
from thinwire import _C, group, shards
from thinwire.handle import _live
from thinwire.hook import hook
from common import DEADLINE, RANK, Net, register, require_error, require_same, train, values_of, wrap


def bad_input():
    require_error(TypeError, ["DistributedDataParallel", "Net"], lambda: register(Net()))
    require_error(TypeError, ["spec is 5", "such as 'auto'"], lambda: register(wrap(Net), 5))
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
        os.remove(os.path.join(folder, "thinwire", "_built.py"))
        bare = subprocess.run([sys.executable, os.path.join(folder, "tried.py")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    assert f"{folder}/thinwire has Thinwire's Python files and no extension" in bare.stdout, bare.stdout
    said = done.stdout.splitlines()
    # The import warns, by the version that pip has written down.
    warning = ("RuntimeWarning: This Thinwire was built for torch 0.4, and torch 9.7.0 is installed. "
               "A wheel for it is called thinwire-5+torch9.7.")
    assert done.stderr.count(warning) == 1, done.stderr
    here = ".".join(torch.__version__.split(".")[:2])
    for line, answer in zip(lines, [*said, *len(lines) * [""]]):
        assert answer.startswith("This Thinwire was built for torch 0.4, and torch "), (line, answer)
        assert f"called thinwire-5+torch{here}." in answer, (line, answer)


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


def fully_shard_under_an_older_torch():
    if shards.torch_has("set_all_reduce_hook"):
        return "skipped"
    require_error(ImportError, [torch.__version__, "set_all_reduce_hook", "install a current torch"],
                  lambda: thinwire.fully_shard(Net(), None, "casq"))


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
