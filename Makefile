# One command for each thing. All of them are bounded in time.

SEEDS ?= 2000
SOAK_SECONDS ?= 3600
CARGO ?= cargo
PMNET = $(CARGO) run --quiet --release --locked -p pmnet --

.PHONY: help build setup demo test lint sim soak

help:
	@echo "make demo            see it: measure, kill, check, report (target/demo/report.html)"
	@echo "make test            everything that must be green; what CI runs"
	@echo "make lint            format, clippy, dependencies only"
	@echo "make sim SEEDS=$(SEEDS)   the simulator"
	@echo "make soak SOAK_SECONDS=$(SOAK_SECONDS)   checked load with kills for so long"
	@echo "make setup           install what tests and demo use, where that is possible"
	@echo "make build           the optimised binary"

build:
	$(CARGO) build --release --locked -p pmnet

setup:
	@sh tests/setup.sh packages python node

demo:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@$(PMNET) demo

test:
	@sh tests/setup.sh packages python node
	@bash tests/run.sh all

lint:
	@bash tests/run.sh lint

sim:
	@$(PMNET) sim --seeds $(SEEDS)

soak:
	@sh tests/setup.sh packages
	@$(PMNET) demo --quick --checked-seconds $(SOAK_SECONDS)
