"""One script per framework, in the shape that its own documentation gives one, with Thinwire's line where a
spec is given: mixed precision, accumulation of two batches, clipping, two epochs with a checkpoint after the
first.

A script is called ``script(folder, spec, resume=None, probe=None, epochs=2, **options)`` and returns a
Result. folder: where checkpoints go. resume: a checkpoint. probe(run): called before the first step,
with Thinwire's Synchronization. scaled: with a GradScaler whose scale is too large at first.
"""
import glob
import os
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Dict, List

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import thinwire

EXAMPLES, BATCH, CLASSES = 96, 4, 5
RANKS = int(os.environ["WORLD_SIZE"])  # Lightning forgets it after a run
warnings.filterwarnings("ignore")


@dataclass
class Result:
    values: List[torch.Tensor]
    losses: List[float]  # of the first and of the last batches
    checkpoint: str = ""
    logged: Dict[str, float] = field(default_factory=dict)


class Classes(Dataset):
    """Points around one of five centres."""

    def __init__(self, examples=EXAMPLES):
        generator = torch.Generator().manual_seed(3)
        centres = torch.randn(CLASSES, 20, generator=generator)
        self.labels = torch.arange(examples) % CLASSES
        self.points = centres[self.labels] + 0.3 * torch.randn(examples, 20, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return self.points[place], self.labels[place]


class Phrases(Dataset):
    """Sequences that count on from where they begin."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, place):
        ids = (torch.arange(12) + 7 * place) % 60
        return {"input_ids": ids, "labels": ids}


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES))


def values_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


class Losses:
    """Means over the first and the last four batches of a rank."""

    def __init__(self):
        self.all = []

    def ends(self):
        return [sum(part) / len(part) for part in (self.all[:4], self.all[-4:])]


def loss_scaler():
    """Its first steps overflow, and its scale grows again later."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-30, growth_interval=4)


def dies_at(step, fails_at, rank):
    if fails_at is not None and rank == 1 and step == fails_at:
        raise ArithmeticError("what this test does to rank 1")


def accelerate(folder, spec, resume=None, probe=None, epochs=2, fails_at=None, optimizer=torch.optim.SGD,
               model=None, scaled=False, **options):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2,
                              dataloader_config=DataLoaderConfiguration())
    if scaled:
        accelerator.scaler = loss_scaler()
    kept = Kept(accelerator)
    more = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    model = make_model() if model is None else model
    model, optimizer, loader = accelerator.prepare(model, optimizer(model.parameters(), lr=0.02, **more),
                                                   DataLoader(Classes(), batch_size=BATCH))
    run = None
    if spec is not None:
        run = thinwire.accelerate.register(accelerator, model, spec, **options)
    if resume is not None:
        accelerator.load_state(resume)
    if probe is not None:
        probe(run)
    losses = Losses()
    for epoch in range(1 if resume else 0, epochs):
        for points, labels in loader:
            dies_at(len(losses.all), fails_at, accelerator.process_index)
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(points), labels)
                # In float32 the loss alone does not overflow.
                accelerator.backward(64 * loss if scaled else loss)
                if accelerator.sync_gradients and not scaled:  # it unscales before clipping on GPUs alone
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.all.append(loss.item())
            accelerator.log({"loss": loss.item()}, step=len(losses.all))
        if epoch == 0 and folder is not None:
            accelerator.save_state(folder)
    result = Result(values_of(accelerator.unwrap_model(model)), losses.ends(), folder, kept.last)
    if run is not None:
        run.close()
    accelerator.free_memory()
    return result


class Kept:
    """Accelerate's logger here: keeps the last line."""

    def __init__(self, accelerator):
        from accelerate.tracking import GeneralTracker

        class Tracker(GeneralTracker):
            name, requires_logging_directory = "kept", False
            tracker = None

            def store_init_configuration(self, values):
                pass

            def log(this, values, step=None, **more):
                self.last = values

        self.last = {}
        accelerator.trackers.append(Tracker(_blank=True))


