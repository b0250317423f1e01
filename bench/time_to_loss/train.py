"""One way of synchronizing, trained: started once per rank by run.py, or by any launcher.

    train.py --way WAY --json FILE [OPTION...]

WAY is `plain` (DDP alone), `fp16_hook` or `power_sgd_hook` (torch's), or a spec of Thinwire. The model is a
decoder-only transformer that learns a text word by word, with AdamW, clipping,
a warm-up of the rate and half a cosine.

The clock runs through the steps and stands still while the held-out words are evaluated. It does not count
what comes before the first step: making the model, and Thinwire's register.
"""
import argparse
import math
import os
import statistics
import sys
import time
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path += [HERE, os.path.dirname(HERE), os.path.join(HERE, "..", "..", "examples")]

import settings  # noqa: E402
import ways  # noqa: E402
from ddp_text import Transformer, read_words  # noqa: E402
from trainings import write_json  # noqa: E402

LOCAL_STEPS = 5  # steps without a network, for the share of communication


class Losses(nn.Module):
    """The example's transformer and the loss of what it predicts."""

    def __init__(self, options):
        super().__init__()
        self.model = Transformer(options.vocabulary, options.width, options.heads, options.layers, options.context)

    def forward(self, words, targets):
        return functional.cross_entropy(self.model(words).flatten(0, 1), targets.flatten())


def numbered(path, vocabulary):
    """The text's words as numbers: the most frequent ones from 1 on, 0 for all others."""
    words = read_words(path)
    known = {word: i + 1 for i, (word, _) in enumerate(Counter(words).most_common(vocabulary - 1))}
    return torch.tensor([known.get(word, 0) for word in words])


