#!/usr/bin/python3
"""How much of a recorded gradient one bit per element can carry.

    bench/loss/sign_share.py FOLDER

FOLDER holds the files of `thinwire train --record N --record-to FOLDER`: gradients, or with --local-steps
updates. The best that signs with one step size can say of a vector x is sign(x) * mean |x|. Its share of x's
squared norm is (mean |x|)^2 / mean x^2: 1 where all elements are of one magnitude, 0.64 for a normal
distribution, near 0 where a few elements have most of the norm. The table has this share of rank 0's vector
and of the mean over ranks, with one step size for all elements and with one for each parameter.

Marsit does not send the mean's signs: each bit is the sign of a rank drawn at random. With s the mean of the
ranks' signs, such a step with its best size leaves all of the mean m's squared norm but (s . m)^2 / (n
|m|^2), on average over the draws. That is the column "mean, drawn signs",
with one step size for each parameter.
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


def share(parts: list, signs: list) -> float:
    """Of the squared norm of all parts, by signs or their expectation,
    each part with a step size of its own."""
    whole = sum((part * part).sum() for part in parts)
    return sum((part * sign).sum() ** 2 / len(part) for part, sign in zip(parts, signs)) / whole if whole else 1.0


def shares_of_step(ranks: list) -> list:
    """ranks: {name: values} of each."""
    own = list(ranks[0].values())
    mean = [sum(rank[name] for rank in ranks) / len(ranks) for name in ranks[0]]
    drawn = [sum(numpy.sign(rank[name]) for rank in ranks) / len(ranks) for name in ranks[0]]
    shares = []
    for parts in (own, mean):
        together = [numpy.concatenate(parts)]
        shares += [share(one, [numpy.sign(part) for part in one]) for one in (together, parts)]
    return shares + [share(mean, drawn)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    given = parser.parse_args()
    try:
        paths = sorted(glob.glob(os.path.join(given.folder, "gradients-rank-*.twg")))
        if not paths:
            raise ValueError(f"{given.folder} holds no gradients-rank-*.twg: write them with thinwire train --record")
        ranks = [read_file(path) for path in paths]
    except (OSError, ValueError) as error:
        print(f"sign_share.py: {error}", file=sys.stderr)
        return 1
    print("| step | rank 0, one size | rank 0, one for each | mean, one size | mean, one for each | mean, drawn signs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for at, (step, _) in enumerate(ranks[0]):
        cells = shares_of_step([rank[at][1] for rank in ranks])
        print(f"| {step} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
