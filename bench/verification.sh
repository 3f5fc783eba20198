#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long checks of docs/verification.md: about an hour. Run from the checkout.
#
#   bench/verification.sh [SCHEDULES]
set -euo pipefail
cd "$(dirname "$0")/.."
out=bench/results
make -s all build/c/soak
export ASAN_OPTIONS=malloc_context_size=2:quarantine_size_mb=8

python3 tests/mutants.py --json $out/mutants.json
python3 tests/coverage.py --json $out/coverage.json
make -s spin && python3 tests/model/check.py --json $out/model.json
{
    echo "# 8 ranks, address and undefined-behaviour sanitizers, one process"
    PARTIALCOLL_RANKS=8 PARTIALCOLL_SCHEDULES=10000 build/c/soak | tail -2
} | tee $out/soak-8.txt

bin=.venv/mpich/bin
$bin/partialcoll sim skew --ranks 16,64,256,1024,4096 --collectives solo \
    --json $out/sim-growth.json --plot $out/sim-growth.png
$bin/partialcoll sim skew --ranks 4096 --json $out/sim-4096.json --plot $out/sim-4096.png

{
    echo "# make soak: address and undefined-behaviour sanitizers, -O2"
    make -s soak SCHEDULES="${1:-1000000}"
} | tee $out/soak.txt
