#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Four emulated hosts at 1 Gb/s: how far from the bandwidth bound? Needs root, iproute2, MPICH.
#
#   bench/hosts.sh
set -euo pipefail
cd "$(dirname "$0")/.."
make -s MPI=mpich all
bin=.venv/mpich/bin
"$bin/python" bench/emulated_hosts.py 4 --rate 1gbit -- "$PWD/$bin/python" -m partialcoll \
    bench balanced --sizes 64K:16M --iters 9 --link-gbps 1 --json "$PWD/bench/results/hosts-4.json"
