#!/bin/sh
# What signs take on a ring whose sums grow, as planes of bits and in Elias's code, beside gathered ones:
# bytes of one step of normal values; times in the JSON mean nothing.
# usage: bench/sign_rings.sh [THINWIRE [FOLDER]]
set -eu
thinwire=${1:-build/release/thinwire}
out=${2:-results/papers/sign_rings}
mkdir -p "$out"
ring=ef_signsgd:topology=ring
for workers in 4 8 16; do
  "$thinwire" bench --elements 1000000 --workers $workers --warm-up 0 --steps 1 \
    --sync ef_signsgd:feedback=off,$ring:feedback=off,$ring:coding=elias:feedback=off,ssdm:topology=ring:coding=elias,signsgd,signsgd:coding=elias \
    --json "$out/workers-$workers.json"
done