def lightning(folder, spec, resume=None, probe=None, epochs=2, fails_at=None, callbacks=(), strategy="ddp",
              devices=None, scaled=False, **options):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins.precision import MixedPrecision
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.environments import LightningEnvironment

    losses = Losses()

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = make_model()

        def training_step(self, batch, number):
            dies_at(len(losses.all), fails_at, self.global_rank)
            loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            losses.all.append(loss.item())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    class Probe(Callback):
        def on_train_start(self, trainer, module):
            if probe is not None:
                probe(callbacks[0].run)

    callbacks = (list(callbacks)
                 or ([] if spec is None else [thinwire.lightning.ThinwireCallback(spec, **options)]))
    ranks = devices or RANKS
    module, kept = Module(), kept_by_lightning()
    trainer = Trainer(
        accelerator="cpu", devices=ranks, strategy=strategy if ranks > 1 else "auto", max_epochs=epochs,
        precision=None if scaled else "bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=1.0,
        logger=kept,
        log_every_n_steps=2, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        plugins=[LightningEnvironment()] * (ranks > 1)
        + [MixedPrecision("16-mixed", "cpu", loss_scaler()) for _ in range(scaled)],
        callbacks=[*callbacks, Probe(), ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)],
    )
    trainer.fit(module, DataLoader(Classes(), batch_size=BATCH), ckpt_path=resume)
    if epochs == 2 and spec is not None:
        trainer.save_checkpoint(os.path.join(folder, "end.ckpt"))  # after everything was closed
    return Result(values_of(module), losses.ends(), os.path.join(folder, "epoch=0.ckpt"), kept.last)


def kept_by_lightning():
    from lightning.pytorch.loggers.logger import Logger

    class KeptLogger(Logger):
        last: Dict[str, Any] = {}
        name, version = "kept", 0

        def log_metrics(self, metrics, step=None):
            self.last = {**self.last, **metrics}

        def log_hyperparams(self, *_):
            pass

    return KeptLogger()


def fabric(folder, spec, resume=None, probe=None, epochs=2, fails_at=None, strategy="ddp", scaled=False,
           **options):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins.precision import MixedPrecision
    from lightning.fabric.plugins.environments import LightningEnvironment

    ranks, kept = RANKS, kept_by_lightning()
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy if ranks > 1 else "auto",
                    precision=None if scaled else "bf16-mixed", loggers=kept,
                    plugins=[LightningEnvironment()] * (ranks > 1)
                    + [MixedPrecision("16-mixed", "cpu", loss_scaler()) for _ in range(scaled)])
    fabric.launch()
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    loader = fabric.setup_dataloaders(DataLoader(Classes(), batch_size=BATCH))
    state = {"model": model, "optimizer": optimizer}
    run = None
    if spec is not None:
        run = state["thinwire"] = thinwire.lightning.register(fabric, model, spec,
                                                              optimizer=optimizer, **options)
    if resume is not None:
        fabric.load(resume, state)
    if probe is not None:
        probe(run)
    checkpoint, losses = os.path.join(folder, "checkpoint.ckpt"), Losses()
    for epoch in range(1 if resume else 0, epochs):
        for number, (points, labels) in enumerate(loader):
            dies_at(len(losses.all), fails_at, fabric.global_rank)
            steps = number % 2 == 1
            with fabric.no_backward_sync(model, enabled=not steps and ranks > 1):
                loss = nn.functional.cross_entropy(model(points), labels)
                fabric.backward(loss)
            losses.all.append(loss.item())
            if steps:
                fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
                optimizer.step()
                optimizer.zero_grad()
                fabric.log("loss", loss.item())
        if epoch == 0:
            fabric.save(checkpoint, state)
    if run is not None:
        run.close()
    return Result(values_of(model.module), losses.ends(), checkpoint, kept.last)


