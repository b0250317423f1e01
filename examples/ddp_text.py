"""A word language model under DistributedDataParallel, without and with Thinwire: an LSTM whose embedding has
sparse gradients, or a decoder-only transformer whose embedding is its head, too.

    torchrun --nproc_per_node 4 examples/ddp_text.py
    torchrun --nproc_per_node 4 examples/ddp_text.py --model transformer --optimizer adamw --clip 1 \\
        --warm-up 50 --schedule cosine
    python3 -m thinwire.launch -n 4 examples/ddp_text.py   where torchrun does not work (Debian 12's own)
    srun -n 4 python3 examples/ddp_text.py                 under Slurm (docs/clusters.md)

The text is the King James Bible of Debian's packages bible-kjv and bible-kjv-text, or --text FILE. The
LSTM's embedding has a gradient with a row for every word of a batch and none for the thousands of others;
plain DDP gathers the rows of all ranks on all ranks.
"""
import argparse
import collections
import math
import re
import subprocess
import sys

import torch
import torch.distributed as dist
from comparison import Training, add_options, add_training_options, compare, device_of
from torch import nn
from torch.nn import functional

import thinwire


def read_words(path: str):
    if path:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    else:
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=True).stdout
        text = re.sub(r"^\S+ ", "", text, flags=re.MULTILINE)  # the verse's number
    return re.findall(r"[a-z0-9']+|[.,;:?!]", text.lower())


class Language(nn.Module):
    def __init__(self, vocabulary: int, width: int = 128, hidden: int = 128):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, sparse=True)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, words):
        return self.head(self.lstm(self.embedding(words))[0])


class Transformer(nn.Module):
    """As GPT-2 is built (Radford et al. 2019); the head shares the words' table."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, context: int):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(context, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width),
                                            enable_nested_tensor=False)
        nn.init.normal_(self.words.weight, std=0.02)
        # The layers are copies of one: each shall begin with values of its own.
        for parameter in self.layers.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        future = torch.triu(torch.full((context, context), float("-inf")), diagonal=1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, words):
        hidden = self.layers(self.words(words) + self.places, self.future)
        return functional.linear(hidden, self.words.weight)


def make_model(options) -> nn.Module:
    if options.model == "lstm":
        return Language(options.vocabulary)
    return Transformer(options.vocabulary, options.width, options.heads, options.layers, options.context)


def parse():
    """What the command line says of the task, and of the training."""
    parser = argparse.ArgumentParser(description="A word language model under DDP, without and with Thinwire")
    add_options(parser, epochs=1, compare="plain,dense,half,auto")
    parser.add_argument("--model", choices=("lstm", "transformer"), default="lstm")
    for name, default, meaning in (("layers", 4, "layers"), ("width", 128, "elements of a word's vector"),
                                   ("heads", 4, "heads of attention")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"of the transformer: {meaning}")
    parser.add_argument("--context", type=int, default=20, help="words of a window (default %(default)s)")
    parser.add_argument("--text", default="", help="a file to learn from instead of the King James Bible")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=16, help="windows per rank and step")
    add_training_options(parser, sgd_lr=2.0)
    options = parser.parse_args()
    if options.model == "transformer":
        options.sgd_lr = 0.1
    training = Training(parser, options)
    for name in ("layers", "width", "heads", "context", "vocabulary", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1")
    if options.width % options.heads:
        parser.error(f"--width {options.width} is not a multiple of --heads {options.heads}")
    return options, training


def main() -> None:
    options, training = parse()
    torch.set_num_threads(1)
    thinwire.cluster_environment()  # under Slurm: what torchrun would have set
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = device_of(options)
    words = read_words(options.text)
    known = {word: i + 1
             for i, (word, _) in enumerate(collections.Counter(words).most_common(options.vocabulary - 1))}
    numbers = torch.tensor([known.get(word, 0) for word in words])
    context = options.context
    windows = numbers[: (len(numbers) - 1) // context * context].reshape(-1, context)
    targets = numbers[1: windows.numel() + 1].reshape(-1, context)
    held_out = len(windows) // 50
    count = len(windows) - held_out
    if options.limit:
        count = min(count, options.limit)
    if held_out < 1 or count < options.batch * world:
        sys.exit(f"{options.text or 'the text'}: {len(numbers)} words and {count} windows to learn from "
                 f"are too few for --context {context} and --batch {options.batch} on {world} ranks")

    def batches(epoch):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(options.seed + epoch))
        steps = count // (options.batch * world)
        own = order[: steps * options.batch * world].reshape(steps, world, options.batch)[:, rank]
        return [(windows[chosen], targets[chosen]) for chosen in own]

    def loss_of(model, batch):
        return functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    def perplexity(module):
        module.eval()
        with torch.no_grad():
            pairs = list(zip(windows[-held_out:].split(64), targets[-held_out:].split(64)))
            return math.exp(sum(loss_of(module, [part.to(device) for part in pair]).item() * len(pair[0])
                                for pair in pairs) / held_out)

    compare(
        options.compare.split(","), options.rows, options.seed, lambda: make_model(options), batches,
        options.epochs, training, loss_of, perplexity, "perplexity", device,
    )


if __name__ == "__main__":
    main()
