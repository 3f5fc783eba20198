# SPDX-License-Identifier: Apache-2.0
# Everything needs only Python 3, a C compiler and make; each target sets up what it needs.
#
#   make demo            bench skew on 8 ranks: table, demo.json, demo.png
#   make test            all tests with the default MPI; MPI=mpich or MPI=openmpi chooses; all
#                        of them twice, DOMAINS=node or DOMAINS=rank for one of the settings
#   make check-c         the C tests alone: simulated ranks, sanitizers, no MPI
#   make test-large      messages of more than 2**31 bytes, where the memory is free
#   make soak            a million simulated schedules
#   make mutants         planted mistakes, each of which an invariant has to catch
#   make model           the model of the protocol, exhaustively (installs spin)
#   make coverage        lines of engine and protocol that the simulated schedules reach
#   make … TORCH=        without PyTorch, which the tests and examples of partialcoll.torch take
#   make format lint     clang-format and ruff; ruff, mypy and clang-format as checks

PYTHON ?= python3
MPI ?= mpich
VENV := .venv/$(MPI)
BIN := $(VENV)/bin
# What pip installs for the tests of partialcoll.torch, other arguments of pip's included; empty: not
# at all, and these tests are skipped.
TORCH ?= torch==2.13.0
RANKS ?= 1 2 3 4 5 8
DOMAINS ?= node rank
SOURCES := $(shell find csrc partialcoll -name '*.c' -o -name '*.h' -o -name '*.py' -o -name '*.map' | \
             grep -v -e _core_ -e partialcoll/include) \
           setup.py pyproject.toml

.PHONY: all demo ready test test-large test-mpi test-examples check-c soak mutants coverage \
        model model-quick spin print-simulation print-group print-matching print-steps format lint clean
all: $(VENV)/installed

$(VENV)/tools:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q $(MPI) mpi4py numpy cffi setuptools wheel tqdm networkx \
	    matplotlib pytest pytest-mpi hypothesis ml_dtypes scipy
	touch $@

# By itself, since it is large: only what tests partialcoll.torch needs it.
$(VENV)/torch: $(VENV)/tools
	$(BIN)/python -m pip install -q scikit-learn $(TORCH)
	touch $@

$(VENV)/installed: $(VENV)/tools $(SOURCES)
	MPICC=$(abspath $(BIN))/mpicc $(BIN)/python -m pip install -q --no-build-isolation \
	    --force-reinstall --no-deps .
	touch $@

demo: $(VENV)/installed
	$(BIN)/partialcoll bench skew -n 8 --iters 20 --json demo.json --plot demo.png

# What the tests of one MPI need, without running them.
ready: $(VENV)/installed $(VENV)/torch

test: check-c test-mpi test-examples

# Messages of more than 2**31 bytes: a few minutes and 15 GiB, skipped where that is not free.
test-large: $(VENV)/installed
	PARTIALCOLL_TEST_LARGE=1 $(BIN)/python tests/run.py --ranks 2 --domains rank test_large.py

test-mpi: ready
	$(BIN)/python tests/run.py --ranks "$(RANKS)" --domains "$(DOMAINS)"

