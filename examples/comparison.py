"""What the examples share: training once per system from the same weights, with progress, and a table at the end."""
import time
from typing import Callable, Dict, List, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire


def add_options(parser, epochs: int, compare: str) -> None:
    parser.add_argument("--compare", default=compare, help="systems, by commas; 'plain' is DDP without Thinwire (default %(default)s)")
    parser.add_argument("--rows", default="zen", help="the system for row-sparse gradients (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--limit", type=int, default=0, help="use only the first N training examples")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where models are; ranks take CUDA devices in turn and may share one")


def device_of(options) -> torch.device:
    """This rank's, made the current one."""
    if options.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def compare(
    systems: List[str],
    rows: str,
    seed: int,
    make_model: Callable[[], nn.Module],
    batches: Callable[[int], List],
    epochs: int,
    make_optimizers: Callable[[nn.Module], List[torch.optim.Optimizer]],
    loss_of: Callable[[nn.Module, object], torch.Tensor],
    score_of: Callable[[nn.Module], float],
    score_name: str,
    device: torch.device,
) -> None:
    """Trains once per system and prints a table on rank 0.

    batches(epoch): this rank's, the same number on every rank, in host memory or on the device. loss_of(model, batch): of one batch. score_of(module): on test data.
    """
    first = dist.get_rank() == 0
    lines = [f"| system | {score_name} | step, ms | bytes sent per step | of dense |", "| --- | --- | --- | --- | --- |"]
    for system in systems:
        torch.manual_seed(seed)
        model = DistributedDataParallel(make_model().to(device))
        handle: Optional[thinwire.Handle] = None if system == "plain" else thinwire.register(model, system, rows=rows)
        optimizers = make_optimizers(model.module)
        started, steps = time.perf_counter(), 0
        for epoch in range(epochs):
            total = 0.0
            todo = batches(epoch)
            for number, batch in enumerate(todo):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss = loss_of(model, [part.to(device) for part in batch])
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                total += loss.item()
                steps += 1
                if first and (number + 1) % 50 == 0:
                    print(f"\r{system}: epoch {epoch + 1}/{epochs}, batch {number + 1}/{len(todo)}, loss {total / (number + 1):.4f}", end="", flush=True)
            if first:
                print(f"\r{system}: epoch {epoch + 1}/{epochs}, loss {total / len(todo):.4f}" + " " * 30)
        seconds = time.perf_counter() - started
        if first:
            score = score_of(model.module)
            sent = share = ""
            if handle is not None:
                sums: Dict = handle.report()["total"]
                sent = f"{sums['wire_bytes_sent'] / steps:,.0f}"
                world = dist.get_world_size()
                dense = 2 * (world - 1) / world * sums["raw_bytes"]
                share = f"1/{dense / sums['wire_bytes_sent']:.1f}" if sums["wire_bytes_sent"] else ""
            lines.append(f"| {system} | {score:.4f} | {1e3 * seconds / steps:.1f} | {sent} | {share} |")
        if handle is not None:
            handle.close()
        dist.barrier()
    if first:
        print("\n".join(["", *lines]))
