# SPDX-License-Identifier: Apache-2.0
"""A recipe for a Spack repository. There is no release to fetch yet: `spack develop --path CHECKOUT
py-partialcoll@0.1.0` provides the source."""

from spack.package import *


class PyPartialcoll(PythonPackage):
    """MPI collectives for ranks that do not arrive together: solo, majority and full allreduce."""

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("mpi@3:")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-cffi@1.15:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"))
    depends_on("py-numpy@1.22:", type=("build", "run"))
    depends_on("py-networkx@2.6:", type="run")
    depends_on("py-click@8.1:", type="run")

    def setup_build_environment(self, env):
        env.set("MPICC", self.spec["mpi"].mpicc)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.partialcoll)("doctor")