EXAMPLES := $(filter-out $(if $(TORCH),,examples/torch_%),$(wildcard examples/*.py))
C_EXAMPLES := $(wildcard examples/c/*.c)
test-examples: ready
	for example in $(EXAMPLES); do \
	    $(BIN)/python tests/launch.py 4 $$example || exit 1; done
	mkdir -p build/examples
	cd build/examples && for example in $(C_EXAMPLES:examples/c/%.c=%); do \
	    $(abspath $(BIN))/mpicc -Wall -Wextra ../../examples/c/$$example.c \
	        $$($(abspath $(BIN))/partialcoll config --cflags --libs) -o $$example && \
	    $(abspath $(BIN))/python ../../tests/launch.py 4 --program ./$$example || exit 1; done

# The C tests. One program for each test_*.c, from the sources that need no MPI.

CC ?= cc
MATCH := $(addprefix csrc/group/,match.c match_lead.c match_list.c match_look.c match_message.c verdict.c)
GROUP := $(filter-out $(addprefix csrc/group/,create.c end.c handle.c pending.c),$(wildcard csrc/group/*.c))
CORE := $(wildcard csrc/base/*.c csrc/schedule/*.c csrc/protocol/*.c csrc/algorithms/*.c \
          csrc/kernels/*.c csrc/domain/*.c csrc/progress/*.c csrc/transport/sim*.c) \
        $(addprefix csrc/allreduce/,arrivals.c closing.c context.c data.c options.c starting.c survey.c tuning.c vertex.c vertex_closing.c vertex_create.c) \
        $(addprefix csrc/program/,build.c draft.c messages.c pending.c program.c races.c) \
        $(addprefix csrc/gossip/,accumulator.c coded.c exchange.c fetch.c layout.c memory.c queue.c register.c spent_window.c) \
        $(GROUP) \
        $(wildcard csrc/simulation/*.c)
HEADERS := $(wildcard csrc/*/*.h tests/c/*.h)
HELPERS := $(filter-out $(wildcard tests/c/test_*.c),$(wildcard tests/c/*.c))
WORLD := $(addprefix tests/c/,app.c fiber.c invariants.c ledger.c misuse.c model.c reference.c space.c spy.c spy_node.c threads.c wire.c world.c)
WARN := -std=c11 -D_GNU_SOURCE -ffp-contract=off -Wall -Wextra -Wswitch -Wmissing-prototypes -Werror
ASAN := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined
TSAN := -O1 -g -fsanitize=thread
C := build/c

GOSSIP_STEPS := $(addprefix tests/c/,coroutine.c memory_window.c stepper.c)
MATCHING := $(addprefix tests/c/,matching.c matching_check.c matching_events.c matching_fuzz.c matching_round.c)
STEPS := $(addprefix tests/c/,coroutine.c ledger.c reference.c space.c stepper.c steps.c steps_app.c steps_check.c steps_fabric.c)
INTERLEAVED := -DPCOLL_TEST_INTERLEAVE -DPCOLL_TEST_CHAIN_BYTES=128 -DPCOLL_TEST_CHUNK_BYTES=64 -DPCOLL_TEST_CHUNK_BLOCKS=1 -DPCOLL_TEST_TRIES=2

# Objects in folders by how they are compiled, each once for all programs.
objects = $(patsubst %.c,$(C)/$(1)/%.o,$(2))
$(C)/plain/%.o: FLAGS := $(ASAN)
$(C)/interleaved/%.o: FLAGS := $(ASAN) $(INTERLEAVED)
$(C)/threads/%.o: FLAGS := $(TSAN) -DPCOLL_TEST_CHUNK_BYTES=64 -DPCOLL_TEST_CHUNK_BLOCKS=1
$(C)/shipped/%.o: FLAGS := -O3
define compile
$(C)/$(1)/%.o: %.c $(HEADERS)
	@mkdir -p $$(@D)
	@$(CC) $(WARN) $$(FLAGS) -c $$< -o $$@
endef
$(foreach how,plain interleaved threads shipped,$(eval $(call compile,$(how))))

# What a program consists of besides itself and the core.
WITH_invariants := $(WORLD)
WITH_node_steps := $(STEPS)
WITH_gossip_steps := $(GOSSIP_STEPS)
WITH_matching := $(MATCHING)
WITH_group := tests/c/sim_window.c
WITH_threads := tests/c/inproc.c
WITH_node_threads := tests/c/inproc.c
WITH_program_threads := tests/c/inproc.c
WITH_group_threads := tests/c/inproc.c
HOW_invariants := interleaved
HOW_node_steps := interleaved
HOW_gossip_steps := interleaved
HOW_gossip_threads := threads
HOW_threads := threads
HOW_node_threads := threads
HOW_program_threads := threads
HOW_group_threads := threads
SANITIZE_threads := -fsanitize=thread
how = $(or $(HOW_$(1)),plain)

C_TESTS := $(patsubst tests/c/test_%.c,%,$(wildcard tests/c/test_*.c))
define link
$(C)/test_$(1): $$(call objects,$(call how,$(1)),$(CORE) $(WITH_$(1)) tests/c/check.c tests/c/test_$(1).c)
	@$(CC) $(or $(SANITIZE_$(call how,$(1))),-fsanitize=address$(comma)undefined) $$^ -lm -lpthread -o $$@
endef
comma := ,
$(foreach test,$(C_TESTS),$(eval $(call link,$(test))))

# Without sanitizers, so that it is the vectorised loops that are checked.
$(C)/kernels_as_shipped: $(call objects,shipped,$(CORE) tests/c/check.c tests/c/test_kernels.c)
	@$(CC) $^ -lm -lpthread -o $@

# The codec once more, as it is shipped and for one processor at a time: all compute the same
# bits. Where a processor lacks what it is compiled for, it says so and succeeds.
TARGETS := $(if $(filter x86_64,$(shell uname -m)),sse2 avx2 avx512)
$(C)/sse2/%.o: FLAGS := -O3 -DPCOLL_TEST_ONE_TARGET
$(C)/avx2/%.o: FLAGS := -O3 -DPCOLL_TEST_ONE_TARGET -mavx2 -mfma
$(C)/avx512/%.o: FLAGS := -O3 -DPCOLL_TEST_ONE_TARGET -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma
$(foreach how,$(TARGETS),$(eval $(call compile,$(how))))
define link_codec
$(C)/quantise_$(1): $$(call objects,$(1),$(wildcard csrc/kernels/*.c csrc/base/*.c) tests/c/check.c tests/c/test_quantise.c)
	@$$(CC) $$^ -lm -lpthread -o $$@
endef
$(foreach how,shipped $(TARGETS),$(eval $(call link_codec,$(how))))

C_PROGRAMS := $(C_TESTS:%=$(C)/test_%) $(C)/kernels_as_shipped \
              $(foreach how,shipped $(TARGETS),$(C)/quantise_$(how))
JOBS ?= $(shell nproc)

check-c:
	@echo compiling the C tests
	@$(MAKE) --no-print-directory -j$(JOBS) $(C_PROGRAMS)
	@for test in $(C_PROGRAMS); do $$test || exit 1; done

$(C)/soak: tests/c/test_invariants.c $(CORE) $(HEADERS) $(HELPERS)
	@mkdir -p $(C)
	$(CC) $(WARN) $(ASAN) -O2 $(CORE) $(WORLD) $(INTERLEAVED) tests/c/check.c $< -lm -lpthread -o $@

# What tests/mutants.py plants its mistakes in, by the program that has to catch them.
print-simulation:
	@echo $(CORE) $(WORLD) tests/c/check.c tests/c/test_invariants.c

print-gossip:
	@echo $(CORE) $(GOSSIP_STEPS) tests/c/check.c tests/c/test_gossip_steps.c

print-group:
	@echo $(wildcard $(addprefix csrc/,base/*.c schedule/*.c algorithms/*.c kernels/*.c progress/*.c transport/sim*.c)) \
	    csrc/allreduce/closing.c csrc/allreduce/context.c csrc/gossip/spent_window.c $(GROUP) \
	    tests/c/sim_window.c tests/c/check.c tests/c/test_group.c

print-matching:
	@echo csrc/base/error.c $(MATCH) $(MATCHING) tests/c/check.c tests/c/test_matching.c

print-steps:
	@echo $(CORE) $(STEPS) tests/c/check.c tests/c/test_node_steps.c

mutants:
	$(PYTHON) tests/mutants.py

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

SCHEDULES ?= 1000000
soak: $(C)/soak
	PARTIALCOLL_SCHEDULES=$(SCHEDULES) PARTIALCOLL_JOBS=$(JOBS) $(C)/soak

# Style.

.venv/style:
	$(PYTHON) -m venv .venv/style
	.venv/style/bin/python -m pip install -q ruff mypy clang-format numpy mpi4py

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

clean:
	rm -rf build .venv *.egg-info partialcoll/_core_* partialcoll/lib partialcoll/include
