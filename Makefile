# SPDX-License-Identifier: Apache-2.0
# Every target prepares what it needs; `make setup` alone creates .venv with Atoll installed.
PYTHON ?= python3
VENV := .venv/bin/python

.PHONY: help setup demo test verify soak aarch64 bench gpu gpu-pack check docs wheel matrix clean

help:
	@echo "make setup    .venv with PyTorch and Atoll, built and installed (quick when nothing changed)"
	@echo "make demo     trains over two islands, and divides an inference between a robot and a server"
	@echo "make test     C++ and Python tests"
	@echo "make verify   longer tests: PyTorch's own suite, the wheel, sanitizers, fuzzing"
	@echo "make soak     hours of load and faults"
	@echo "make aarch64  C++ tests for 64-bit ARM, cross-compiled, in an emulator"
	@echo "make bench    the measurements behind the README's figures"
	@echo "make gpu      tries a GPU beside the CPU (GPU_ARGS='--plan' prints the steps; docs/hardware.md)"
	@echo "make gpu-pack what make gpu needs on a machine without a network, in build/gpu-pack"
	@echo "make check    formatting, lint, types, structure (scripts/check.py --fix repairs formatting)"
	@echo "make matrix   tries each release of PyTorch in releases.toml: docs/results/versions.md"
	@echo "make docs     the documentation site, in site/"
	@echo "make wheel    wheels for each release of PyTorch (TORCH=2.14.1: for that one), and the source archive, in dist/"
	@echo "make clean    removes build/, dist/ and site/; .venv stays"

setup:
	@$(PYTHON) scripts/setup.py

demo:
	@$(PYTHON) scripts/setup.py --no-tests
	@$(VENV) examples/demo.py
	@$(VENV) examples/demo_split.py

test: setup
	@$(VENV) scripts/run_tests.py test

verify: setup
	@$(PYTHON) scripts/setup.py --packages verify
	@$(VENV) scripts/run_tests.py verify

soak: setup
	@$(VENV) scripts/run_tests.py soak

aarch64: setup
	@$(PYTHON) scripts/setup.py --packages aarch64
	@$(VENV) scripts/run_tests.py aarch64

bench: setup
	@$(PYTHON) scripts/setup.py --packages bench
	@$(VENV) bench/run.py

# With the Python that holds the GPU's PyTorch: make gpu PYTHON=/path/to/python3
gpu:
	@$(PYTHON) scripts/gpu.py $(GPU_ARGS)

gpu-pack:
	@$(PYTHON) scripts/gpu_pack.py

check: setup
	@$(PYTHON) scripts/setup.py --packages check
	@$(VENV) scripts/check.py

matrix: setup
	@$(VENV) scripts/matrix.py

docs: setup
	@NO_MKDOCS_2_WARNING=1 $(VENV) -m mkdocs build --strict --quiet
	@echo "Atoll: documentation written to site/index.html"

wheel: setup
	@$(VENV) scripts/wheel.py $(if $(TORCH),--only $(TORCH))

clean:
	@rm -rf build dist site
