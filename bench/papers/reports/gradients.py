#!/usr/bin/python3
"""What recorded gradients are like, as JSON: their distribution, noise, overlap, densification and skew, and
how evenly owners share them.

Usage: gradients.py distribution FOLDER LAST
       gradients.py noise FOLDER
       gradients.py sparsity FOLDER [TOP]
       gradients.py thresholds FOLDER APART [TOP]

FOLDER holds what `thinwire train --record` wrote. LAST: only the last so many of its steps. TOP: this share
of each rank's dense elements, the largest ones, are its non-zeros; without it the rows of tables are, in each
table's order and again by falling frequency. APART: how many steps lie between two recorded ones.
"""
import glob
import json
import os
import struct
import sys

import numpy

# Magnitudes are counted in bins of a quarter of a power of ten, relative to the largest.
EDGES = [10.0 ** (exponent / 4) for exponent in range(-40, 1)]
PARTITIONS = 8
SKEW_PARTITIONS = (8, 16, 32, 64, 128)
OWNERS = 16


class Tensor:
    """A dense gradient, or the rows of a table that a rank touched."""

    def __init__(self, name: str, rows: int, width: int, indices, values):
        self.name, self.rows, self.width, self.indices, self.values = name, rows, width, indices, values


def read(path: str) -> list:
    """Tensors by step; docs/wire_formats.md has the layout."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:8] != b"TWGRADS1":
        raise ValueError(f"{path} does not begin with TWGRADS1: give what `thinwire train --record` wrote")
    at = 16
    steps = []
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at + 8)
        at += 12
        tensors = []
        for _ in range(count):
            (length,) = struct.unpack_from("<I", data, at)
            name = data[at + 4:at + 4 + length].decode()
            kind, rows, width, listed = struct.unpack_from("<IQQQ", data, at + 4 + length)
            at += 32 + length
            indices = None
            if kind == 1:
                indices = numpy.frombuffer(data, "<u4", listed, at)
                at += 4 * listed
            tensors.append(Tensor(name, rows, width, indices, numpy.frombuffer(data, "<f4", listed * width, at)))
            at += 4 * listed * width
        at += 8  # the step's hash
        steps.append(tensors)
    return steps


def ranks_in(folder: str) -> list:
    """Of each rank its steps."""
    paths = sorted(glob.glob(os.path.join(folder, "*.twg")), key=lambda path: int(path.rsplit("-", 1)[1][:-4]))
    if not paths:
        raise ValueError(f"{folder} holds no gradients-rank-R.twg")
    return [read(path) for path in paths]


def distribution(folder: str, last: int) -> list:
    """Of each step: shares of the elements, and of the sum of squares, by magnitude over the largest one of
    their tensor."""
    found = []
    for number, tensors in enumerate(ranks_in(folder)[0][-last:]):
        counts = numpy.zeros(len(EDGES) + 1)
        squares = numpy.zeros(len(EDGES) + 1)
        elements = 0
        for tensor in tensors:
            magnitudes = numpy.abs(tensor.values.astype(numpy.float64))
            largest = magnitudes.max(initial=0)
            elements += magnitudes.size
            if largest == 0:
                counts[0] += magnitudes.size
                continue
            bins = numpy.searchsorted(EDGES, magnitudes / largest * (1 - 1e-12))
            counts += numpy.bincount(bins, minlength=len(counts))
            squares += numpy.bincount(bins, magnitudes ** 2, minlength=len(squares))
        found.append({"step": number, "elements": elements, "upper_edges": EDGES, "shares": list(counts / elements),
                      "shares_of_squares": list(squares / squares.sum())})
    return found


def noise(folder: str) -> list:
    """Of each step: how far stochastic gradients are from the gradient that they stand for, as a squared
    distance over their own square; of one rank's, and of the mean over ranks. From the variance over
    ranks."""
    found = []
    for tensors_by_rank in zip(*ranks_in(folder)):
        own = numpy.stack([numpy.concatenate([tensor.values for tensor in tensors]) for tensors in tensors_by_rank]).astype(numpy.float64)
        ranks = len(own)
        middle = own.mean(axis=0)
        variance = ((own - middle) ** 2).sum() / (ranks - 1)
        found.append({"of_one": float(variance / (own ** 2).sum(axis=1).mean()), "of_mean": float(variance / ranks / (middle ** 2).sum())})
    return found


def non_zeros(tensors: list, top: float) -> list:
    """(indices, places) of each table, or of all dense tensors as one."""
    if top > 0:
        values = numpy.abs(numpy.concatenate([tensor.values for tensor in tensors if tensor.indices is None]))
        kept = max(1, round(top * values.size))
        return [(numpy.sort(numpy.argpartition(values, values.size - kept)[values.size - kept:]), values.size)]
    return [(numpy.unique(tensor.indices), tensor.rows) for tensor in tensors if tensor.indices is not None]


def joined(parts: list) -> tuple:
    """Tables one behind the other."""
    offset = 0
    indices = []
    for own, places in parts:
        indices.append(own.astype(numpy.int64) + offset)
        offset += places
    return numpy.concatenate(indices), offset


def shares_of_partitions(parts: list, partitions: int = PARTITIONS):
    """Of each partition its share of the non-zeros: each tensor is cut by itself, and the mean over tensors
    counts."""
    counted = [numpy.bincount(indices.astype(numpy.int64) * partitions // places, minlength=partitions) for indices, places in parts]
    return numpy.mean([own / own.sum() for own in counted], axis=0)


def skewness(parts: list, partitions: int) -> float:
    """Zen's Definition 5, the mean over tensors."""
    return float(numpy.mean([partitions * shares_of_partitions([part], partitions).max() for part in parts]))


