#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of training (docs/pytorch.md): about 40 minutes, mostly asleep. Run from the checkout,
# once per MPI, on a machine that does nothing else. Needs torch and scikit-learn.
#
#   bench/training.sh mpich|openmpi
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
if [ -z "${PARTIALCOLL:-}" ]; then # another installation's command
    make -s "MPI=$mpi" all
    PARTIALCOLL=$PWD/.venv/$mpi/bin/partialcoll
fi
python=$(dirname "$PARTIALCOLL")/python
"$python" -c "import torch, sklearn" || { echo "$python -m pip install torch scikit-learn"; exit 2; }
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")
train() { name=$out/train-$1$suffix; shift; "$PARTIALCOLL" bench train -n 8 "$@" \
    --json "$name.json" --plot "$name.png" > "$name.txt"; }

# The paper's figure 10: one rank in each step is late.
for delay in 200 300 400; do
    train "hyperplane-$delay" --task hyperplane --compute-ms 300 --pattern one-random \
        --delay-ms $delay --seeds 1 --strategies allreduce,eager-solo
done
# Its figure 11, with a smaller network: all ranks are late, by turns.
train digits --task digits --compute-ms 100 --pattern all-shifted --delay-ms 400 --seeds 3 \
    --strategies allreduce,eager-majority,eager-solo
# Its figure 12: videos differ in length.
train sequences --task sequences --compute-ms 30 --history 8 --seeds 3 \
    --strategies allreduce,eager-majority,eager-solo
# One rank is 100 times slower; and the same without.
slow=(--task hyperplane --size 1024 --batch 256 --steps 120 --compute-ms 50 --seeds 1)
train slow "${slow[@]}" --pattern one-slow:100 --strategies allreduce,eager-solo-all
train slow-none "${slow[@]}" --strategies allreduce,eager-solo-all
# Nobody is late: what a step costs, and what Python adds to it.
for n in 2 8; do
    "$python" bench/train_ddp.py -n $n --json "$out/train-ddp-$n$suffix.json" \
        > "$out/train-ddp-$n$suffix.txt"
done
# What of the gradients' transfer is left in a step, on emulated hosts (root, iproute2, MPICH).
if [ "$mpi" = mpich ] && [ "$(id -u)" = 0 ] && command -v tc > /dev/null; then
    "$python" bench/overlap.py --json "$out/overlap.json" > "$out/overlap.txt"
fi
"$python" bench/adapter.py --json "$out/train-adapter$suffix.json" > "$out/train-adapter$suffix.txt"
