# Sourced by quickstart and check: what Debian 12 packages each of them needs,
# and how missing ones are installed.

RUN_PACKAGES=(g++ cmake ninja-build libhwy-dev libtorch-dev libgloo-dev libopenblas0-pthread libopenmpi-dev openmpi-bin
  libcli11-dev nlohmann-json3-dev libfmt-dev zlib1g-dev dataset-fashion-mnist python3 python3-matplotlib
  bible-kjv bible-kjv-text)
TEST_PACKAGES=(libgtest-dev librapidcheck-dev libbenchmark-dev clang clang-format clang-tidy libclang-rt-14-dev git ccache iproute2
  chromium python3-torch python3-numpy python3-yaml python3-dev python3-venv pybind11-dev)

# What checks the Python package's types, from PyPI: Debian's is too old for the settings in pyproject.toml.
MYPY=mypy==2.4.1

# missing_packages NAME...: those that are not installed, one a line.
missing_packages() {
  local name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q '^install ok installed$' || echo "$name"
  done
}

# install_packages NAME...: lists what is missing and installs it, with sudo if need be. Fails with one line.
install_packages() {
  if ! command -v apt-get >/dev/null; then
    echo "apt-get not found: install these packages, or what your system calls them, and run again: $*" >&2
    return 1
  fi
  local missing as_root=()
  mapfile -t missing < <(missing_packages "$@")
  [ "${#missing[@]}" -eq 0 ] && return 0
  echo "Installing Debian packages: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "not root and no sudo: as root, run: apt-get install --no-install-recommends ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "apt-get failed, see above; the whole log is $log" >&2
    return 1
  fi
  rm -f "$log"
}
