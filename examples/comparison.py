"""What the examples share: training once per system from the same weights, with progress,
and a table at the end."""
import argparse
import contextlib
import math
import time
from typing import Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.adapter import refuse_clipping


# Systems whose training under AdamW docs/loss.md shows.
WITH_MOMENTUM = "plain,dense,half,auto,power_sgd:rank=32:bits=8"


def add_options(parser, epochs: int, compare: str) -> None:
    parser.add_argument("--compare", help="systems, by commas; 'plain' is DDP without Thinwire (default "
                        f"{compare}; with momentum or adamw {WITH_MOMENTUM})")
    parser.set_defaults(plain_sgd_compare=compare)
    parser.add_argument("--rows", default="zen",
                        help="the system for row-sparse gradients (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--limit", type=int, default=0, help="use only the first N training examples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="where models are; ranks take CUDA devices in turn and may share one")


def add_training_options(parser, sgd_lr: float) -> None:
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--lr", type=float,
                        help=f"highest learning rate (default {sgd_lr:g} for sgd, 0.001 for adamw)")
    parser.add_argument("--momentum", type=float, default=0.0, help="of sgd (default %(default)s)")
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=0.0, metavar="NORM",
                        help="largest norm of the mean gradient; 0: any")
    parser.add_argument("--warm-up", type=int, default=0, metavar="STEPS",
                        help="steps in which the rate rises from 0 (default %(default)s)")
    parser.add_argument("--schedule", choices=("constant", "cosine"), default="constant",
                        help="of the rate after the warm-up")
    parser.add_argument("--accumulate", type=int, default=1, metavar="N",
                        help="batches whose gradients make one step (default %(default)s)")
    parser.set_defaults(sgd_lr=sgd_lr)


class Training:
    """How parameters are stepped: what add_training_options read."""

    def __init__(self, parser: argparse.ArgumentParser, options: argparse.Namespace):
        for name in ("momentum", "weight_decay", "clip", "warm_up"):
            if not 0 <= getattr(options, name) < math.inf:
                parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: give a number from 0 on")
        if options.lr is not None and not 0 < options.lr < math.inf:
            parser.error(f"--lr {options.lr}: give a number above 0")
        if options.accumulate < 1:
            parser.error(f"--accumulate {options.accumulate}: must be at least 1")
        if options.momentum >= 1:
            parser.error(f"--momentum {options.momentum}: must be below 1")
        if options.optimizer == "adamw" and options.momentum:
            parser.error("--momentum is of --optimizer sgd: adamw has its own")
        self.options = options
        if getattr(options, "compare", "") is None:
            is_plain = options.optimizer == "sgd" and not options.momentum
            options.compare = options.plain_sgd_compare if is_plain else WITH_MOMENTUM
        self.lr = (options.lr if options.lr is not None
                   else {"sgd": options.sgd_lr, "adamw": 1e-3}[options.optimizer])

    def optimizers(self, module: nn.Module) -> List[torch.optim.Optimizer]:
        """The first steps all parameters but those of sparse embeddings,
        which have one of their own, if there are any.

        Momentum and weight decay would touch every row of a table, so the second goes without.
        """
        tables = [layer.weight for layer in module.modules() if isinstance(layer, nn.Embedding)
                  and layer.sparse]
        rows = {id(table) for table in tables}
        rest = [parameter for parameter in module.parameters() if id(parameter) not in rows]
        decay = self.options.weight_decay
        if self.options.optimizer == "adamw":
            made: List[torch.optim.Optimizer] = [torch.optim.AdamW(rest, lr=self.lr, weight_decay=decay)]
            return made + ([torch.optim.SparseAdam(tables, lr=self.lr)] if tables else [])
        made = [torch.optim.SGD(rest, lr=self.lr, momentum=self.options.momentum, weight_decay=decay)]
        return made + ([torch.optim.SGD(tables, lr=self.lr)] if tables else [])

    def set_rate(self, optimizers: List[torch.optim.Optimizer], step: int, steps: int) -> None:
        """The learning rate of step `step` of `steps`: before backward, since Thinwire may read it there."""
        rise = self.options.warm_up
        rate = self.lr
        if step < rise:
            rate *= (step + 1) / (rise + 1)
        elif self.options.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def take_step(self, model: DistributedDataParallel, optimizers: List[torch.optim.Optimizer],
                  losses: List[Callable[[], torch.Tensor]]) -> float:
        """One step of the mean of some losses, whose gradients add up; those before the last one stay on
        this rank. Returns that mean."""
        for optimizer in optimizers:
            optimizer.zero_grad()
        total = 0.0
        for number, loss_of in enumerate(losses):
            with contextlib.nullcontext() if number + 1 == len(losses) else model.no_sync():
                loss = loss_of() / len(losses)
                loss.backward()
            total += loss.item()
        self.clip(model.module)
        for optimizer in optimizers:
            optimizer.step()
        return total

    def clip(self, module: nn.Module) -> None:
        """After backward the gradients are the mean's, the same on every rank: so all scale them alike."""
        if not self.options.clip:
            return
        parts = [p.grad.coalesce().values() if p.grad.is_sparse else p.grad
                 for p in module.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(part) for part in parts]))
        factor = (self.options.clip / (norm + 1e-6)).clamp(max=1.0)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor.item())