def by_frequency(steps_of_ranks: list) -> list:
    """Of each tensor the place that each of its rows would have if it were sorted by how often rows were
    used."""
    places = []
    for number, (_, size) in enumerate(steps_of_ranks[0][0]):
        used = numpy.zeros(size, numpy.int64)
        for steps in steps_of_ranks:
            for parts in steps:
                used[parts[number][0]] += 1
        own = numpy.empty(size, numpy.int64)
        own[numpy.argsort(-used, kind="stable")] = numpy.arange(size)
        places.append(own)
    return places


def sparsity(folder: str, top: float) -> dict:
    """Over steps: overlap ratios of pairs of ranks and densification of 2, 4, ... ranks, all tables together;
    shares by partition and skewness ratios by number of partitions, of rank 0."""
    by_rank = [[non_zeros(tensors, top) for tensors in steps] for steps in ranks_in(folder)]
    sorted_places = by_frequency(by_rank)
    places = joined(by_rank[0][0])[1]
    steps = len(by_rank[0])
    overlaps, density, as_listed, sorted_shares, skews = [], [], [], [], []
    counts = [count for count in (2, 4, 8, 16, 32) if count <= len(by_rank)]
    gammas = {count: [] for count in counts}
    for step in range(steps):
        sets = [joined(own[step])[0] for own in by_rank]
        size = numpy.mean([one.size for one in sets])
        density.append(size / places)
        for a in range(0, len(sets) - 1, 2):
            common = numpy.intersect1d(sets[a], sets[a + 1], assume_unique=True).size
            overlaps.append(common / min(sets[a].size, sets[a + 1].size))
        for count in counts:
            union = numpy.unique(numpy.concatenate(sets[:count])).size
            gammas[count].append(union / numpy.mean([one.size for one in sets[:count]]))
        parts = by_rank[0][step]
        as_listed.append(shares_of_partitions(parts))
        sorted_shares.append(shares_of_partitions([(own[indices], size) for own, (indices, size) in zip(sorted_places, parts)]))
        skews.append([skewness(parts, count) for count in SKEW_PARTITIONS])
    return {"places": places, "workers": len(by_rank), "steps": steps, "top": top, "density": float(numpy.mean(density)),
            "overlaps": overlaps, "gammas": {str(count): [float(min(v)), float(numpy.mean(v)), float(max(v))]
                                             for count, v in gammas.items()},
            "partitions": [float(x) for x in numpy.mean(as_listed, axis=0)],
            "partitions_by_frequency": [float(x) for x in numpy.mean(sorted_shares, axis=0)],
            "skewness_ratios": {str(count): float(x) for count, x in zip(SKEW_PARTITIONS, numpy.mean(skews, axis=0))}}


def push_imbalance(sets: list, owners_of) -> float:
    """Zen's Definition 8: the largest share of any rank and owner, times the number of owners."""
    return max(OWNERS * numpy.bincount(owners_of(own), minlength=OWNERS).max() / own.size for own in sets)


def thresholds(folder: str, apart: int, top: float) -> dict:
    """Imbalance of a push to 16 owners. By age: owners by cuts of the union of a step so much earlier. By
    step: cuts of the first step's union; the same of its pull; even slices; a random permutation for a
    hash."""
    by_rank = [[joined(non_zeros(tensors, top)) for tensors in steps] for steps in ranks_in(folder)]
    places = by_rank[0][0][1]
    by_step = [[own[step][0] for own in by_rank] for step in range(len(by_rank[0]))]
    unions = [numpy.unique(numpy.concatenate(sets)) for sets in by_step]
    cuts = [union[[union.size * owner // OWNERS for owner in range(1, OWNERS)]] for union in unions]
    random = numpy.random.Generator(numpy.random.Philox(1))
    by_age, first, pull, slices, hashed = {}, [], [], [], []
    for now, sets in enumerate(by_step):
        for then in range(now + 1):
            found = push_imbalance(sets, lambda own: numpy.searchsorted(cuts[then], own, side="right"))
            by_age.setdefault(apart * (now - then), []).append(found)
            if then == 0:
                first.append(found)
        shares = numpy.bincount(numpy.searchsorted(cuts[0], unions[now], side="right"), minlength=OWNERS)
        pull.append(float(OWNERS * shares.max() / unions[now].size))
        slices.append(push_imbalance(sets, lambda own: own * OWNERS // places))
        permutation = random.permutation(places)
        hashed.append(push_imbalance(sets, lambda own: permutation[own] * OWNERS // places))
    return {"places": places, "workers": len(by_rank), "owners": OWNERS, "apart": apart, "top": top,
            "non_zeros": float(numpy.mean([own.size for sets in by_step for own in sets])),
            "by_age": {str(age): [float(x) for x in found] for age, found in by_age.items()},
            "first": [float(x) for x in first], "first_pull": pull,
            "slices": [float(x) for x in slices], "hash": [float(x) for x in hashed]}


def main() -> int:
    if len(sys.argv) == 4 and sys.argv[1] == "distribution":
        result = distribution(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) == 3 and sys.argv[1] == "noise":
        result = noise(sys.argv[2])
    elif len(sys.argv) in (3, 4) and sys.argv[1] == "sparsity":
        result = sparsity(sys.argv[2], float((sys.argv[3:] + ["0"])[0]))
    elif len(sys.argv) in (4, 5) and sys.argv[1] == "thresholds":
        result = thresholds(sys.argv[2], int(sys.argv[3]), float((sys.argv[4:] + ["0"])[0]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    json.dump(result, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
