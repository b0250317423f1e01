# What the experiments of this folder share; each sources it, and has the name of its file. They rerun tables
# and figures of the papers behind Thinwire's systems, smaller by default:
# Fashion-MNIST, a small network, few epochs.
#
#   bench/papers/NAME [--full DIR] [--thinwire PATH] [--results DIR] [--seeds 1,2,3] [--epochs N] [--limit N]
#                     [--workers N] [--steps N] [--note TEXT] [--redraw]
#
#   --full DIR   CIFAR-10 in its binary version lies in DIR: train the paper's kind of model for more epochs
#                (hours)
#   --limit N    use only the first N training examples
#   --steps N    recorded steps, where gradients are replayed
#   --redraw     run nothing: table and plot anew from the results that are there,
#                which the other options must describe
#
# Results: DIR/NAME/*.json as `thinwire` wrote them, table.md and plot.png (default results/papers).
# Those that were there stay until all new ones are. Until then these lie in DIR/NAME/.partial.

set -euo pipefail
from=$PWD
experiment=$(basename "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# Paths are meant from where the command was given.
absolute() { case $1 in /*) echo "$1" ;; *) echo "$from/$1" ;; esac; }

thinwire=
results=results/papers
seeds=1,2,3
full=
note=
epochs=
limit=
workers=4
steps=
redraw=
options=()  # that the results depend on, as given
while [ $# -gt 0 ]; do
  [ "$1" = --redraw ] && { redraw=1; shift; continue; }
  case $1 in
    -h | --help)
      sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$(absolute "$0")"
      echo
      sed -n '/^#   /,${/^#/!q;s/^# \{0,1\}//p}' bench/papers/common.sh
      exit 0 ;;
  esac
  [ $# -gt 1 ] || { echo "$experiment: $1 needs a value, or is no option; -h lists those there are" >&2; exit 2; }
  case $1 in
    --full) full=$(absolute "$2") ;;
    --thinwire) thinwire=$(absolute "$2") ;;
    --results) results=$(absolute "$2") ;;
    --seeds) seeds=$2 ;;
    --epochs) epochs=$2 ;;
    --limit) limit=$2 ;;
    --workers) workers=$2 ;;
    --steps) steps=$2 ;;
    --note) note=$2 ;;
    *) echo "$experiment: unknown option $1; -h lists those there are" >&2; exit 2 ;;
  esac
  case $1 in --thinwire | --results | --note) ;; *) options+=("$1" "$2") ;; esac
  shift 2
done
if ! [[ $seeds =~ ^[0-9]+(,[0-9]+)*$ ]]; then
  echo "$experiment: --seeds $seeds: numbers separated by commas are needed, such as 1,2,3" >&2
  exit 2
fi
if [ -z "$thinwire" ]; then
  for thinwire in build/quickstart/thinwire build/release/thinwire; do [ -x "$thinwire" ] && break; done
fi
[ -n "$redraw" ] || [ -x "$thinwire" ] || { echo "$experiment: $thinwire is not there: run ./quickstart, or give --thinwire PATH" >&2; exit 1; }

results_of=$results/$experiment
out=$results_of
if [ -z "$redraw" ]; then
  out=$results_of/.partial
  rm -rf "$out"
  mkdir -p "$out"
  trap 'rmdir "$results_of/.partial" 2>/dev/null || true' EXIT
fi
# optional=(VARIABLE=PART ...), set before this file is sourced: parts whose data VARIABLE names. Without it
# they are not made, and stay as they are.
kept=()
for one in ${optional[@]+"${optional[@]}"}; do
  variable=${one%%=*}
  [ -n "${!variable:-}" ] || kept+=(! -name "${one#*=}@*")
done
given_epochs=$epochs given_limit=$limit

# sizes SMALL_EPOCHS SMALL_LIMIT FULL_MODEL FULL_EPOCHS: sets $model, $data, $epochs, $limit and $training,
# the options that every training of the experiment has. What was given on the command line stays.
sizes() {
  if [ -n "$full" ]; then
    data=cifar10:$full model=$3 batch=32 lr=0.1 momentum=0.9
    epochs=${epochs:-$4} limit=${limit:-0}
  else
    # The largest of 0.05, 0.1, 0.2, 0.4, 0.8 at which dense trains, and its best:
    # at smaller ones even noise looks like progress.
    data=fashion-mnist model=cnn batch=16 lr=0.4 momentum=0
    epochs=${epochs:-$1} limit=${limit:-$2}
  fi
  training=(--data "$data" --model "$model" --epochs "$epochs" --limit "$limit" --seeds "$seeds")
}

# run PART COMMAND OPTION...: one call of thinwire, whose results become PART.json. A training in which every
# system diverged is a result too; anything else that fails ends the experiment.
run() {
  local part=$1 status=0
  [ -n "$redraw" ] && return
  shift
  echo "== $experiment, $part: thinwire $*"
  "$thinwire" "$@" --json "$out/$part.json" || status=$?
  [ $status -eq 0 ] && return
  if [ "$1" = train ] && [ $status -eq 1 ] && grep -qE '"failure": ?"diverged' "$out/$part.json" 2>/dev/null; then
    echo "== $experiment, $part: nothing here trains; that is the result"
    return
  fi
  echo "$experiment: $part failed with exit status $status" >&2
  exit 1
}

# run_seeds PART COMMAND OPTION...: run() with each seed, to PART@SEED.json.
# Reports read those of all seeds as one part.
run_seeds() {
  local part=$1 seed
  shift
  for seed in ${seeds//,/ }; do run "$part@$seed" "$@" --seed "$seed"; done
}

# take NAME: another experiment's results in the same folder belong to this one's report,
# as parts NAME/PART.
taken=()
take() {
  taken+=("$1")
  ls "$results/$1"/*.json >/dev/null 2>&1 || { echo "$experiment: no results of $1 in $results: run bench/papers/$1 first" >&2; exit 1; }
}

# What this call has made takes the place of what was there.
take_over_results() {
  out=$results_of
  mkdir -p "$out"
  if [ -z "$redraw" ]; then
    find "$out" -maxdepth 1 -name '*.json' ${kept[@]+"${kept[@]}"} -delete
    find "$out/.partial" -maxdepth 1 -name '*.json' -exec mv {} "$out" \;
    rm -rf "$out/.partial"
  elif [ ${#taken[@]} -eq 0 ] && ! compgen -G "$out/*.json" >/dev/null; then
    rmdir "$out" 2>/dev/null || true
    echo "$experiment: no results in $out: leave out --redraw, which runs it" >&2
    exit 1
  fi
}

# report SIZE [SETTINGS]: table and plot of what run() left. SIZE says what is smaller than in the paper
# unless --full is given, SETTINGS what differs in any case.
# Epochs and examples that were asked for are said as well.
report() {
  local smaller=$1
  [ -n "$full" ] && smaller="CIFAR-10 as in the paper where it used that; fewer workers, one machine, no GPU"
  [ $# -gt 1 ] && smaller+="; $2"
  [ -n "$given_epochs" ] && smaller+="; --epochs $given_epochs"
  [ -n "$given_limit" ] && smaller+="; only the first $given_limit training examples"
  take_over_results
  /usr/bin/python3 bench/papers/reports/report.py "$experiment" "$out" "$smaller" "$note" "${options[*]}" "${taken[@]}"
  echo "Table: $out/table.md"
  echo "Picture: $out/plot.png"
}
