#!/usr/bin/python3
"""Does it help to clip a delivered mean by the norm of the exact one?

    python3 -m thinwire.launch -n 4 bench/loss/exact_norm.py --spec SPEC [--spec SPEC ...] [--seeds 1,2,3]

Each SPEC trains a small transformer twice: once clipped by the norm of the mean that is delivered, as
clip_grad_norm_ does, and once by that of the exact mean, which is summed beside it in every step.
Rank 0 prints, as means over the last third of the steps, the delivered mean's norm over the exact one's and
the cosine between both, and the evaluation loss at the end of either training, as mean and deviation.
"""
import argparse
import os
import statistics
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.dont_write_bytecode = True
sys.path += [os.path.join(ROOT, "bench"), os.path.join(ROOT, "bench", "time_to_loss"), os.path.join(ROOT, "examples")]

import ways  # noqa: E402
from train import Losses, mean_over_ranks, windows_of  # noqa: E402


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", action="append", dest="specs", required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--lr", type=float, help="default 0.1 for sgd, whose momentum is 0.9, and 0.002 for adamw")
    parser.add_argument("--text", default="", help="a file to learn from instead of the King James Bible")
    given = parser.parse_args()
    try:
        given.seeds = [int(seed) for seed in given.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {given.seeds}: give whole numbers separated by commas")
    given.lr = given.lr or (0.1 if given.optimizer == "sgd" else 0.002)
    for name, value in (("layers", 2), ("width", 64), ("heads", 4), ("vocabulary", 2000), ("context", 32),
                        ("batch", 8), ("held_out", 64)):
        setattr(given, name, value)
    return given


def flat_gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


class Training:
    def __init__(self, given: argparse.Namespace, spec: str, seed: int, by_exact: bool):
        torch.manual_seed(seed)
        self.given, self.by_exact = given, by_exact
        self.model = ways.wrap(Losses(given), spec)
        parameters = self.model.parameters()
        self.optimizer = (torch.optim.SGD(parameters, lr=given.lr, momentum=0.9) if given.optimizer == "sgd"
                          else torch.optim.AdamW(parameters, lr=given.lr))
        self.handle = ways.attach(self.model, spec, self.optimizer)
        self.data = windows_of(given)
        self.order = torch.randperm(len(self.data[0]), generator=torch.Generator().manual_seed(seed))
        self.norms, self.cosines = [], []

    def step(self, step: int) -> None:
        width = self.given.batch * dist.get_world_size()
        at = step * width + dist.get_rank() * self.given.batch + torch.arange(self.given.batch)
        chosen = self.order[at % len(self.order)]
        inputs, targets = self.data[0][chosen], self.data[1][chosen]
        self.optimizer.zero_grad()
        with self.model.no_sync():
            self.model(inputs, targets).backward()
        exact = flat_gradient(self.model).clone()
        dist.all_reduce(exact)
        exact /= dist.get_world_size()
        self.optimizer.zero_grad()
        self.model(inputs, targets).backward()
        delivered = flat_gradient(self.model)
        if step >= self.given.steps * 2 // 3:
            self.norms.append((delivered.norm() / exact.norm()).item())
            self.cosines.append(functional.cosine_similarity(delivered, exact, dim=0).item())
        norm = exact.norm() if self.by_exact else delivered.norm()
        factor = min(1.0, self.given.clip / (norm.item() + 1e-6))
        for parameter in self.model.parameters():
            parameter.grad.mul_(factor)
        self.optimizer.step()

    def run(self) -> float:
        """The evaluation loss at the end."""
        for step in range(self.given.steps):
            self.step(step)
        share = len(self.data[2]) // dist.get_world_size()
        own = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        with torch.no_grad():
            loss = mean_over_ranks(self.model.module(self.data[2][own], self.data[3][own]).item())
        if self.handle is not None:
            self.handle.close()
        return loss


def mean_and_deviation(values: list) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3f} ± {deviation:.3f}"


def main() -> None:
    given = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        print("| spec | delivered norm over exact | cosine | loss, clipped by the delivered norm | by the exact norm | "
              "the latter minus the former, by seed |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for spec in given.specs:
        norms, cosines, losses = [], [], {False: [], True: []}
        for seed in given.seeds:
            for by_exact in (False, True):
                training = Training(given, spec, seed, by_exact)
                losses[by_exact].append(training.run())
                if not by_exact:
                    norms.append(statistics.fmean(training.norms))
                    cosines.append(statistics.fmean(training.cosines))
        if dist.get_rank() == 0:
            differences = [one - other for one, other in zip(losses[True], losses[False])]
            print(f"| `{spec}` | {statistics.fmean(norms):.2f} | {statistics.fmean(cosines):.2f} | "
                  f"{mean_and_deviation(losses[False])} | {mean_and_deviation(losses[True])} | "
                  f"{mean_and_deviation(differences)} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
