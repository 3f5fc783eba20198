#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Emulated hosts at 1 Gb/s: how far from the bandwidth bound, and what do ranks gain that share a
# host? Needs root, iproute2, MPICH.
#
#   bench/hosts.sh
set -euo pipefail
cd "$(dirname "$0")/.."
make -s MPI=mpich all
bin=$PWD/.venv/mpich/bin
out=$PWD/bench/results
balanced() {
    hosts=$1 each=$2; shift 2
    "$bin/python" bench/emulated_hosts.py "$hosts" --per-host "$each" --rate 1gbit -- \
        "$bin/python" -m partialcoll bench balanced --collectives mpi,full --iters 9 \
        --link-gbps 1 --json "$out/hosts-${hosts}x$each.json" "$@"
}
balanced 4 1 --sizes 64K:16M --domain rank
balanced 2 4 --sizes 64K:16M --domain node,rank
