# ringar from a bare checkout. Needs Python >= 3.10, g++ and make; everything else comes by pip.
#
#   make demo         install what users install, train on two ranks, print the result
#   make test         the tests: plain, then on 2, 3 and 4 ranks
#   make test-long    what the others leave out: slow tests, rare variants on every number of ranks
#   make chaos        a thousand jobs with faults, some hours (CHAOS="--seed 7 --count 60" for others)
#   make test-native  the C++ tests under AddressSanitizer and ThreadSanitizer
#   make test-native-aarch64  the C++ tests for aarch64, emulated (g++-aarch64-linux-gnu, qemu-user-static)
#   make test-gpu     the tests that need an NVIDIA GPU, on those that there are
#   make gpu-report   what works on the NVIDIA GPUs of this machine, on one page
#   make test-matrix  one wheel beside the oldest and the newest TensorFlow that ringar serves
#   make check-wheels  the wheels: auditwheel finds what their names promise
#   make lint         ruff, mypy, import-linter, includes of tf_ops, clang-format, shellcheck, hadolint
#   make docs         the documentation site, in build/site; a broken link or an undocumented name fails
#   make gallery      the output and pictures of examples/gallery, which it runs
#   make rooms        the picture of docs/architecture.md, from the imports
#   make format       what lint would complain of, corrected
#   make bench        every benchmark that fits into twenty minutes, with a report
#   make bench-targets  what the targets need, and the targets beside it
#   make performance  the tables of performance in docs/ and README, from benchmarks/results
#   make papers       small forms of the benchmarks of docs/papers.md, within an hour
#   make bench-gpu    collectives on the NVIDIA GPUs that there are
#   make bench-hosts  several hosts on this machine, behind slow links (needs root and iproute2)
#   make wheel        dist/ringar-<version>-py3-none-manylinux_2_27_<machine>.whl, and the source archive
#   make wheel-any    dist/ringar-<version>-py3-none-any.whl: without the library, for one rank on any system
#   make wheel-aarch64  the same for aarch64, by cross compilation (g++-aarch64-linux-gnu)
#   make clean        removes what was built (make distclean: the environment too)
#
# PYTHON=python3.12 chooses the interpreter, RANKS="2 4" the sizes of `make test`.

PYTHON ?= python3
RANKS ?= 2 3 4
VENV ?= .venv
BIN := $(VENV)/bin
# What work on ringar needs beyond what users have, in pyproject.toml.
GROUPS := test build lint docs
# Python compiles the modules that are used when they are, few of TensorFlow's ten thousand, and keeps
# them, whatever the environment says: images of containers often forbid it, and each process would
# compile for six seconds.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile
# Stamps of what is installed: all packages of development, or what users have.
STAMP := $(VENV)/.ringar-installed
USER_STAMP := $(VENV)/.ringar-installed-for-users
LIBRARY := ringar/libringar.so
SOURCES := $(shell find tf_ops -type f)
# What a wheel is made of, and the wheels, of this machine and of another one.
PACKED := $(SOURCES) $(shell find ringar launchers -name '*.py' -o -name '*.pyi' -o -name py.typed) setup.py pyproject.toml MANIFEST.in README.md
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' ringar/version.py)
WHEEL := dist/ringar-$(VERSION)-py3-none-manylinux_2_27_$(shell uname -m).whl
WHEEL_AARCH64 := dist/ringar-$(VERSION)-py3-none-manylinux_2_27_aarch64.whl
WHEEL_ANY := dist/ringar-$(VERSION)-py3-none-any.whl
CPP := $(shell find tf_ops tests benchmarks -name '*.cc' -o -name '*.h' -o -name '*.inc' 2>/dev/null)
SCRIPTS := .ci/run $(shell find launchers tests benchmarks -name '*.sh' -o -name '*.sbatch' 2>/dev/null)

# The tests that run on 1 rank (plain pytest) and on each of RANKS. Plain pytest runs all others,
# those on several hosts (tests/hosts) among them.
RANK_TESTS := $(wildcard tests/collectives tests/keras tests/asynchronous tests/parallel tests/research tests/horovod tests/cupy/collectives)
# Compiled code stays until its process ends, in some 1,500 mappings for each model of the zoo: all of
# them in one process would need more than the kernel allows (vm.max_map_count).
ZOO := tests/keras/test_zoo.py

# Seconds after which a step is stopped, whatever it is doing: nothing here may hang for ever. Each is
# at least three times what the step takes on two cores. Deadlines that catch a hang belong to tests.
PLAIN_LIMIT ?= 5400
RANKS_LIMIT ?= 1800
NATIVE_LIMIT ?= 1800
LIMIT := timeout --kill-after=20

