"""What goes wrong with frameworks, and what else people do with them:
two models, a trainer that trains twice, what cannot work."""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

import framework_scripts
import thinwire
from common import RANK, require_error, require_same
from framework_scripts import make_model, values_of

LIMITS = {"deadline_seconds": 60.0}


def shared_folder():
    """One folder for all ranks."""
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder)
    return folder[0]


# --- Accelerate ---------------------------------------------------------------------------------------------

def two_models_of_one_accelerator():
    """As of a generator and its critic: each has its own state in the folder."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    models = [make_model(), nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5))]
    pairs = [accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
             for model in models]
    runs = [thinwire.accelerate.register(accelerator, model, spec, **LIMITS)
            for (model, _), spec in zip(pairs, ("casq", "top_k:ratio=0.05+zen"))]

    def train(first, steps):
        for step in range(first, first + steps):
            points = torch.randn(8, 20, generator=torch.Generator().manual_seed(100 * step + RANK))
            for model, optimizer in pairs:
                optimizer.zero_grad()
                accelerator.backward(model(points).square().mean())
                optimizer.step()

    train(0, 3)
    folder = shared_folder()
    accelerator.save_state(folder)
    dist.barrier()
    assert {f"thinwire_{place}.rank_{rank}_of_2.pt" for place in (0, 1)
            for rank in (0, 1)} <= set(os.listdir(folder)), (os.listdir(folder))
    train(3, 3)
    expected = [values_of(model) for model, _ in pairs]
    accelerator.load_state(folder)
    assert [run.handle.step for run in runs] == [3, 3]
    train(3, 3)
    for (model, _), values in zip(pairs, expected):
        require_same(values_of(model), values, "two models, loaded again")
    ended = accelerator.state.destroy_process_group
    accelerator.state.destroy_process_group = lambda *_: None  # the other scenarios need it
    accelerator.end_training()
    accelerator.state.destroy_process_group = ended
    assert all(run.is_over() for run in runs)
    accelerator.free_memory()


def some_models_saved_by_one_process(folder):
    """The second and the third of an accelerator's models are registered. One process saves,
    which synchronizes nothing, and as many or more load."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    models = accelerator.prepare(*[make_model() for _ in range(3)])
    runs = [thinwire.accelerate.register(accelerator, model, "casq", **LIMITS) for model in models[1:]]
    if dist.is_initialized():
        assert all(run.handle is not None for run in runs)
    else:
        accelerator.save_state(folder)
        found = sorted(name for name in os.listdir(folder) if name.startswith("thinwire"))
        assert found == [f"thinwire_{place}.rank_0_of_1.pt" for place in (1, 2)], found
    accelerator.load_state(folder)
    for run in runs:
        run.close()
    accelerator.free_memory()


def adam_of_an_accelerator():
    """The prepared optimizer is found, and holds still when the system says so."""
    result = framework_scripts.accelerate(shared_folder(), "one_bit_adam:freeze=4",
                                          optimizer=torch.optim.Adam, **LIMITS)
    assert result.losses[1] < 0.9 * result.losses[0], result.losses
    require_error(ValueError, ["Adam"],
                  lambda: framework_scripts.accelerate(shared_folder(), "one_bit_adam:freeze=4", **LIMITS))


def what_accelerate_cannot():
    from accelerate import Accelerator
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    require_error(TypeError, ["a Sequential, is not wrapped", "accelerator.prepare"],
                  lambda: thinwire.accelerate.register(accelerator, make_model(), "dense"))
    model = accelerator.prepare(make_model())
    require_error(ValueError, ["nosuch"],
                  lambda: thinwire.accelerate.register(accelerator, model, "nosuch", **LIMITS))
    hooked = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=[
        DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16)
    ])
    require_error(ValueError, ["comm_hook='fp16'"], lambda: thinwire.accelerate.register(
        hooked, hooked.prepare(make_model()), "dense", **LIMITS
    ))


