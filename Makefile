# The two commands of the README are `make demo` and `make test`; each sets up everything it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test check bench build clean help

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

demo: build ## train, pack and run a compressed LeNet on the digits inside the package (about two minutes)
	$(BIN)/subbit demo

test: build ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: build ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: build ## the standard benchmarks; results go to bench/results
	$(BIN)/pip install -q -c constraints.txt -e ".[bench]" --no-build-isolation
	$(BIN)/python -m bench

build: $(STAMP)
	@$(BIN)/cmake -S . -B build/dev -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DSUBBIT_DEVELOPMENT=ON > build/cmake.log 2>&1 \
	  || { cat build/cmake.log; exit 1; }
	@$(BIN)/cmake --build build/dev

$(STAMP): pyproject.toml constraints.txt CMakeLists.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@mkdir -p build
	$(BIN)/python -m pip install -q -c constraints.txt scikit-build-core cmake ninja
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e ".[dev]"
	@touch $@

clean: ## remove everything that was built
	rm -rf build $(VENV) src/subbit/runtime/*.so