def device_of(options) -> torch.device:
    """This rank's, made the current one."""
    if options.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def bytes_of(handle: thinwire.Handle, steps: int) -> Tuple[str, str]:
    """What this rank has sent in a step, and the part that this is of what dense sends."""
    sums: Dict = handle.report()["total"]
    world = dist.get_world_size()
    dense = 2 * (world - 1) / world * sums["raw_bytes"]
    share = f"1/{dense / sums['wire_bytes_sent']:.1f}" if sums["wire_bytes_sent"] else ""
    return f"{sums['wire_bytes_sent'] / steps:,.0f}", share


def parts_of(batches: List, size: int) -> List[List]:
    """So many batches each; what is left over makes no part, but where it is all."""
    parts = [batches[at:at + size] for at in range(0, len(batches) - size + 1, size)]
    return parts or [batches]


def compare(
    systems: List[str],
    rows: str,
    seed: int,
    make_model: Callable[[], nn.Module],
    batches: Callable[[int], List],
    epochs: int,
    training: Training,
    loss_of: Callable[[nn.Module, object], torch.Tensor],
    score_of: Callable[[nn.Module], float],
    score_name: str,
    device: torch.device,
) -> None:
    """Trains once per system and prints a table on rank 0.

    batches(epoch): this rank's, the same number on every rank, in host memory or on the device.
    loss_of(model, batch): of one batch. score_of(module): on test data.
    Raises ValueError for a clipped mean of a system that clips by itself, or whose mean is not to be clipped.
    """
    for system in systems:
        if training.options.clip and system != "plain":
            refuse_clipping(system, training.options.clip)
    first = dist.get_rank() == 0
    lines = [f"| system | {score_name} | step, ms | bytes sent per step | of dense |",
             "| --- | --- | --- | --- | --- |"]
    for system in systems:
        torch.manual_seed(seed)
        model = DistributedDataParallel(make_model().to(device))
        optimizers = training.optimizers(model.module)
        # Some systems work with the learning rate: they read it from the optimizer.
        handle: Optional[thinwire.Handle] = None
        if system != "plain":
            handle = thinwire.register(model, system, rows=rows, optimizer=optimizers[0])
        started, steps = time.perf_counter(), 0
        for epoch in range(epochs):
            total = 0.0
            todo = parts_of(batches(epoch), training.options.accumulate)
            for number, batch in enumerate(todo):
                training.set_rate(optimizers, steps, epochs * len(todo))
                losses = [lambda part=part: loss_of(model, [tensor.to(device) for tensor in part])
                          for part in batch]
                total += training.take_step(model, optimizers, losses)
                steps += 1
                if first and (number + 1) % 50 == 0:
                    print(f"\r{system}: epoch {epoch + 1}/{epochs}, step {number + 1}/{len(todo)}, "
                          f"loss {total / (number + 1):.4f}", end="", flush=True)
            if first:
                print(f"\r{system}: epoch {epoch + 1}/{epochs}, loss {total / len(todo):.4f}" + " " * 30)
        seconds = time.perf_counter() - started
        if first:
            score = score_of(model.module)
            sent, share = ("", "") if handle is None else bytes_of(handle, steps)
            lines.append(f"| {system} | {score:.4f} | {1e3 * seconds / steps:.1f} | {sent} | {share} |")
        if handle is not None:
            handle.close()
        dist.barrier()
    if first:
        print("\n".join(["", *lines]))
