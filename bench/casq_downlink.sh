#!/bin/sh
# What CASQ's way back costs: error of the mean and bytes of one step on 4 workers, for codes that come back
# coded once more (topology=auto), for floats that come back, and for codes from all to all. Both of the
# latter give the paper's mean. Errors are of the synthetic gradient alone, so without error feedback;
# times in the JSON mean nothing.
# usage: bench/casq_downlink.sh [THINWIRE [FOLDER]]
set -eu
thinwire=${1:-build/release/thinwire}
out=${2:-results/papers/casq_downlink}
mkdir -p "$out"
off=feedback=off
systems=
for bits in 2 3; do
  for topology in topology=auto topology=all_gather topology=server:downlink=float32; do
    systems="$systems${systems:+,}casq:bits=$bits:$topology:$off"
  done
done
alq=alq:bits=3:every=1
systems="$systems,qsgd:bits=3:$off,$alq:$off,$alq:zero=off:$off,$alq:zero=off:norm=max:$off"
# Normal values, and values with heavy tails.
for tails in 0 1.5; do
  "$thinwire" bench --sync "$systems" --workers 4 --elements 4000000 --tails $tails --warm-up 0 --steps 1 --json "$out/tails-$tails.json"
done
