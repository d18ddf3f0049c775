# A thin wrapper around CMake presets and the scripts in deploy/.
.DEFAULT_GOAL := help
JOBS ?= $(shell nproc)
BENCHES = linear_bench attention_bench scaling_bench context_bench

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

run: build ## install what is missing, build, fetch SmolLM2 and serve it on port 50051
	@model=$$(deploy/fetch-model.sh) && exec build/release/quire serve --model "$$model" $(ARGS)

test: ## install what is missing, build and pass all tests
	@deploy/install-deps.sh
	@deploy/fetch-model.sh >/dev/null
	@deploy/make-grpc-clients.sh >/dev/null
	@deploy/fetch-xgrammar.sh >/dev/null
	@deploy/client-venv.sh >/dev/null
	@deploy/fetch-http-clients.sh >/dev/null
	@deploy/fetch-guidellm.sh >/dev/null
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS)
	@ctest --preset release

build: ## the daemon, at build/release/quire
	@deploy/install-deps.sh
	@deploy/fetch-xgrammar.sh >/dev/null
	@cmake --preset release -DQUIRE_TESTS=ON >/dev/null
	@cmake --build --preset release -j $(JOBS) --target quire

bench: ## short measurements of kernels and of the model, with machine and versions (minutes)
	@deploy/install-deps.sh
	@deploy/fetch-xgrammar.sh >/dev/null
	@cmake --preset release >/dev/null
	@cmake --build --preset release -j $(JOBS) --target quire $(BENCHES)
	@model=$$(deploy/fetch-model.sh) && deploy/bench.sh "$$model"

bench-abuse: build ## what abuse of the ports costs a steady client (two minutes)
	@cmake --build --preset release -j $(JOBS) --target python_stubs
	@model=$$(deploy/fetch-model.sh) && QUIRE_BINARY=$(CURDIR)/build/release/quire QUIRE_SMOLLM2="$$model" \
	  QUIRE_STUBS=$(CURDIR)/build/release/gen-python /usr/bin/python3 bench/abuse.py

format: ## clang-format everything that git tracks
	@git ls-files '*.cc' '*.h' '*.cu' | xargs clang-format -i

matrix: ## every preset's tests: release, dev, asan, tsan, then tidy on all files (slow)
	@deploy/install-deps.sh debian-packages-checks.txt
	@deploy/check.sh all

clean: ## remove build folders, not the model and sources of third parties
	@rm -rf build/release build/dev build/asan build/tsan build/tidy build/cuda

.PHONY: help run test build bench bench-abuse format matrix clean