def windows_of(options):
    """(training inputs, their targets, held-out inputs, their targets), each [n, context]."""
    numbers = numbered(options.text, options.vocabulary)
    count = (len(numbers) - 1) // options.context
    held_out = min(options.held_out, count // 10)
    if count - held_out < options.batch * dist.get_world_size() or held_out < dist.get_world_size():
        sys.exit(f"{options.text or 'the text'}: {len(numbers)} words are too few for --context {options.context} and --batch {options.batch}")
    inputs = numbers[: count * options.context].reshape(count, options.context)
    targets = numbers[1: count * options.context + 1].reshape(count, options.context)
    # Every so many windows one is held out, so that both parts are of the same kind.
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[torch.arange(held_out) * (count // held_out)] = True
    return inputs[~chosen], targets[~chosen], inputs[chosen], targets[chosen]


def adamw(parameters, options):
    """In one pass over memory where this torch has that for CPUs (2.4 and newer)."""
    rates = {"lr": options.lr, "weight_decay": options.weight_decay}
    try:
        return torch.optim.AdamW(parameters, fused=True, **rates)
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(parameters, **rates)


def build(options, warm_up):
    """The model under DDP with its hook, the optimizer, and Thinwire's handle if it has one."""
    torch.manual_seed(options.seed)
    model = ways.wrap(Losses(options), options.way)
    optimizer = adamw(list(model.parameters()), options)
    # As torch's documentation advises for PowerSGD: exact sums in the warm-up, the first tenth of the steps.
    return model, optimizer, ways.attach(model, options.way, optimizer, options.power_sgd_rank, warm_up)


def rate_at(step, steps, warm_up):
    """Of the highest learning rate."""
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def mean_over_ranks(value):
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def takes_mean_as_it_is(way):
    """Whether the mean is not to be clipped, as behind `clip+`, which clips each rank's own gradient."""
    from thinwire import adapter

    try:
        adapter.refuse_clipping(way, 1)
    except ValueError:
        return True
    return False


class Run:
    def __init__(self, options):
        self.options = options
        self.warm_up = max(1, options.steps // 10)
        self.inputs, self.targets, held_inputs, held_targets = windows_of(options)
        share = len(held_inputs) // dist.get_world_size()
        own = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
        self.held = list(zip(held_inputs[own].split(8), held_targets[own].split(8)))
        self.model, self.optimizer, self.handle = build(options, self.warm_up)
        self.clips_mean = self.handle is None or not takes_mean_as_it_is(options.way)
        self.order = torch.randperm(len(self.inputs), generator=torch.Generator().manual_seed(options.seed))
        self.points = []
        self.losses = []
        self.step_seconds = []
        self.seconds = 0.0
        self.interface_bytes = 0

    def batch(self, step):
        width = self.options.batch * dist.get_world_size()
        at = torch.arange(self.options.batch) * dist.get_world_size() + dist.get_rank() + step * width
        chosen = self.order[at % len(self.order)]
        return self.inputs[chosen], self.targets[chosen]

    def step(self, step):
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * rate_at(step, self.options.steps, self.warm_up)
        self.optimizer.zero_grad()
        loss = self.model(*self.batch(step))
        loss.backward()
        if self.clips_mean:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.optimizer.step()
        return loss.item()

    def evaluate(self, step):
        """While the clock stands still."""
        losses = []
        with torch.no_grad():
            for inputs, targets in self.held:
                losses.append((self.model.module(inputs, targets).item(), len(inputs)))
        own = sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
        training = mean_over_ranks(statistics.fmean(self.losses)) if self.losses else None
        held_out = mean_over_ranks(own)
        self.losses = []
        self.points.append({"seconds": self.seconds, "step": step, "training_loss": training, "evaluation_loss": held_out,
                            "interface_bytes": self.interface_bytes or None, "wire_bytes": self.wire_bytes()})

    def wire_bytes(self):
        return self.handle.report()["total"]["wire_bytes_sent"] if self.handle is not None and self.step_seconds else None

    def stretch(self, first, last):
        """Steps first to last - 1, with the clock running."""
        dist.barrier()
        before = ways.sent_bytes()
        begin = time.perf_counter()
        for step in range(first, last):
            started = time.perf_counter()
            self.losses.append(self.step(step))
            self.step_seconds.append(time.perf_counter() - started)
        dist.barrier()
        self.seconds += time.perf_counter() - begin
        if before is not None:
            self.interface_bytes += ways.sent_bytes() - before

    def local_seconds(self):
        """Of a step whose gradients stay where they are: the mean over ranks,
        which share this machine's cores in either case."""
        dist.barrier()
        with self.model.no_sync():
            self.step(self.options.steps - 1)
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(LOCAL_STEPS):
                self.step(self.options.steps - 1)
        return mean_over_ranks((time.perf_counter() - begin) / LOCAL_STEPS)

    def train(self):
        steps = self.options.steps
        marks = [round(i * steps / self.options.evaluations) for i in range(self.options.evaluations + 1)]
        self.evaluate(0)
        for first, last in zip(marks, marks[1:]):
            self.stretch(first, last)
            self.evaluate(last)
            if dist.get_rank() == 0:
                point = self.points[-1]
                print(f"step {last} of {steps}, {point['seconds']:.1f} s, evaluation loss {point['evaluation_loss']:.3f}",
                      file=sys.stderr, flush=True)

    def result(self):
        options = self.options
        made = {"way": options.way, "steps": options.steps, "seed": options.seed, **settings.shared_of(options)}
        made.update(parameters=sum(p.numel() for p in self.model.parameters()), workers=dist.get_world_size(),
                    torch=torch.__version__, fused_optimizer=bool(self.optimizer.defaults.get("fused")),
                    spec=self.handle.report()["spec"] if self.handle else None,
                    step_seconds_median=statistics.median(self.step_seconds),
                    local_seconds=self.local_seconds() if options.way == "plain" else None, points=self.points)
        return made


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--steps", type=int, default=300)
    settings.add_options(parser)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo")
    run = Run(options)
    run.train()
    result = run.result()
    if dist.get_rank() == 0:
        write_json(options.json, result)
    if run.handle is not None:
        run.handle.close()
    dist.barrier()


if __name__ == "__main__":
    main()