def transformers(folder, spec, resume=None, probe=None, epochs=2, fails_at=None, trainer=None, scaled=False,
                 **options):
    """With ``trainer``: that one trains once more."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    torch.manual_seed(7)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))

    class Fails(TrainerCallback):
        def on_train_begin(self, args, state, control, **more):
            if probe is not None:
                probe(added.run)

        def on_step_begin(self, args, state, control, **more):
            dies_at(state.global_step, fails_at, args.process_index)

    if trainer is None:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, bf16=True, per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2, max_grad_norm=0.0 if scaled else 1.0, num_train_epochs=epochs,
            learning_rate=0.01, lr_scheduler_type="constant", save_strategy="epoch", logging_steps=2,
            report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
        )
        trainer = Trainer(model, arguments, train_dataset=Phrases())
        if scaled:
            trainer.accelerator.scaler = loss_scaler()
        added = None
        if spec is not None:
            added = thinwire.transformers.ThinwireCallback(trainer, spec, **options)
            trainer.add_callback(added)
        trainer.add_callback(Fails())
    trainer.train(resume_from_checkpoint=resume)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    checkpoints = sorted(glob.glob(os.path.join(folder, "checkpoint-*")),
                         key=lambda path: int(path.rsplit("-", 1)[1]))
    result = Result(values_of(trainer.model), [lines[0]["loss"], lines[-1]["loss"]],
                    (checkpoints or [""])[0], lines[-1])
    result.trainer = trainer
    return result


def hybrid(folder, spec, resume=None, probe=None, epochs=2, all_ranks=False, **options):
    """torch's fully_shard on hosts of 2 ranks, or of one where there are 2 in all."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.utils.data import DistributedSampler

    model = make_model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    hosts = RANKS // 2 if RANKS > 2 else RANKS
    mesh = (init_device_mesh("cpu", (RANKS,), mesh_dim_names=("shard",)) if all_ranks else
            init_device_mesh("cpu", (hosts, RANKS // hosts), mesh_dim_names=("replicate", "shard")))
    handle, parts = None, {}
    if spec is None:
        for module in (model[0], model[2]):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    else:
        handle = parts["thinwire"] = thinwire.fully_shard(model, mesh, spec, modules=[model[0], model[2]],
                                                          mp_policy=policy, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, **parts}

    if resume is not None:
        saved = state()
        dcp.load(saved, checkpoint_id=resume)
        set_state_dict(model, optimizer, model_state_dict=saved["model"],
                       optim_state_dict=saved["optimizer"])
    if probe is not None:
        probe(SimpleNamespace(handle=handle))
    checkpoint, losses = os.path.join(folder, "checkpoint"), Losses()
    points = DataLoader(Classes(), batch_size=BATCH, sampler=DistributedSampler(Classes(), shuffle=False))
    for epoch in range(1 if resume else 0, epochs):
        for number, (batch, labels) in enumerate(points):
            model.set_requires_gradient_sync(number % 2 == 1)
            loss = nn.functional.cross_entropy(model(batch).float(), labels)
            loss.backward()
            losses.all.append(loss.item())
            if number % 2 == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        if epoch == 0:
            dcp.save(state(), checkpoint_id=checkpoint)
    dist.barrier()
    values = [parameter.to_local().detach().clone() for parameter in model.parameters()]
    if handle is not None:
        handle.close()
    return Result(values, losses.ends(), checkpoint)


def scattered(folder, spec, **options):
    """torch's fully_shard among all ranks."""
    return hybrid(folder, spec, all_ranks=True, **options)


def states_in(checkpoint):
    """All ranks' states of Thinwire in a checkpoint of any of them."""
    if os.path.isdir(checkpoint):
        return [torch.load(path, weights_only=True)["state"]
                for path in sorted(glob.glob(os.path.join(checkpoint, "thinwire*.pt")))]
    saved = torch.load(checkpoint, weights_only=False)
    return (saved["thinwire"] if "thinwire" in saved else saved["callbacks"]["ThinwireCallback"])["states"]


SCRIPTS = {"accelerate": [accelerate], "lightning": [lightning, fabric], "transformers": [transformers],
           "fully_shard": [hybrid, scattered]}
