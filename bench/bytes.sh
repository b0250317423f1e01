#!/usr/bin/env bash
# Measured wire bytes beside the formula, for Marsit's one-bit steps and a full one, over worlds,
# topologies and sizes.
#   bench/bytes.sh [THINWIRE]     prints a Markdown table; fails if a figure differs
set -euo pipefail
thinwire=${1:-build/release/thinwire}
[ -x "$thinwire" ] || { echo "bench/bytes.sh: $thinwire is not there: build it, or give its path" >&2; exit 1; }
echo "| topology | W | d | formula | frame headers | sent (most of a rank) |"
echo "| --- | --- | --- | --- | --- | --- |"
for topology in ring torus; do
  for workers in 2 3 4 5 6 7 8; do
    for elements in 1 63 1000 25000000; do
      "$thinwire" bench --sync "marsit:full_every=0:topology=$topology" --elements "$elements" --workers "$workers" \
        --steps 1 --json - | /usr/bin/python3 -c "
import json, sys
r = json.load(sys.stdin)[0]
assert r['ranks_agree'] and r['wire_bytes_sent_max'] <= r['wire_bytes_formula'] + r['frame_header_bytes_max']
print(f\"| $topology | $workers | $elements | {r['wire_bytes_formula']:.0f} | {r['frame_header_bytes_max']:.0f} | {r['wire_bytes_sent_max']:.0f} |\")"
    done
  done
done