# Each run of pytest leaves its times here as JUnit XML: `.ci/run` prints the slowest tests of all.
REPORTS := build/reports
PYTEST = $(LIMIT) $(PLAIN_LIMIT) $(BIN)/python -m pytest -q

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: all demo test test-plain test-ranks test-long chaos test-native test-native-aarch64 test-gpu gpu-report test-clusters \
  test-matrix check-wheels lint docs gallery rooms performance format bench bench-targets papers bench-gpu \
  bench-hosts wheel wheel-any wheel-aarch64 clean distclean
.DELETE_ON_ERROR:

all: $(LIBRARY)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 10) else \
	  "ringar: expected Python >= 3.10, received %d.%d from \"$(PYTHON)\"; " % v[:2] + \
	  "name a newer one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo 'ringar: no venv module: apt-get install python3-venv' >&2; exit 1; }

# The first install goes through build isolation, as a user's does.
$(STAMP): pyproject.toml setup.py | $(VENV)/bin/python
	$(PIP_INSTALL) 'pip>=25.1'
	$(PIP_INSTALL) --editable '.[tensorflow]' $(addprefix --group ,$(GROUPS))
	@touch $@

# Build isolation brings CMake and ninja; the library is built in place.
$(USER_STAMP): pyproject.toml setup.py $(SOURCES) ringar/version.py | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[tensorflow,examples]'
	@touch $@

$(LIBRARY): $(SOURCES) ringar/version.py $(STAMP)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# With the packages of development where they are, and without them otherwise.
demo: $(if $(wildcard $(STAMP)),$(LIBRARY),$(USER_STAMP))
	$(LIMIT) 900 $(BIN)/ringarrun -np 2 --no-prefix $(BIN)/python examples/digits.py

test: test-plain test-ranks

