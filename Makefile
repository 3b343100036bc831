# Every target says after ## what it does; `make` prints them.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo up down status test test-faults test-ministack stress mutate check fmt migrate queues run new psql bench-latency bench-memory bench-purge bench-repair bench-size

# Runs a command with the addresses of the local stack.
WITH_STACK := scripts/stack up && eval "$$(scripts/stack env)" &&

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing (PostgreSQL, Redis) and build everything
	@scripts/setup
	@cargo build --workspace

demo: setup ## Run 1,000 events through the whole, kill a worker half-way, and show that nothing was lost or doubled
	@scripts/demo

up: ## Start the local PostgreSQL, Redis, SQS engine and mail sink on private ports
	@scripts/setup
	@scripts/stack up

down: ## Stop them
	@scripts/stack down

status: ## Show which of them run, and where
	@scripts/stack status || true

# Most tests wait more than they compute.
test: export RUST_TEST_THREADS ?= 8
test: setup ## Run all tests against the local stack
	@scripts/setup --examples
	@$(WITH_STACK) cargo test --workspace
	@$(WITH_STACK) cargo test --quiet --package monalisa --test it -- --ignored new_crate::

REPEAT ?= 1
FAULTS ?= faults:: relay_rows:: relay_two:: clocks:: worker_
test-faults: setup ## Run the tests of faults (those whose names hold one of FAULTS), REPEAT times, and stop at the first failure
	@$(WITH_STACK) for round in $$(seq $(REPEAT)); do \
	  echo "round $$round of $(REPEAT)"; \
	  cargo test --quiet --package monalisa --test it -- --test-threads 8 $(FAULTS) || exit 1; \
	done

test-ministack: setup ## Run the tests against a second SQS engine, ministack, which is installed from PyPI
	@scripts/setup --examples
	@$(WITH_STACK) scripts/with-ministack cargo test --package monalisa --test it

SEED ?= $(shell date +%s)
RUNS ?= 600
stress: setup ## Let RUNS runs meet faults of all kinds at once, in the order that SEED has, and prove that every invariant held
	@$(WITH_STACK) SEED=$(SEED) RUNS=$(RUNS) cargo test --quiet --package monalisa --test it -- --nocapture stress::whatever

mutate: setup ## Take a fence, a check or a bound out of the code, one at a time, and show that a test fails
	@$(WITH_STACK) scripts/mutate

check: ## Check formatting, lints and documentation
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings
	@cargo clippy --package monalisa --lib --no-default-features -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --quiet

fmt: ## Format the code
	@cargo fmt --all

# The binary as setup builds it: of the package alone its dependencies would have other features, and be built again.
WORKERS := cargo build --quiet --workspace && TARGET=$$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/') && "$$TARGET/debug/workers"

# With DATABASE_URL given these act there; else on the local stack.
migrate: ## Bring the schema up to date and load the catalogue of units
	@$(if $(DATABASE_URL),,$(WITH_STACK)) $(WORKERS) migrate

queues: ## Make the SQS queues, or correct their attributes
	@$(if $(MONALISA_SQS_QUEUE_URL_PREFIX),,$(WITH_STACK)) $(WORKERS) queues create

run: ## Run the workers and the relay against the local stack
	@$(WITH_STACK) export MONALISA_RELAY=$${MONALISA_RELAY:-true} && $(WORKERS)

new: ## Make a crate for units of your own, beside this clone: make new CRATE=../my-workers
	@$(if $(CRATE),,$(error say where: make new CRATE=../my-workers)) $(WORKERS) new "$(CRATE)"

psql: ## Open psql on the local database
	@$(WITH_STACK) psql "$$DATABASE_URL"

bench-latency: setup ## Measure the time from commit to handler start at idle, with Valkey and without
	@scripts/bench-latency

bench-memory: setup ## Measure the memory of a process while 100,000 rows are pending
	@scripts/bench-memory

bench-repair: setup ## Measure a repair of 10,000 lost runs among a million unfinished ones, and what starts beside it notice
	@scripts/bench-repair

bench-purge: setup ## Measure the purge of two million rows by three purgers, and what dispatches beside it notice
	@scripts/bench-purge

bench-size: setup ## Measure the bytes of table, index and WAL that a run costs
	@scripts/bench-size
