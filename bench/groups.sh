#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The figures of grouped allreduce. Run from the checkout, once per MPI, on a machine that does nothing
# else. The comparison with hivemind needs an interpreter that has it (see bench/hivemind.py); links of
# different speed are emulated as root, with MPICH. (Those of the simulator: bench/moshpit.sh.)
#
#   bench/groups.sh mpich|openmpi [python-with-hivemind]
set -euo pipefail
cd "$(dirname "$0")/.."
mpi=${1:?mpich or openmpi}
make -s "MPI=$mpi" all
bin=$PWD/.venv/$mpi/bin
out=bench/results
suffix=$([ "$mpi" = mpich ] || echo "-$mpi")

"$bin/partialcoll" bench group -n 8 --sizes 4K,64K,1M,4M,64M \
    --json "$out/group$suffix.json" --plot "$out/group$suffix.png" > "$out/group$suffix.txt"
[ -z "${2:-}" ] || "$bin/python" bench/hivemind.py --hivemind "$2" \
    --json "$out/hivemind$suffix.json" > "$out/hivemind$suffix.txt"
[ "$mpi" = mpich ] && [ "$(id -u)" = 0 ] || exit 0
"$bin/python" bench/uneven.py --json "$out/uneven.json" > "$out/uneven.txt"