# Four files at once, for much of the time jobs only wait; then the tests that measure, with nothing
# beside them. The order is that of tests/plugin/selection.py.
test-plain: $(LIBRARY)
	$(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder -m 'not alone' --junit-xml=$(REPORTS)/plain.xml
	$(PYTEST) -m alone --junit-xml=$(REPORTS)/alone.xml $(shell grep -rlF mark.alone tests --include=test_*.py)

# Once more, every rank running the same tests (see CONTRIBUTING.md); rank 0 alone reports. Two sizes
# at once, for ranks wait for each other a third of the time.
test-ranks: $(LIBRARY)
	$(MAKE) --output-sync=target -j2 $(addprefix test-ranks-,$(RANKS))

test-ranks-%: $(LIBRARY)
	@echo "== $* ranks: $(RANK_TESTS)"
	@$(LIMIT) $(RANKS_LIMIT) $(BIN)/ringarrun -np $* --no-prefix \
	  $(BIN)/python -m pytest -q -p no:cacheprovider $(SLOW) \
	    --junit-xml=$(REPORTS)/$*-ranks.xml $(RANK_TESTS)

# Code that XLA compiles is optimized here, as it is for users (see tests/conftest.py).
test-long test-gpu: export XLA_FLAGS =
test-long: $(LIBRARY)
	$(PYTEST) --slow -m slow --deselect $(ZOO)
	$(MAKE) test-ranks SLOW='--slow -m slow --deselect $(ZOO)' RANKS_LIMIT=5400
	for dtype in float32 mixed_bfloat16 mixed_float16; do \
	  $(PYTEST) --slow -m slow -k $$dtype $(ZOO) && \
	  $(MAKE) test-ranks SLOW="--slow -m slow -k $$dtype" RANK_TESTS=$(ZOO) RANKS_LIMIT=5400 || \
	  exit 1; \
	done
	$(MAKE) build/native-thread.passed SELECTED='$(RARE_RACES)'
	$(MAKE) chaos CHAOS='--count 60'
	$(MAKE) test-native-aarch64
	$(MAKE) test-clusters
	$(MAKE) test-matrix

CHAOS ?= --count 1000
chaos: $(LIBRARY)
	$(BIN)/python -m tests.chaos $(CHAOS)

# It would wait a second at the end of each rank that is a process.
export TSAN_OPTIONS ?= atexit_sleep_ms=0

# ThreadSanitizer of older compilers does not find its way in widely randomized addresses.
FIXED_ADDRESSES = $(shell setarch --addr-no-randomize true 2>/dev/null && \
  echo setarch --addr-no-randomize)

# So many tests of a sanitizer at a time, for much of the time ranks only wait.
NATIVE_JOBS ?= 3

# Left to `make test-long` under ThreadSanitizer: the same threads once more with other sizes, or with
# calls of a GPU that fail or hang.
RARE_RACES := allreduce_in_the_pool_of_many_blocks allreduce_in_the_pool_of_processes \
  between_hosts_large_arrays collectives_at_the_edges_of_their_sizes gpu_calls_that_fail \
  gpu_calls_that_hang
build/native-thread.passed: SELECTED = $(addprefix -,$(RARE_RACES))

# The second program is built while the tests of the first run.
test-native: build/native-address/ringar_tests
	$(MAKE) --output-sync=target -j2 $(foreach kind,address thread,build/native-$(kind).passed)

.PHONY: $(foreach kind,address thread,build/native-$(kind)/ringar_tests build/native-$(kind).passed)

# Compilers leave the cores to tests that run beside them, whose ranks have deadlines.
build/native-address/ringar_tests build/native-thread/ringar_tests: build/native-%/ringar_tests: $(STAMP)
	@echo "== $* sanitizer"
	@$(BIN)/cmake -S tf_ops -B build/native-$* -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DRINGAR_SANITIZE=$* -DRINGAR_WERROR=ON >build/native-$*.log
	@nice -n 19 $(BIN)/cmake --build build/native-$* --target ringar_tests

build/native-address.passed build/native-thread.passed: build/native-%.passed: build/native-%/ringar_tests
	RINGAR_TEST_JOBS=$(NATIVE_JOBS) $(LIMIT) $(NATIVE_LIMIT) $(FIXED_ADDRESSES) \
	  build/native-$*/ringar_tests $(SELECTED)

# $(call need,command,package) stops where a program is missing, and names Debian's package.
need = @command -v $(1) >/dev/null || { \
  echo 'ringar: expected $(1) on PATH, found none: apt-get install $(2)' >&2; exit 1; }

# What qemu does not do as a kernel would is skipped, with the reason.
AARCH64_TESTS := build/native-aarch64
test-native-aarch64: $(STAMP)
	$(call need,aarch64-linux-gnu-g++,g++-aarch64-linux-gnu)
	$(call need,qemu-aarch64-static,qemu-user-static)
	$(BIN)/cmake -S tf_ops -B $(AARCH64_TESTS) -G Ninja \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_TOOLCHAIN_FILE=$(abspath tf_ops/cmake/aarch64-linux-gnu.cmake) >$(AARCH64_TESTS).log
	$(BIN)/cmake --build $(AARCH64_TESTS) --target ringar_tests
	RINGAR_TEST_EMULATED=1 $(LIMIT) $(NATIVE_LIMIT) qemu-aarch64-static -L /usr/aarch64-linux-gnu $(AARCH64_TESTS)/ringar_tests

# Which CuPy and NCCL are installed for tests and benchmarks on GPUs: gpu-cuda13 has those for CUDA 13.
GPU_EXTRA ?= gpu-test

# What is tested is in tests/run_on_gpus.py. Without a GPU it fails before it installs anything.
test-gpu: $(LIBRARY)
	$(BIN)/python -m tests.run_on_gpus --check
	$(PIP_INSTALL) --no-build-isolation --editable '.[$(GPU_EXTRA)]'
	$(LIMIT) $(PLAIN_LIMIT) $(BIN)/python -m tests.run_on_gpus

# Eight minutes at most; goes on after failures, and says what is not possible here.
gpu-report: $(LIBRARY)
	@if $(BIN)/python -m tests.run_on_gpus --check; then \
	  $(PIP_INSTALL) --no-build-isolation --editable '.[bench,$(GPU_EXTRA)]'; fi
	$(BIN)/python -m tests.gpu_report --output build/gpu-report.md

# On Ray and Spark as they come from PyPI; Spark wants a Java.
test-clusters: $(LIBRARY)
	$(call need,java,default-jre-headless)
	$(PIP_INSTALL) --no-build-isolation --editable '.[ray,spark]'
	$(LIMIT) 1800 $(PYTEST) --slow tests/clusters

test-matrix: $(WHEEL)
	$(LIMIT) 1500 $(BIN)/python -m tests.matrix $(WHEEL) $(TENSORFLOW)

check-wheels: $(sort $(WHEEL) $(WHEEL_AARCH64) $(WHEEL_ANY))
	$(BIN)/python -m tests.check_wheels $^

# mypy is the longest by far; the others run beside it.
lint: $(STAMP)
	$(MAKE) --output-sync=target -j2 lint-python lint-rest

.PHONY: lint-python lint-rest
lint-python: build/mypy/ringar
	$(BIN)/mypy -p ringar -p tests $(addprefix -p ,$(wildcard benchmarks)) \
	  $(addprefix -m ,$(subst /,.,$(patsubst %.py,%,setup.py $(wildcard examples/*.py examples/gallery/*.py docs/tools/*.py))))

lint-rest: build/mypy/ringar
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.nouns
	$(BIN)/python -m benchmarks.performance --check
	PYTHONPATH=build/mypy $(BIN)/python docs/tools/rooms.py --check
	cd build/mypy && $(abspath $(BIN))/lint-imports --no-cache --no-logo --config $(abspath pyproject.toml)
	! grep -rnE '#include "(algorithms|kernels)/' $(addprefix tf_ops/,engine links scan sparse)
	! grep -rn '#include "kernels/' tf_ops/algorithms
	$(if $(CPP),$(BIN)/clang-format --dry-run -Werror $(CPP))
	$(BIN)/shellcheck $(SCRIPTS)
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

# The picture of docs/architecture.md, drawn from the imports of ringar.
rooms: $(STAMP) build/mypy/ringar
	PYTHONPATH=build/mypy $(BIN)/python docs/tools/rooms.py

# mypy and import-linter do not follow the map of an editable install: here is ringar with launchers/ in
# its place, in folders of links.
.PHONY: build/mypy/ringar
build/mypy/ringar:
	@rm -rf $@ && mkdir -p $(@D)
	@cp -rs $(abspath ringar) $(@D)/ && cp -rs $(abspath launchers) $@/

# The tables of performance, from the figures of all kinds of machines that were measured.
performance: $(STAMP)
	$(BIN)/python -m benchmarks.performance

# Strict: see mkdocs.yml. No request leaves the machine.
docs: $(STAMP)
	$(LIMIT) 600 env NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# Runs the examples of the gallery, and puts what they print and draw into their files.
gallery: $(LIBRARY)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[gallery]'
	$(LIMIT) 1800 $(BIN)/python docs/tools/gallery.py

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(if $(CPP),$(BIN)/clang-format -i $(CPP))

# About twenty minutes; nothing else should run meanwhile. Peers are installed into
# environments of their own below build/bench.
bench: $(LIBRARY)
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench]'
	$(LIMIT) 3600 $(BIN)/python -m benchmarks

bench-targets: $(LIBRARY)
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench]'
	$(LIMIT) 1800 $(BIN)/python -m benchmarks --targets

# Each of them for five minutes at most.
papers: $(LIBRARY)
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench]'
	$(LIMIT) 3600 $(BIN)/python -m benchmarks.papers

# Some minutes, on as many ranks as there are GPUs.
bench-gpu: $(LIBRARY)
	$(BIN)/python -m tests.run_on_gpus --check
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench,$(GPU_EXTRA)]'
	$(LIMIT) 1800 $(BIN)/python -m benchmarks.allreduce --device gpu --output build/bench-gpu.json

# Some minutes. Hosts are network namespaces whose links have a rate: the figures are the links'.
bench-hosts: $(LIBRARY)
	$(PIP_INSTALL) --no-build-isolation --editable '.[bench]'
	$(LIMIT) 1800 $(BIN)/python -m benchmarks.hosts --output build/bench-hosts
	$(BIN)/python -m benchmarks.simulate --check build/bench-hosts.json

wheel: $(WHEEL)
wheel-any: $(WHEEL_ANY)
wheel-aarch64: $(WHEEL_AARCH64)

# Through the source archive, so that what the archive lacks the wheel cannot have.
$(WHEEL): $(PACKED) | $(STAMP)
	$(BIN)/python -m build --outdir dist .

$(WHEEL_ANY): $(PACKED) | $(STAMP)
	_PYTHON_HOST_PLATFORM=any $(BIN)/python -m build --no-isolation --outdir dist .

# Not in isolation, which would bring CMake for the machine that is built for.
ifneq ($(WHEEL_AARCH64),$(WHEEL))
$(WHEEL_AARCH64): $(PACKED) | $(STAMP)
	$(call need,aarch64-linux-gnu-g++,g++-aarch64-linux-gnu)
	_PYTHON_HOST_PLATFORM=linux-aarch64 $(BIN)/python -m build --no-isolation --outdir dist .
endif

clean:
	rm -rf build dist *.egg-info ringar/*.so .pytest_cache .mypy_cache .ruff_cache

distclean: clean
	rm -rf $(VENV)
