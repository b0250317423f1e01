#!/bin/sh
# What sparse systems bring at 4 to 128 workers, computed on the virtual network: every figure of
# docs/gain.md's section on it. Deterministic but for the runs that measure this machine's codecs.
# usage: bench/simulate.sh [THINWIRE [FOLDER]]
set -eu
thinwire=${1:-build/release/thinwire}
out=${2:-results/simulate}
mkdir -p "$out"
link=25Gbit:20us
zen=zen:scheme=push_pull
sparse=$zen,sparcml,agsparse,omnireduce,sparse_ps

# run NAME OPTION...
run() {
  name=$1
  shift
  echo "== $name: thinwire simulate $*"
  # The second step counts: no system here takes longer to settle, and the figures are this step's gradients'.
  "$thinwire" simulate "$@" --warm-up 1 --json "$out/$name.json"
}

# The paper's models at 16 workers: 4 million elements stand for the model's (elements * scale). Hot rows
# scattered, and side by side as in an embedding sorted by frequency.
run lstm --sync $sparse --workers 16 --elements 4000000 --scale 101.5 --density 0.0113 --gamma 4 --link $link
run lstm-contiguous --sync $sparse --workers 16 --elements 4000000 --scale 101.5 --density 0.0113 --gamma 4 --contiguous --link $link
# The same with embedding rows of 64, which are blocks to OmniReduce.
run lstm-rows --sync $sparse --workers 16 --elements 4096000 --scale 99 --density 0.0113 --gamma 4 --row-width 64 --link $link
run deepfm --sync $sparse --workers 16 --elements 4000000 --scale 53.5 --density 0.028 --gamma 4 --link $link
run top5 --sync $sparse --workers 16 --elements 4000000 --scale 8 --density 0.05 --gamma 4 --link $link

# Figure 8: NMT, one skew for every number of workers, so that unions grow as they do.
run nmt --sync zen:profile_steps=1,$zen,sparcml,agsparse,sparse_ps --workers 4,8,16,32,64,128 --elements 2000000 --scale 56 --density 0.0247 --zipf 1 \
  --link $link --plot "$out/nmt.png"

# What the paper's Figure 8 shows of Zen: Balanced Parallelism with lists both ways.
run nmt-lists --sync $zen:pull=list,$zen --workers 128 --elements 2000000 --scale 56 --density 0.0247 --zipf 1 --link $link

# Where Zen stops paying.
run density --sync $sparse --workers 16 --elements 1000000 --scale 100 --density 0.001,0.003,0.01,0.03,0.1,0.2,0.4 --gamma 2 --link $link \
  --plot "$out/density.png"
run gamma --sync $zen,sparcml,agsparse,sparse_ps --workers 16 --elements 1000000 --scale 100 --density 0.05 --gamma 1,2,4,8,11 --link $link \
  --plot "$out/gamma.png"

# S2 Reducer on blocks of 256, one in 32; 25 million elements (ResNet-50).
run s2 --sync s2_reducer:lambda=0.5,s2_reducer:lambda=2,s2_reducer:lambda=exact,$zen,sparcml,agsparse,omnireduce --workers 16 \
  --elements 4194304 --scale 6 --row-width 256 --density 0.03125 --gamma 8 --link 1Gbit:50us
run s2-gamma --sync s2_reducer:lambda=0.5,s2_reducer:lambda=exact,$zen,sparcml,omnireduce --workers 16 --elements 1048576 --scale 24 --row-width 256 \
  --density 0.03125 --gamma 1,2,4,8,12 --link 1Gbit:50us --plot "$out/s2-gamma.png"

# The codecs' own time, on this machine's core.
run lstm-codec --sync $sparse --workers 16 --elements 4000000 --scale 101.5 --density 0.0113 --gamma 4 --link $link --codec measured
run top5-codec --sync $sparse --workers 16 --elements 4000000 --scale 8 --density 0.05 --gamma 4 --link $link --codec measured
for gbit in 1 10 100; do
  run "lstm-codec-${gbit}gbit" --sync $sparse --workers 16 --elements 4000000 --scale 101.5 --density 0.0113 --gamma 4 \
    --link ${gbit}Gbit:20us --codec measured
done
