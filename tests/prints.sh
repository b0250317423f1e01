#!/usr/bin/env bash
# Whether a command ends with 0 and prints what is expected: prints.sh EXPRESSION COMMAND...
set -euo pipefail
expression=$1
shift
"$@" | tee /dev/stderr | grep -E "$expression" >/dev/null
