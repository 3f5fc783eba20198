#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of the README and of docs, both planes side by side: ranks of a node in shared
# memory, messages only. Run from the checkout, once per MPI, on a machine that does nothing else.
#
#   bench/figures.sh mpich|openmpi
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
make -s "MPI=$mpi" all
bin=.venv/$mpi/bin
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")
bench() { "$bin/partialcoll" bench "$@"; }

bench skew -n 32 --iters 60 --collectives mpi,solo,majority,quorum:0.5,full \
    --json "$out/skew-32$suffix.json" --plot "$out/skew-32$suffix.png"
# The same as a program in C sees it.
bench skew -n 32 --iters 30 --interface c --collectives mpi,solo,majority,quorum:0.5 \
    --json "$out/skew-32-c$suffix.json"
bench skew -n 32 --domain node --collectives mpi,quorum:0.25,quorum:0.5,quorum:0.75 \
    --json "$out/skew-32-quorums$suffix.json" --plot "$out/skew-32-quorums$suffix.png"
for n in 2 4 8; do
    bench balanced -n $n --sizes 8:16M --collectives mpi,full --json "$out/balanced-$n$suffix.json"
done
bench balanced -n 8 --sizes 4M:64M --domain node --zero-copy --json "$out/zero-copy-8$suffix.json"
bench idle -n 8 --json "$out/idle-8$suffix.json"
"$bin/python" bench/busy_neighbours.py --json "$out/busy-neighbours$suffix.json" \
    > "$out/busy-neighbours$suffix.txt"
# On one core, and so the same with both MPIs.
bench quantize --sizes 256K,4M,64M --rotate --json "$out/quantize.json" > "$out/quantize.txt"
