# Sourced by testbed/up, limit, run, down and check: names and life of an emulated network.
#
# A testbed is a set of network namespaces: PREFIX-bridge holds a bridge, PREFIX-hostI one host each. Every
# link is a veth pair made inside them, so the machine's own interfaces, routes and rules are never touched,
# and everything is gone with the namespaces. They are also the only place that keeps state.

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=testbed/$(basename "$0")
name_space=thinwire-testbed
bed=$name_space${THINWIRE_TESTBED:+-$THINWIRE_TESTBED}
bridge=$bed-bridge
host=$bed-host      # and a host's number: its namespace
subnet=10.83.0      # host I has the address I + 1
interface=eth0      # of every host
most_hosts=16
run_mark=THINWIRE_TESTBED_RUN  # variable that tells the processes of one run

die() {
  echo "$program: $1" >&2
  exit "${2:-1}"
}

# The script's header comment, as help.
usage() { sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# wrong_usage MESSAGE: bad arguments.
wrong_usage() { die "$1; see $program --help" 2; }

# need COMMAND PACKAGE
need() { command -v "$1" >/dev/null || die "$1 not found: install $2 (Debian: apt-get install $2)"; }

require_root() {
  [[ ${THINWIRE_TESTBED:-a} =~ ^[a-z0-9_-]+$ ]] ||
    die "THINWIRE_TESTBED is '$THINWIRE_TESTBED': it may hold a-z, 0-9, _ and -" 2
  [ "$(id -u)" -eq 0 ] || die "needs root, to make and enter network namespaces: run it with sudo or as root"
  need ip iproute2
  need tc iproute2
}

# namespaces_of BED: names of its namespaces, bridge first, one a line.
namespaces_of() {
  local path name
  for path in /var/run/netns/"$1"-bridge /var/run/netns/"$1"-host*; do
    name=${path##*/}
    if [ -e "$path" ] && [[ ${name#"$1"} =~ ^-(bridge|host[0-9]+)$ ]]; then echo "$name"; fi
  done
}

# beds: every testbed on this machine, one a line.
beds() {
  local path
  for path in /var/run/netns/"$name_space"*-bridge /var/run/netns/"$name_space"*-host*; do
    if [ -e "$path" ] && [[ ${path##*/} =~ ^(.*)-(bridge|host[0-9]+)$ ]]; then echo "${BASH_REMATCH[1]}"; fi
  done | sort -u
}

# hosts_up: how many hosts this testbed has.
hosts_up() { namespaces_of "$bed" | grep -c -- '-host[0-9]*$' || true; }

# is_complete: whether up came to its end; raising the bridge is its last step.
is_complete() {
  local shown
  # Not a pipeline: where a signal ends its first command alone, bash would go on with a wrong answer.
  shown=$(ip -n "$bridge" link show dev bridge up 2>/dev/null) && [ -n "$shown" ]
}

# limits: rate, burst and latency of host 0's link, as tc shows them.
limits() { tc -n "${host}0" qdisc show dev "$interface" 2>/dev/null | sed -nE 's/.*tbf .*(rate .*[^ ]) *$/\1/p'; }

# processes_in NAMESPACE...: their process ids.
processes_in() {
  local name
  for name in "$@"; do ip netns pids "$name" 2>/dev/null || true; done
}

# pause SECONDS: sleeps without a process that could outlive its parent.
pause() {
  local never
  exec {never}<> <(:)
  read -r -t "$1" -u "$never" || true
  exec {never}>&-
}

# remove_bed BED: ends every process in it, SIGTERM first, and removes it. Nothing to do is fine.
remove_bed() {
  local names pids attempt name
  mapfile -t names < <(namespaces_of "$1")
  [ "${#names[@]}" -gt 0 ] || return 0
  for ((attempt = 0; attempt < 100; attempt++)); do
    mapfile -t pids < <(processes_in "${names[@]}")
    [ "${#pids[@]}" -gt 0 ] || break
    if [ "$attempt" -eq 0 ]; then
      kill -TERM "${pids[@]}" 2>/dev/null || true
    elif [ "$attempt" -ge 30 ]; then
      kill -KILL "${pids[@]}" 2>/dev/null || true
    fi
    pause 0.1
  done
  for name in "${names[@]}"; do
    ip netns delete "$name" 2>/dev/null || [ ! -e "/var/run/netns/$name" ] || die "cannot remove the namespace $name"
  done
}

# bits_per_second RATE: "1Gbit" as an integer. Fails on anything else.
bits_per_second() {
  local scale
  [[ $1 =~ ^([0-9]+(\.[0-9]+)?)([KMG]?)bit$ ]] || return 1
  case ${BASH_REMATCH[3]} in
    K) scale=1000 ;;
    M) scale=1000000 ;;
    G) scale=1000000000 ;;
    *) scale=1 ;;
  esac
  awk -v number="${BASH_REMATCH[1]}" -v scale="$scale" 'BEGIN { printf "%.0f\n", number * scale }'
}

# require_limits RATE [MTU]: refuses a bad RATE, $burst or $latency. Sets $bits.
require_limits() {
  local mtu=${2:-9000} bytes
  bits=$(bits_per_second "$1") || wrong_usage "RATE is '$1', not like 1Gbit or 100Mbit"
  [ "$bits" -ge 8000 ] || wrong_usage "RATE is '$1', must be at least 8Kbit"
  [[ $burst =~ ^[1-9][0-9]*([km]b)?$ ]] || wrong_usage "--burst is '$burst', not like 65536, 64kb or 1mb"
  bytes=${burst/%kb/ * 1024}
  bytes=$((${bytes/%mb/ * 1048576}))
  [ "$bytes" -ge $((2 * mtu)) ] || wrong_usage "--burst is '$burst', must hold two packets of $mtu bytes"
  [[ $latency =~ ^[1-9][0-9]*(us|ms|s)$ ]] || wrong_usage "--latency is '$latency', not like 20ms"
}
