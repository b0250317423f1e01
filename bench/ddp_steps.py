"""Step times of DistributedDataParallel without Thinwire,
with torch's own hooks and with Thinwire's systems, in one run.

Started once per rank, by bench/ddp_steps on the emulated network or by any launcher:

    ddp_steps.py [--model wide|text|tables|resnet50|transformer] [--device cuda] [--systems A,B,...]
                 [--in-turn] [--steps N] [--rate GBIT] [--json FILE]

Systems:

- `plain` is DDP alone.
- `allreduce_hook`, `fp16_hook` and `power_sgd_hook` are torch's, the last with all parameters in one bucket.
  Over Gloo it ends the process with more buckets: `power_sgd_hook_default_buckets`, to be measured alone.
- Everything else is a spec of Thinwire.

A step is forward, backward with synchronization, and the optimizer. Its time is the median over steps of the
slowest rank's. The interface's bytes count headers of all layers,
acknowledgements and the measurement's own barriers.

The share of compression is the first rank's wall time to compress and to decompress in a step, summed over
buckets, over a step of plain DDP. Ranks on `--device cuda` take devices in turn and may share one. Where
ranks share cores or a device, the share holds what the others did meanwhile.
"""
import argparse
import json
import os
import re
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

sys.dont_write_bytecode = True
sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import ways  # noqa: E402
from trainings import write_json  # noqa: E402

DENSE_MODEL = ("plain,fp16_hook,power_sgd_hook,dense,half,marsit:full_every=100,casq,power_sgd:rank=4,"
               "sketched_sgd:ratio=0.01:p=4:columns_ratio=0.01,top_k:ratio=0.01+zen")
SYSTEMS = {
    "wide": DENSE_MODEL,
    "text": ("plain,fp16_hook,dense,half,marsit:full_every=100,casq,power_sgd:rank=4,"
             "sketched_sgd:ratio=0.01:p=4:columns_ratio=0.01"),
    "tables": "plain," + ",".join(f"rows={rows},dense=dense" for rows in
                                  ("dense", "agsparse", "sparcml", "omnireduce", "sparse_ps", "zen")),
    "resnet50": DENSE_MODEL,
    "transformer": DENSE_MODEL,
}


class Wide(nn.Module):
    """25.1 million parameters and little to compute: the network is what is measured."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(2240, 2240), nn.ReLU())])

    def forward(self, inputs):
        return self.layers(inputs).square().mean()

    @staticmethod
    def batch(_size):
        return torch.randn(2, 2240)


class Text(nn.Module):
    """An embedding of 10,000 words with sparse gradients and the rest of a small language model."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256, sparse=True)
        self.lstm = nn.LSTM(256, 128, batch_first=True)
        self.head = nn.Linear(128, 10_000)

    def forward(self, words):
        return functional.cross_entropy(self.head(self.lstm(self.embedding(words))[0]).flatten(0, 1), words.flatten())

    @staticmethod
    def batch(_size):
        # Words of a text: the i-th most frequent comes about 1/i as often.
        ranks = torch.distributions.Uniform(0.0, 1.0).sample((8, 20))
        return (10_000 ** ranks).long().clamp(max=9_999)


class Tables(nn.Module):
    """A click model as DeepFM has them: 26 fields of words from one table of 200,000 rows, whose gradient is
    sparse, and layers of 0.6 million parameters behind it."""

    FIELDS, WORDS, WIDTH = 26, 200_000, 64

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(self.WORDS, self.WIDTH, sparse=True)
        self.layers = nn.Sequential(nn.Linear(self.FIELDS * self.WIDTH, 320), nn.ReLU(), nn.Linear(320, 128),
                                    nn.ReLU(), nn.Linear(128, 1))

    def forward(self, words):
        clicks = words.sum(1, keepdim=True).remainder(2).float()
        return functional.binary_cross_entropy_with_logits(self.layers(self.words(words).flatten(1)), clicks)

    @staticmethod
    def batch(_size):
        # As in a text, the i-th most frequent word comes about 1/i as often.
        ranks = torch.distributions.Uniform(0.0, 1.0).sample((128, Tables.FIELDS))
        return (Tables.WORDS ** ranks).long().clamp(max=Tables.WORDS - 1)


class Bottleneck(nn.Module):
    """A residual block of three convolutions (He et al. 2016), the stride in the middle one."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        straight = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if straight else nn.Sequential(
            nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, images):
        return functional.relu(self.body(images) + self.shortcut(images))


class ResNet50(nn.Module):
    """25.6 million parameters, images of 224 x 224 in 1,000 classes."""

    BATCH = 128

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                  nn.MaxPool2d(3, 2, padding=1)]
        inputs = 64
        for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
                inputs = 4 * width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))

    def forward(self, batch):
        images, labels = batch
        return functional.cross_entropy(self.layers(images), labels)

    @staticmethod
    def batch(size):
        return torch.randn(size, 3, 224, 224), torch.randint(0, 1000, (size,))


class Transformer(nn.Module):
    """A language model of 24 layers of width 1,024 and 354 million parameters. The head shares its 50,257
    words with the embedding."""

    BATCH = 4
    LENGTH = 512

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50_257, 1024)
        self.positions = nn.Parameter(torch.randn(self.LENGTH, 1024) * 0.02)
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
        future = torch.triu(torch.full((self.LENGTH, self.LENGTH), float("-inf")), diagonal=1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, words):
        hidden = self.layers(self.words(words) + self.positions, self.future)
        logits = functional.linear(hidden[:, :-1], self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())

    @staticmethod
    def batch(size):
        return torch.randint(0, 50_257, (size, Transformer.LENGTH))


def build(kind, system, device):
    """The model under DDP, and Thinwire's handle if it has one."""
    torch.manual_seed(1)
    model = ways.wrap(kind().to(device), system)
    return model, ways.attach(model, system)


