#!/usr/bin/python3
"""How much of a recorded gradient one bit per element can carry.

    bench/loss/sign_share.py FOLDER [--tensors]

FOLDER holds the files of `thinwire train --record N --record-to FOLDER`: gradients, or with --local-steps updates.
The best that signs with one step size can say of a vector x is sign(x) * mean |x|. Its share of x's squared norm is
(mean |x|)^2 / mean x^2: 1 where all elements are of one magnitude, 0.64 for a normal distribution, near 0 where a few
elements have most of the norm. The table has this share with one step size for all elements and with one for each
parameter, of rank 0's vector and of the mean over ranks. --tensors: of each parameter of the last step as well.
"""
import argparse
import glob
import os
import struct
import sys

import numpy


def read_file(path: str) -> list:
    """[(step, {name: values})]; docs/wire_formats.md has the format."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:8] != b"TWGRADS1":
        raise ValueError(f"{path}: not written by thinwire train --record")
    at = 16
    steps = []
    while at < len(data):
        step, count = struct.unpack_from("<QI", data, at)
        at += 12
        tensors = {}
        for _ in range(count):
            (length,) = struct.unpack_from("<I", data, at)
            name = data[at + 4:at + 4 + length].decode()
            kind, _, _, listed = struct.unpack_from("<IQQQ", data, at + 4 + length)
            if kind != 0:
                raise ValueError(f"{path}: '{name}' has rows; record a model without tables, such as transformer")
            at += 4 + length + 28
            tensors[name] = numpy.frombuffer(data, "<f4", listed, at).astype(numpy.float64)
            at += 4 * listed
        at += 8
        steps.append((step, tensors))
    return steps


def share(parts: list) -> float:
    """Of the squared norm of all parts, each with a step size of its own."""
    whole = sum((part * part).sum() for part in parts)
    return sum(len(part) * numpy.abs(part).mean() ** 2 for part in parts) / whole if whole else 1.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tensors", action="store_true")
    given = parser.parse_args()
    try:
        paths = sorted(glob.glob(os.path.join(given.folder, "gradients-rank-*.twg")))
        if not paths:
            raise ValueError(f"{given.folder} holds no gradients-rank-*.twg: write them with thinwire train --record")
        ranks = [read_file(path) for path in paths]
    except (OSError, ValueError) as error:
        print(f"sign_share.py: {error}", file=sys.stderr)
        return 1
    print("| step | one rank, one step size | one rank, one for each parameter | mean, one step size | mean, one for each |")
    print("| --- | --- | --- | --- | --- |")
    for at, (step, own) in enumerate(ranks[0]):
        mean = {name: sum(rank[at][1][name] for rank in ranks) / len(ranks) for name in own}
        cells = [share(parts) for one in (own, mean) for parts in ([numpy.concatenate(list(one.values()))], list(one.values()))]
        print(f"| {step} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    if given.tensors:
        print("\n| parameter | elements | mean magnitude of the mean | share |\n| --- | --- | --- | --- |")
        for name, values in mean.items():
            print(f"| {name} | {len(values):,} | {numpy.abs(values).mean():.2e} | {share([values]):.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
