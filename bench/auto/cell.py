"""One cell of the grid, in one run: started once per rank by run.py, or by any launcher.

    cell.py --model NAME --json FILE [OPTION...]

Every way trains the same model from the same weights with the same examples. Each takes some steps first, of
which `auto` needs some for its trial. Then ways take turns: a block of steps of each, and again. So whatever
else the machine does meets all of them. The time of a block is that of the slowest rank. The second plain
DDP, which takes examples in another order, tells how much two equal ways differ.

--accumulate N: a step has N batches, and only the last one's backward synchronizes. --scaler: losses are
scaled by a GradScaler, and in every 16th step the gradients overflow, so that this step is skipped.
"""

import argparse
import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.dirname(HERE)]

import models  # noqa: E402
import ways  # noqa: E402
from loss_scaler import make_scaler, overflows  # noqa: E402
from trainings import commit, write_json  # noqa: E402

WAYS = "plain,plain:again,fp16_hook,power_sgd_hook,dense,half:format=bf16:feedback=on,power_sgd:rank=32:bits=8,auto"
# DDP takes no hook for sparse gradients.
WAYS_OF_ROWS = "plain,plain:again,dense,half:format=bf16:feedback=on,power_sgd:rank=32:bits=8,auto"


class Training:
    def __init__(self, setting, way: str, seed: int, accumulate: int = 1, scales: bool = False):
        self.setting, self.way, self.accumulate = setting, way, accumulate
        torch.manual_seed(seed)
        self.model = ways.wrap(setting.build(), way)
        self.optimizer = setting.optimizer(self.model)
        self.scaler = make_scaler() if scales else None
        self.handle = ways.attach(self.model, way, self.optimizer, grad_scaler=self.scaler)
        order_seed = seed + (way == "plain:again")
        self.order = torch.randperm(len(setting.inputs), generator=torch.Generator().manual_seed(order_seed))
        self.steps = 0
        self.blocks = []
        self.bytes = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        for part in range(self.accumulate - 1):
            with self.model.no_sync():
                self.backward(part)
        self.backward(self.accumulate - 1)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.setting.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.setting.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.steps += 1

    def backward(self, part: int) -> None:
        """Of the step's batch number `part`."""
        batch, size = (self.steps * self.accumulate + part) * dist.get_world_size(), self.setting.batch
        chosen = self.order[(torch.arange(size) + (batch + dist.get_rank()) * size) % len(self.order)]
        loss = self.setting.loss(self.model, self.setting.inputs[chosen], self.setting.targets[chosen])
        loss = loss / self.accumulate
        if self.scaler is not None:
            loss = self.scaler.scale(loss * float("inf") if overflows(self.steps) else loss)
        loss.backward()

    def block(self, steps: int, counts: bool) -> None:
        dist.barrier()
        before = ways.sent_bytes()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        dist.barrier()
        seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        after = ways.sent_bytes()
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if counts:
            self.blocks.append(seconds.item() / steps)
            self.bytes += [] if before is None else [(after - before) / steps]

    def error(self) -> float:
        """Of all held-out examples; each rank takes a part."""
        rank, world = dist.get_rank(), dist.get_world_size()
        inputs, targets = (part[rank::world] for part in self.setting.held)
        sums = torch.zeros(2, dtype=torch.float64)
        self.model.module.eval()
        with torch.no_grad():
            for some, wanted in zip(inputs.split(64), targets.split(64)):
                sums += torch.tensor(
                    [self.setting.error(self.model.module, some, wanted) * len(some), len(some)]
                )
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()

    def result(self) -> dict:
        made = {
            "way": self.way,
            "block_seconds": self.blocks,
            "error": self.error(),
            "interface_bytes": sum(self.bytes) / len(self.bytes) if self.bytes else None,
        }
        if self.handle is not None:
            report = self.handle.report()
            made.update(
                spec=report["spec"],
                schemes=sorted({bucket["scheme"] or "" for bucket in report["buckets"]}),
                changes=report["changes"],
            )
            self.handle.close()
        return made


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=models.MODELS, required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--ways", default="", help=f"default {WAYS}; of rows without torch's hooks")
    parser.add_argument(
        "--first", type=int, default=30, help="steps of each way that do not count (default %(default)s)"
    )
    parser.add_argument("--blocks", type=int, default=10, help="of each way that count (default %(default)s)")
    parser.add_argument("--block", type=int, default=10, help="steps of a block (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step (default %(default)s)")
    parser.add_argument("--scaler", action="store_true", help="scale losses, with some steps that overflow")
    parser.add_argument("--images", default="", help="the folder with Fashion-MNIST's four files")
    parser.add_argument("--text", default="", help="a file to learn from instead of the King James Bible")
    options = parser.parse_args()
    if options.accumulate < 1:
        parser.error(f"--accumulate {options.accumulate}: at least 1, which is no accumulation")
    return options


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    setting = models.make(options.model, options.images, options.text)
    names = (options.ways or (WAYS_OF_ROWS if options.model == "rows" else WAYS)).split(",")
    trainings = [Training(setting, way, options.seed, options.accumulate, options.scaler) for way in names]
    for training in trainings:
        training.block(options.first, counts=False)
    for at in range(options.blocks):
        begin = at % len(trainings)  # so that none always comes behind the same one
        for training in trainings[begin:] + trainings[:begin]:
            training.block(options.block, counts=True)
    results = [training.result() for training in trainings]
    if dist.get_rank() == 0:
        parameters = sum(parameter.numel() for parameter in trainings[0].model.parameters())
        made = {
            "model": options.model,
            "parameters": parameters,
            "workers": dist.get_world_size(),
            "seed": options.seed,
            "accumulate": options.accumulate,
            "scaler": options.scaler,
            "commit": commit(),
            "first": options.first,
            "blocks": options.blocks,
            "block": options.block,
            "unit": setting.unit,
            "allowed": setting.allowed,
            "torch": torch.__version__,
            "ways": results,
        }
        write_json(options.json, made)
    dist.barrier()


if __name__ == "__main__":
    main()