def to_device(batch, device):
    return tuple(part.to(device) for part in batch) if isinstance(batch, tuple) else batch.to(device)


def wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Measurement:
    """One system's model, whose steps are timed one by one."""

    def __init__(self, kind, system, device, batch_size):
        self.kind, self.system, self.device, self.batch_size = kind, system, device, batch_size
        self.model, self.handle = build(kind, system, device)
        torch.manual_seed(1000 + dist.get_rank())  # every rank has examples of its own
        self.before = {}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.times, self.bytes = [], []

    def step(self, counts):
        batch = to_device(self.kind.batch(self.batch_size), self.device)
        wait_for(self.device)
        dist.barrier()
        before = ways.sent_bytes()
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.model(batch).backward()
        self.optimizer.step()
        wait_for(self.device)
        slowest = torch.tensor([time.perf_counter() - start])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if not counts:
            self.before = self.totals()
            return
        self.times.append(slowest.item())
        if before is not None:
            self.bytes.append(ways.sent_bytes() - before)

    def totals(self):
        return self.handle.report()["total"] if self.handle is not None else {}

    def result(self):
        result = {"system": self.system, "seconds_median": statistics.median(self.times), "seconds_min": min(self.times),
                  "steps": len(self.times)}
        if self.bytes:
            result["interface_bytes_sent"] = sum(self.bytes) // len(self.bytes)
        if self.handle is not None:
            report = self.handle.report()
            result["spec"] = report["spec"]
            for key in ("wire_bytes_sent", "raw_bytes"):
                result[key] = report["last_step"][key]
            for key in ("seconds_compress", "seconds_wait", "seconds_decompress"):
                result[key] = (report["total"][key] - self.before.get(key, 0)) / len(self.times)
            result["compressed_on"] = sorted({bucket["compressed_on"] for bucket in report["buckets"]})
            self.handle.close()
        return result


def measure_each(systems, steps, warm_up, make):
    """One system after the other. One that fails is told;
    what comes after it over the same connections may fail, too."""
    for system in systems:
        try:
            one = make(system)
            for step in range(warm_up + steps):
                one.step(step >= warm_up)
            yield one.result()
            one = None  # before the next needs its memory
        except RuntimeError as error:
            yield {"system": system, "failure": str(error).splitlines()[0]}


def measure_in_turn(systems, steps, warm_up, make):
    """A step of each, and again: what else the machine does meets all of them."""
    all_of_them = [make(system) for system in systems]
    for step in range(warm_up + steps):
        for one in all_of_them:
            one.step(step >= warm_up)
    for one in all_of_them:
        yield one.result()


def cells(one, plain, rate):
    """A system's row. plain: plain DDP's seconds, rate: the links' Gbit/s; None and 0: unknown."""
    if "failure" in one:
        return [f"failed: {one['failure']}"] + [""] * 6
    sent, interface = one.get("wire_bytes_sent"), one.get("interface_bytes_sent")
    compression = one["seconds_compress"] + one["seconds_decompress"] if "seconds_compress" in one else None
    return [
        f"{1e3 * one['seconds_median']:,.1f}",
        f"{one['seconds_median'] / plain:.3f}" if plain else "",
        f"{compression / plain:.3f}" if plain and compression is not None else "",
        " ".join(one.get("compressed_on", [])),
        f"{sent:,}" if sent else "",
        f"{interface:,}" if interface else "",
        f"{8e-6 * (sent or interface) / rate:,.1f}" if (sent or interface) and rate else "",
    ]


def print_table(results, rate):
    plain = next((one["seconds_median"] for one in results if one["system"] == "plain" and "failure" not in one), None)
    head = ["system", "step, ms", "of plain DDP", "compression, of plain's step", "on",
            "sent per step by Thinwire's count", "by the interface's", "at the link's rate, ms"]
    rows = [[f"`{one['system']}`"] + cells(one, plain, rate) for one in results]
    for row in [head, ["---"] * len(head)] + rows:
        print("| " + " | ".join(row) + " |")


def split_systems(text):
    """At commas, but not within a pair of rows=SPEC,dense=SPEC."""
    return re.split(",(?!dense=)", text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SYSTEMS, default="wide")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=0,
                        help="examples per rank, for resnet50 (default 128) and transformer (default 4)")
    parser.add_argument("--systems", default="")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--in-turn", action="store_true",
                        help="a step of each system, and again, instead of one system after the other")
    parser.add_argument("--rate", type=float, default=0, help="Gbit/s of the links, for the bound")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first, world = dist.get_rank() == 0, dist.get_world_size()
    kind = {"wide": Wide, "text": Text, "tables": Tables, "resnet50": ResNet50, "transformer": Transformer}[options.model]
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    batch_size = options.batch or getattr(kind, "BATCH", 0)
    parameters = sum(parameter.numel() for parameter in kind().parameters())
    results = []
    measure = measure_in_turn if options.in_turn else measure_each
    for result in measure(split_systems(options.systems or SYSTEMS[options.model]), options.steps, options.warm_up,
                          lambda system: Measurement(kind, system, device, batch_size)):
        results.append(result)
        if first:
            print(json.dumps(result), flush=True)
    if not first:
        return
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"\n{options.model}, {parameters:,} parameters, {world} ranks, {where}, torch {torch.__version__}\n")
    print_table(results, options.rate)
    if options.json:
        write_json(options.json, {"model": options.model, "parameters": parameters, "workers": world, "device": where,
                                  "torch": torch.__version__, "results": results}, indent=1)


if __name__ == "__main__":
    main()
