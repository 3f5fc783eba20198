#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tables of docs/groups.md: rounds of grouped averaging where peers fail, simulated. The same
# with every MPI, and on every machine but for the seconds. Run from the checkout.
#
#   bench/moshpit.sh
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${PARTIALCOLL:-}" ]; then # another installation's command
    make -s all
    PARTIALCOLL=.venv/mpich/bin/partialcoll
fi
out=bench/results
sim() { name=$1; shift; $PARTIALCOLL sim moshpit "$@" --json "$out/moshpit-$name.json" \
    > "$out/moshpit-$name.txt"; }
drawn() { sim "$@" --plot "$out/moshpit-$1.png"; }

table=(--peers 512,768,900,1024 --p 0,0.001,0.005,0.01 --grid 32x32 --until 1e-14)
# The paper's table 4: its ten restarts, and a hundred.
sim paper-10 "${table[@]}" --paper-compat --restarts 10
drawn paper "${table[@]}" --paper-compat
# Squared distance to the true mean; push-sum with weights; a peer that fails voids the round of its
# group, or does not come to it.
drawn void "${table[@]}"
sim absent "${table[@]}" --losses absent --methods moshpit,random
# The paper's figure 5: three axes, an under-full grid, and a million peers.
drawn cube --peers 470,512 --p 0,0.001,0.0025,0.0075 --grid 8x8x8 --until 1e-14 \
    --methods moshpit,random
million=(--peers 1000000 --grid 1024x1024,32x32x32x32,4x4x4x4x4x4x4x4x4x4 --methods moshpit)
drawn million "${million[@]}" --p 0,0.001 --restarts 1 --rounds 100
sim million-absent "${million[@]}" --p 0,0.001 --restarts 1 --rounds 100 --losses absent
