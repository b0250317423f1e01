"""Step times of DistributedDataParallel without Thinwire, with torch's own hooks and with Thinwire's systems, in one run.

Started once per rank, by bench/ddp_steps on the emulated network or by any launcher:

    ddp_steps.py [--model wide|text] [--systems A,B,...] [--steps N] [--rate GBIT] [--json FILE]

Systems: `plain` is DDP alone, `fp16_hook` and `power_sgd_hook` are torch's (the latter with all parameters in one bucket: over Gloo it
ends the process with more: `power_sgd_hook_default_buckets`, to be measured alone), everything else is a spec of Thinwire. A step is forward, backward with
synchronization, and the optimizer; its time is the median over steps of the slowest rank's. The interface's bytes count headers of all
layers, acknowledgements and the measurement's own barriers.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import thinwire

SYSTEMS = {
    "wide": "plain,fp16_hook,power_sgd_hook,dense,half,marsit:full_every=100,casq,power_sgd:rank=4,"
    "sketched_sgd:ratio=0.01:p=4:columns_ratio=0.01,top_k:ratio=0.01+zen",
    "text": "plain,fp16_hook,dense,half,marsit:full_every=100,casq,power_sgd:rank=4,sketched_sgd:ratio=0.01:p=4:columns_ratio=0.01",
}


class Wide(nn.Module):
    """25.1 million parameters and little to compute: the network is what is measured."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(5) for layer in (nn.Linear(2240, 2240), nn.ReLU())])

    def forward(self, inputs):
        return self.layers(inputs).square().mean()

    @staticmethod
    def batch():
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
    def batch():
        # Words of a text: the i-th most frequent comes about 1/i as often.
        ranks = torch.distributions.Uniform(0.0, 1.0).sample((8, 20))
        return (10_000 ** ranks).long().clamp(max=9_999)


def build(kind, system):
    """The model under DDP, and Thinwire's handle if it has one."""
    torch.manual_seed(1)
    one_bucket = system == "power_sgd_hook"
    first_limit = dist._DEFAULT_FIRST_BUCKET_BYTES
    if one_bucket:
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40
    try:
        model = DistributedDataParallel(kind(), bucket_cap_mb=100_000 if one_bucket else 25)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = first_limit
    if system == "fp16_hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif system.startswith("power_sgd_hook"):
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif system != "plain":
        return model, thinwire.register(model, system)
    return model, None


def sent_bytes():
    """What this host's interface has sent since it is up; None where ranks share one."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if not name or name == "lo":
        return None
    with open(f"/sys/class/net/{name}/statistics/tx_bytes", encoding="ascii") as file:
        return int(file.read())


def measure(kind, system, steps, warm_up):
    model, handle = build(kind, system)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times = []
    before = None
    for step in range(warm_up + steps):
        batch = kind.batch()
        dist.barrier()
        if step == warm_up:
            before = sent_bytes()
        start = time.perf_counter()
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        slowest = torch.tensor([time.perf_counter() - start])
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if step >= warm_up:
            times.append(slowest.item())
    result = {"system": system, "seconds_median": statistics.median(times), "seconds_min": min(times), "steps": steps}
    if before is not None:
        result["interface_bytes_sent"] = (sent_bytes() - before) // steps
    if handle is not None:
        report = handle.report()
        result["spec"] = report["spec"]
        for key in ("wire_bytes_sent", "raw_bytes", "seconds_compress", "seconds_wait", "seconds_decompress"):
            result[key] = report["last_step"][key]
        handle.close()
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SYSTEMS, default="wide")
    parser.add_argument("--systems", default="")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=6)
    parser.add_argument("--rate", type=float, default=0, help="Gbit/s of the links, for the bound")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first, world = dist.get_rank() == 0, dist.get_world_size()
    kind = {"wide": Wide, "text": Text}[options.model]
    parameters = sum(parameter.numel() for parameter in kind().parameters())
    results = []
    for system in (options.systems or SYSTEMS[options.model]).split(","):
        try:
            results.append(measure(kind, system, options.steps, options.warm_up))
        except RuntimeError as error:
            # Every rank fails; what comes after it over the same connections would too.
            results.append({"system": system, "failure": str(error).splitlines()[0]})
        if first:
            print(json.dumps(results[-1]), flush=True)
    if not first:
        return
    plain = next((one["seconds_median"] for one in results if one["system"] == "plain" and "failure" not in one), None)
    print(f"\n{options.model}, {parameters:,} parameters, {world} ranks, torch {torch.__version__}\n")
    print("| system | step, ms | of plain DDP | sent per step by Thinwire's count | by the interface's | at the link's rate, ms |\n"
          "| --- | --- | --- | --- | --- | --- |")
    for one in results:
        if "failure" in one:
            print(f"| `{one['system']}` | failed: {one['failure']} | | | | |")
            continue
        sent, interface = one.get("wire_bytes_sent"), one.get("interface_bytes_sent")
        bound = f"{8e-6 * (sent or interface) / options.rate:,.1f}" if (sent or interface) and options.rate else ""
        ratio = f"{one['seconds_median'] / plain:.3f}" if plain else ""
        print(f"| `{one['system']}` | {1e3 * one['seconds_median']:,.1f} | {ratio} | {f'{sent:,}' if sent else ''} | {f'{interface:,}' if interface else ''} | {bound} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"model": options.model, "parameters": parameters, "workers": world, "torch": torch.__version__, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