def sharded_models():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor

    from accelerate import Accelerator

    accelerator, mesh = Accelerator(cpu=True, mixed_precision="bf16"), init_device_mesh("cpu", (2,))
    sharded = make_model()
    fully_shard(sharded, mesh=mesh)
    require_error(TypeError, ["fully_shard (FSDP2)", "DistributedDataParallel"],
                  lambda: thinwire.accelerate.register(accelerator, sharded, "dense"))

    older = FullyShardedDataParallel(make_model(), device_id=torch.device("cpu"))
    require_error(TypeError, ["(FSDP1)", "DistributedDataParallel"],
                  lambda: thinwire.accelerate.register(accelerator, older, "dense"))

    def in_parts(name, module, mesh):
        for key, parameter in list(module.named_parameters(recurse=False)):
            module.register_parameter(key,
                                      nn.Parameter(distribute_tensor(parameter.data, mesh, [Replicate()])))

    parts = distribute_module(make_model(), mesh, in_parts)
    require_error(TypeError, ["0.weight is a DTensor", "tp_plan"],
                  lambda: thinwire.accelerate.register(accelerator, parts, "dense"))
    require_error(TypeError, ["0.weight is a DTensor"], lambda: thinwire.register(parts, "dense"))


def megatrons_engine():
    """Accelerate's class around a model of Megatron-LM's, which is not installed: without what it holds."""
    from accelerate import Accelerator
    from accelerate.utils.megatron_lm import MegatronEngine

    engine = MegatronEngine.__new__(MegatronEngine)
    nn.Module.__init__(engine)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    require_error(TypeError, ["Megatron-LM's engine", "DistributedDataParallel"],
                  lambda: thinwire.accelerate.register(accelerator, engine, "dense"))


# --- Lightning ----------------------------------------------------------------------------------------------

def one_callback_in_two_trainers():
    callback = thinwire.lightning.ThinwireCallback("casq", **LIMITS)
    first, again = [framework_scripts.lightning(shared_folder(), "casq", callbacks=[callback])
                    for _ in range(2)]
    require_same(again.values, first.values, "a callback that is used twice")
    assert callback.run.is_over()


def a_tuner_before_the_fit():
    """It saves and loads a checkpoint of its own before the model is registered."""
    from lightning.pytorch.callbacks import LearningRateFinder

    spec = "top_k:ratio=0.05+zen"
    checkpoint = framework_scripts.lightning(shared_folder(), spec, **LIMITS).checkpoint
    wanted = framework_scripts.states_in(checkpoint)[RANK]["values"]
    plain = framework_scripts.lightning(shared_folder(), None).checkpoint
    callback = thinwire.lightning.ThinwireCallback(spec, **LIMITS)

    def fit(resume, probe):
        finder = LearningRateFinder(num_training_steps=4, update_attr=False)
        framework_scripts.lightning(shared_folder(), spec, resume, probe, callbacks=[callback, finder])

    def is_the_checkpoints(run):
        found = run.handle.state_dict()["values"]
        assert found.keys() == wanted.keys(), (found.keys(), wanted.keys())
        for name, value in wanted.items():
            assert (torch.equal(found[name], value) if isinstance(value, torch.Tensor)
                    else found[name] == value), name

    def is_new(run):
        assert run.handle.step == 0, run.handle.step

    assert any(value.any() for name, value in wanted.items() if name.startswith("residual/"))
    for resume, probe in ((checkpoint, is_the_checkpoints), (None, is_new), (checkpoint, is_the_checkpoints)):
        fit(resume, probe)
    require_error(ValueError, ["no state of Thinwire", "require_state=False"], lambda: fit(plain, is_new))


def a_checkpoint_upon_an_exception():
    """One rank raises, so the other does. Both save, as OnExceptionCheckpoint wants, and neither waits for
    the other's state. The checkpoint is refused unless it is taken without one."""
    from lightning.pytorch.callbacks import OnExceptionCheckpoint

    folder = shared_folder()

    def fit(name, **more):
        options = {**LIMITS, "require_state": more.pop("require_state", True)}
        callbacks = [thinwire.lightning.ThinwireCallback("casq", **options), OnExceptionCheckpoint(folder)]
        return framework_scripts.lightning(os.path.join(folder, name), "casq", callbacks=callbacks, **more)

    error, words = ((RuntimeError, ["rank 1"]), (ArithmeticError, ["rank 1"]))[RANK]
    require_error(error, words, lambda: fit("first", fails_at=5))
    dist.barrier()
    saved = os.path.join(folder, "on_exception.ckpt")

    def kept():
        dist.barrier()
        checkpoint = torch.load(saved, weights_only=False)
        assert checkpoint["callbacks"]["ThinwireCallback"] == {"ranks": 0, "states": []}
        assert any(state for state in checkpoint["optimizer_states"][0]["state"].values())
        dist.barrier()
        return checkpoint["global_step"]

    steps = kept()
    assert steps == 2, steps  # of two batches each; the sixth batch failed
    # The refusal is an exception, too, so it saves: no less than what was there.
    require_error(ValueError, ["upon an exception", "require_state=False"], lambda: fit("no", resume=saved))
    assert kept() == steps
    begun = []
    fit("yes", resume=saved, require_state=False, probe=lambda run: begun.append(run.handle.step))
    assert begun == [0]


