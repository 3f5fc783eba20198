#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of decentralised training (docs/pytorch.md): about 35 minutes, mostly asleep, no
# command more than three. Run from the checkout, once per MPI, on a machine that does nothing else;
# all parts, or those that are named. Needs torch and scikit-learn.
#
#   bench/decentralised_training.sh mpich|openmpi [slow] [accuracy] [more] [rings] [course] [exposed]
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
shift
parts=" ${*:-slow accuracy more rings course exposed} "
if [ -z "${PARTIALCOLL:-}" ]; then # another installation's command
    make -s "MPI=$mpi" all
    PARTIALCOLL=$PWD/.venv/$mpi/bin/partialcoll
fi
python=$(dirname "$PARTIALCOLL")/python
"$python" -c "import torch, sklearn" || { echo "$python -m pip install torch scikit-learn"; exit 2; }
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")
wanted() { case $parts in *" $1 "*) ;; *) return 1 ;; esac; }
train() { name=$out/train-$1$suffix; shift; "$PARTIALCOLL" bench train --task digits "$@" \
    --json "$name.json" > "$name.txt"; }
table() { "$python" bench/decentralised_tables.py "$@"; }

all=adpsgd,dpsgd,swarm,swarm-8bit,a2cid2,a2cid2-baseline,moshpit,sgp,localsgd,slowmo

# Rank 0 is 2, 10 and 100 times slower, beside AD-PSGD's own table. The allreduce's steps take as
# long as rank 0's.
if wanted slow; then
    one=(-n 8 --compute-ms 50 --seeds 1 --topology complete)
    for k in 1 2 10 100; do
        train "worker-$k" "${one[@]}" --pattern one-slow:$k --steps 200 \
            --strategies adpsgd,swarm,a2cid2,sgp,eager-solo-all
    done
    for k in 1:100 2:100 10:40 100:8; do
        train "worker-allreduce-${k%:*}" "${one[@]}" --pattern "one-slow:${k%:*}" \
            --steps "${k#*:}" --strategies allreduce,dpsgd
    done
    table slow "$out/train-worker-"{1,2,10,100}"$suffix.json" \
        "$out/train-worker-allreduce-"{1,2,10,100}"$suffix.json" > "$out/train-worker$suffix.txt"
fi

# Accuracy at equal epochs, nobody late; three seeds. And what 8 bits cost Swarm.
if wanted accuracy; then
    for seed in 0 1 2; do
        train "accuracy-$seed" -n 8 --compute-ms 30 --seeds 1 --seed $seed \
            --strategies "allreduce,eager-solo,eager-majority,eager-solo-all,$all"
    done
    table accuracy "$out/train-accuracy-"{0,1,2}"$suffix.json" > "$out/train-accuracy$suffix.txt"
fi

# What is not within 1.5 points there, for more epochs.
if wanted more; then
    for times in 5:250 6:300 8:400; do
        train "more-${times%:*}" -n 8 --compute-ms 30 --seeds 3 --steps "${times#*:}" \
            --strategies slowmo,moshpit
    done
    table more "$out/train-accuracy-"{0,1,2}"$suffix.json" \
        "$out/train-more-"{5,6,8}"$suffix.json" > "$out/train-more$suffix.txt"
fi

# A2CiD2 and its baseline on rings, where each rank has its own part of the data; and where all draw
# from the same. Long steps, so that 16 ranks on few cores make all their averagings.
if wanted rings; then
    for n in 8 16; do
        for data in sorted shared; do
            train "ring-$n-$data" -n $n --data $data --learning-rate 0.1 --compute-ms 100 --steps 120 \
                --seeds 3 --topology ring --strategies a2cid2,a2cid2-baseline
        done
    done
    table rings "$out/train-ring-"{8,16}-{sorted,shared}"$suffix.json" > "$out/train-ring$suffix.txt"
fi

# Consensus distance and accuracy against time.
if wanted course; then
    train course -n 8 --compute-ms 40 --seeds 1 --topology ring,complete \
        --strategies allreduce,dpsgd,adpsgd,a2cid2,a2cid2-baseline,swarm,sgp,moshpit,localsgd \
        --plot "$out/train-course-loss$suffix.png" --plot-consensus "$out/train-course$suffix.png"
fi

# What Swarm exposes to the training thread, with 25 million parameters.
if wanted exposed; then
    "$python" bench/exposed.py --json "$out/train-exposed$suffix.json" \
        > "$out/train-exposed$suffix.txt"
fi
