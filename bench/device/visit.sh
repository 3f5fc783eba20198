#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build, test and measure on a machine with one GPU, in a few minutes (README.md).
#
#     bench/device/visit.sh [--carried FOLDER] [--output FOLDER] [--seconds 480] [--fake]
#
# Each step has a limit of its own, and a step that fails or takes too long does not stop the next
# one. After each step a line is added to visit.jsonl. What the step prints goes to log.txt while it
# runs, so nothing is lost when the machine is taken away. Needs no network.
set -u

grace_s=5 # for a launcher to end its ranks

# step NAME LIMIT_S COMMAND: runs a command of the shell; fails unless it has ended in time, with
# status 0. Needs $output, and $end, at which $SECONDS no command may run any more.
step() {
    local begin=$SECONDS limit status result="no time left"
    limit=$((end - SECONDS < $2 ? end - SECONDS : $2))
    if ((limit > 0)); then
        printf '\n== %s\n$ %s\n' "$1" "$3" >> "$output/log.txt"
        timeout --kill-after=$grace_s $limit bash -c "$3" < /dev/null >> "$output/log.txt" 2>&1
        status=$?
        case $status in
            0) result=ok ;;
            124 | 137) result="out of time" ;;
            *) result="status $status" ;;
        esac
    fi
    printf '{"step": "%s", "result": "%s", "limit_s": %s, "seconds": %s}\n' \
        "$1" "$result" "$2" $((SECONDS - begin)) >> "$output/visit.jsonl"
    sync "$output/visit.jsonl"
    printf '%6d s  %s: %s\n' $((SECONDS - begin)) "$1" "$result"
    [ "$result" = ok ]
}

# make_environment FOLDER: makes an environment that sees the packages of $PYTHON. That may itself be
# of an environment, and may lack ensurepip. So its packages are named in a .pth file, and its pip
# installs into the new environment.
make_environment() {
    "$PYTHON" -m venv --clear --without-pip --system-site-packages "$1" &&
        "$PYTHON" -c 'import site; print(*site.getsitepackages(), sep="\n")' \
            > "$(echo "$1"/lib/python3*/site-packages)/machine.pth"
}

[ "${BASH_SOURCE[0]}" = "$0" ] || return 0 # a test takes the functions

here=$(cd "$(dirname "$0")" && pwd)
root=${here%/bench/device}
carried=$root/build/device output=${OUT-} seconds=480 fake=
while (($#)); do
    case $1 in
        --carried | --output | --seconds) printf -v "${1#--}" %s "$2" && shift 2 ;;
        --fake) fake=yes && shift ;; # rehearse without a GPU
        *) echo "visit.sh: expected one of its options, got $1" >&2 && exit 2 ;;
    esac
done
[ -n "$output" ] || { echo "visit.sh: --output: expected a folder, here or in \$OUT" >&2 && exit 2; }
mkdir -p "$output" && output=$(cd "$output" && pwd) && cd "$here" || exit 1
end=$seconds SECONDS=0 failed=0

PYTHON=$(command -v "${PYTHON:-python3}")
export PYTHON carried root output
make_environment "$root/build/device-venv" || exit 1
own=$root/build/device-venv/bin
export own MPICC=$own/mpicc OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PATH=$own:$PATH
# Does mpi4py load the MPI that was carried along?
export own_mpi='
import sys
from mpi4py import MPI
print(MPI.Get_library_version())
with open("/proc/self/maps") as maps:
    loaded = {line.split()[-1] for line in maps if "/libmpi" in line}
print(*loaded)
assert loaded and all(path.startswith(sys.prefix) for path in loaded)'
export pip="$PYTHON -m pip --python $own/python install --no-index --no-deps"
export ranks="$own/partialcoll run -n 2 $own/python" cupy= chosen="-m gpu"
if [ $fake ]; then
    cupy="env PYTHONPATH=$root/bench/device/fake:$root/tests/support"
    chosen="-m 'not gpu' -k 'fake and (calls or bench_gpu)'"
fi

step machine 40 '
nvidia-smi; gcc --version; nproc; free -g; command -v mpicc mpiexec mpirun
for program in \
    "import sys; print(sys.version, sys.executable)" \
    "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())" \
    "import cupy; print(cupy.__version__, cupy.cuda.is_available())" \
    "import mpi4py; print(mpi4py.__version__, mpi4py.get_config())" \
    "from mpi4py import MPI; print(MPI.Get_library_version())"
do "$PYTHON" -c "$program"; done
true' || failed=1
step wheels 60 '$pip -q $(ls "$carried"/*.whl | grep -v -e /partialcoll- -e /mpi4py-)' || failed=1
step mpi4py 20 '"$own/python" -c "$own_mpi"' ||
    step "mpi4py wheel" 20 '
$pip --force-reinstall "$carried"/mpi4py-*.whl && "$own/python" -c "$own_mpi"' || failed=1
step build 120 '$pip --no-build-isolation "$root"' ||
    step "built wheel" 20 '$pip "$carried"/partialcoll-*.whl' || failed=1
step info 20 '"$own/partialcoll" info' || failed=1
step "cupy example" 40 '$cupy $ranks "$root/examples/cupy_persistent.py"' || failed=1
step "torch example" 60 '$ranks "$root/examples/torch_cuda.py"' || failed=1
step tests 180 'cd "$root/tests" && eval "$own/python" -m pytest -v --no-header "$chosen" \
    collectives/test_cupy.py pytorch/test_torch_device.py' || failed=1
measure() { step "$1" 60 "\"\$own/partialcoll\" bench gpu -n 2 $2 --json \"\$output/$3.json\""; }
measure "bench gpu, short" "--iters 9 --sizes 1K,64K,1M" gpu-1 || failed=1
step training 90 '$ranks "$root/bench/run.py" device --json "$output/training.json"' || failed=1
measure "bench gpu, long" "--iters 9 --sizes 16M,64M" gpu-2 || failed=1
measure "bench gpu, longest" "--iters 5 --sizes 256M" gpu-3 || failed=1
step doctor 40 '"$own/partialcoll" doctor' || failed=1
exit $failed