def what_lightning_cannot():
    from lightning.pytorch.strategies import DDPStrategy
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    strategy = DDPStrategy(ddp_comm_hook=fp16_compress_hook)
    require_error(ValueError, ["ddp_comm_hook"],
                  lambda: framework_scripts.lightning(shared_folder(), "casq", strategy=strategy, **LIMITS))
    words = ["not wrapped in DistributedDataParallel", "strategy='ddp'"]
    require_error(TypeError, words,
                  lambda: framework_scripts.lightning(shared_folder(), "casq", devices=1, **LIMITS))


def what_fabric_cannot():
    words = ["not wrapped in DistributedDataParallel", "strategy='ddp'"]
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    require_error(TypeError, words, lambda: thinwire.lightning.register(fabric, make_model(), "dense"))


# --- Trainer ------------------------------------------------------------------------------------------------

def a_trainer_that_trains_twice():
    """The trainer wraps its model once, and the second run registers it again."""
    folder = shared_folder()
    result = framework_scripts.transformers(folder, "casq", **LIMITS)
    again = framework_scripts.transformers(folder, "casq", trainer=result.trainer)
    assert again.losses[1] < result.losses[0] and result.trainer.state.global_step == 12
    assert any(not torch.equal(one, other) for one, other in zip(again.values, result.values))
    once_more = framework_scripts.transformers(folder, "casq", trainer=result.trainer,
                                               resume=again.checkpoint)
    require_same(once_more.values, again.values, "a trainer that resumes what it saved")


def what_the_trainer_cannot():
    from transformers import Trainer, TrainingArguments

    require_error(TypeError, ["add_callback(ThinwireCallback(trainer, spec))"],
                  lambda: thinwire.transformers.ThinwireCallback("casq", "casq"))
    trainer = Trainer(make_model(), TrainingArguments(output_dir=shared_folder(), use_cpu=True, report_to=[]))
    thinwire.transformers.ThinwireCallback(trainer, "casq")
    require_error(RuntimeError, ["was not added"], trainer.train)


def nothing_is_imported_before_it_is_asked_for():
    """Each adapter loads its own framework alone."""
    others = {"accelerate": ("lightning", "transformers"),
              "lightning": ("accelerate", "transformers")}[sys.argv[1]]
    loaded = [other for other in others if other in sys.modules and f"thinwire.{other}" in sys.modules]
    assert not loaded, loaded


# --- Without a group ----------------------------------------------------------------------------------------

def accelerate_without_cpu(_):
    from accelerate import Accelerator

    accelerator = Accelerator()
    thinwire.accelerate.register(accelerator, accelerator.prepare(make_model()), "casq", **LIMITS)


def lightning_with_one_device(folder):
    framework_scripts.lightning(folder, "casq", devices=1, **LIMITS)


def fabric_with_one_device(_):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    thinwire.lightning.register(fabric, fabric.setup(make_model()), "casq", **LIMITS)


def trainer_without_use_cpu(folder):
    from transformers import Trainer, TrainingArguments

    trainer = Trainer(make_model(), TrainingArguments(output_dir=folder, report_to=[], disable_tqdm=True),
                      train_dataset=framework_scripts.Classes())
    trainer.add_callback(thinwire.transformers.ThinwireCallback(trainer, "casq", **LIMITS))
    trainer.train()


#: What is done, and what the error says.
UNCONNECTED = {"accelerate": (accelerate_without_cpu, "Accelerator(cpu=True)"),
               "lightning": (lightning_with_one_device, "Trainer(strategy='ddp')"),
               "fabric": (fabric_with_one_device, "2 processes were started (WORLD_SIZE)"),
               "transformers": (trainer_without_use_cpu, "TrainingArguments(use_cpu=True)")}


SCENARIOS = {
    "accelerate": [nothing_is_imported_before_it_is_asked_for, two_models_of_one_accelerator,
                   adam_of_an_accelerator, what_accelerate_cannot, sharded_models, megatrons_engine],
    "lightning": [nothing_is_imported_before_it_is_asked_for, one_callback_in_two_trainers,
                  a_tuner_before_the_fit, what_lightning_cannot, a_checkpoint_upon_an_exception],
    "fabric": [what_fabric_cannot],
    "transformers": [a_trainer_that_trains_twice, what_the_trainer_cannot],
}
