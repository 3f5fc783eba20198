# SPDX-License-Identifier: Apache-2.0
"""Make one wheel for several MPIs: `make wheel`.

    python packaging/wheel.py --output DIR MPICC ...

The package is built once with each compiler wrapper; these differ in the ABI of their MPI. All
cores go into one wheel, and the import chooses one (partialcoll/_core/ffi.py). The wheel contains
no MPI: the cores look for libmpi by its name, which mpi4py or the program has loaded before. The
interposer is loaded before both, so it also searches the folders of MPI wheels and conda.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "csrc"))
import hardening  # noqa: E402

POLICY = f"manylinux_2_28_{platform.machine()}"
MAX_BYTES = 12 << 20
# Debian's name of MPICH's library, which others call libmpi.so.12.
DEBIAN = "libmpich.so.12"
# Where a library of the wheel searches MPI's. From lib/pythonX.Y/site-packages/partialcoll/lib:
ENVIRONMENT = "$ORIGIN/../../../.."
RUN_PATHS = {"_core_*": "$ORIGIN/lib/debian", "lib/libpartialcoll_*": "$ORIGIN/debian"}


def run(*words, **environment):
    """Run a command, which must succeed."""
    print("+", *words, flush=True)
    subprocess.run([*map(str, words)], check=True, cwd=ROOT, env={**os.environ, **environment})


def build(mpicc, folder):
    """Build the package for one MPI, unpacked."""
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    run(sys.executable, *words, MPICC=mpicc, PARTIALCOLL_PORTABLE="1", CPPFLAGS="", LDFLAGS="")
    (wheel,) = Path(folder).glob("*.whl")
    run(TOOLS / "wheel", "unpack", "-d", folder, wheel)
    (unpacked,) = (path for path in Path(folder).iterdir() if path.is_dir())
    return unpacked


def merge(first, others):
    """Add the files that depend on the MPI: cores, libraries, files for pkg-config."""
    for other in others:
        for pattern in ("_core_*", "lib/*.so", "lib/pkgconfig/*"):
            for path in (other / "partialcoll").glob(pattern):
                target = first / path.relative_to(other)
                if target.exists():
                    raise SystemExit(f"two of the compilers have the same ABI: {path.name}")
                shutil.copy2(path, target)


def add_debian_name(folder):
    """Create a library named libmpi.so.12 that only requires Debian's."""
    folder.mkdir()
    cc = os.environ.get("CC", "cc")
    shared = (cc, "-shared", "-nostdlib", *hardening.flags(cc).link, "-x", "c", os.devnull)
    with tempfile.TemporaryDirectory() as there:
        real = Path(there) / DEBIAN
        run(*shared, f"-Wl,-soname,{DEBIAN}", "-o", real)
        names = ("-Wl,-soname,libmpi.so.12", "-Wl,--no-as-needed", "-x", "none", real)
        run(*shared, *names, "-o", folder / "libmpi.so.12")


def set_run_paths(package):
    """Set the run paths without folders of the build machine."""
    patchelf = TOOLS / "patchelf"
    for path in package.rglob("*.so"):
        run(patchelf, "--remove-rpath", path)
    for pattern, run_path in RUN_PATHS.items():
        for path in package.glob(f"{pattern}mpich*.so"):
            run(patchelf, "--set-rpath", run_path, path)
    for path in package.glob("lib/libpartialcoll_preload_*.so"):
        run(patchelf, "--set-rpath", ENVIRONMENT, path)


def check_protections(package):
    """Refuse a library that lost its protections (csrc/hardening.py)."""
    for path in package.rglob("*.so*"):
        words = ("readelf", "--wide", "--dynamic", "--segments", path)
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        if "BIND_NOW" not in said or "GNU_RELRO" not in said or "RWE" in said:
            raise SystemExit(f"{path.name} lacks BIND_NOW or RELRO, or has an executable stack")


def finish(unpacked, output):
    """Pack the wheel, set its platform tag, and check it."""
    run(TOOLS / "wheel", "pack", "-d", output, unpacked)
    (plain,) = output.glob("partialcoll-*-linux_*.whl")
    given = ("--exclude", "libmpi*.so*", "--plat", POLICY, "--only-plat", "-w", output)
    run(TOOLS / "auditwheel", "repair", *given, plain, PATH=f"{TOOLS}:{os.environ['PATH']}")
    plain.unlink()
    (wheel,) = output.glob("partialcoll-*.whl")
    run(TOOLS / "abi3audit", "--strict", "--verbose", wheel)
    size = wheel.stat().st_size
    print(f"{wheel.relative_to(Path.cwd())}: {size / (1 << 20):.1f} MB")
    if size > MAX_BYTES:
        raise SystemExit(f"expected at most {MAX_BYTES >> 20} MB")


def main():
    """Build, merge, finish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("mpicc", nargs="+")
    options = parser.parse_args()
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    for earlier in output.glob("partialcoll-*.whl"):
        earlier.unlink()
    with tempfile.TemporaryDirectory(prefix="partialcoll-wheel-") as folder:
        unpacked = []
        for i, mpicc in enumerate(options.mpicc):
            unpacked.append(build(str(Path(mpicc).absolute()), f"{folder}/{i}"))
        merge(unpacked[0], unpacked[1:])
        add_debian_name(unpacked[0] / "partialcoll/lib/debian")
        set_run_paths(unpacked[0] / "partialcoll")
        check_protections(unpacked[0] / "partialcoll")
        finish(unpacked[0], output)


if __name__ == "__main__":
    main()
