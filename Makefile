# Each task has one command. All commands are bounded in time.

SEEDS ?= 2000
FROM ?= 1
SOAK_SECONDS ?= 3600
SOAK_SEEDS ?= 1000000
RUNS ?= 200
STORM ?=
PACKETS ?= 10000000
OPERATIONS ?= 10000000
FUZZ_SECONDS ?= 60
KERNELS ?=
MINUTES ?= 10
# Lost datagrams, in percent.
LOSS ?= 2
VERBS_verbs-loss = --loss $(LOSS)
VERBS_verbs-cuts = --cuts $(RUNS)
PACKAGE ?= pmnet-resp
MUTANTS_OPTIONS ?=
COMMANDS ?= 1000000
STORE ?=
SEED ?= 1
CARGO ?= cargo
LAB = $(CARGO) run --quiet --release --locked -p pmnet-lab --
SIM = $(CARGO) run --quiet --release --locked -p pmnet-sim --
# Folder of Debian's RocksDB. Without this variable and the next one RocksDB would be compiled, which takes a quarter of
# an hour.
ROCKSDB_LIB_DIR ?= $(dir $(firstword $(wildcard /usr/lib/*/librocksdb.so /usr/lib/librocksdb.so)))
ROCKSDB_INCLUDE_DIR ?= /usr/include
BENCH_OPTIONS ?=
# Folder from which install-lib takes libpmnet, and the prefix to which it installs.
LIB_FROM ?= target/release
DESTDIR ?=
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
# The profile that the wheel is built with.
WHEEL_PROFILE ?= release
# Further options for make dist (dist/build.py --help).
DIST_OPTIONS ?=
# The release from which make upgrade starts: the newest tag.
BEFORE ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# With STORE=NAME: a PATH in which redis-server is this server.
WITH_STORE = $(if $(STORE),python3 tests/compat/servers.py run $(STORE))

.PHONY: help rust build lib install-lib python setup demo test check lint sim rules crash model mutants dropped cargo-mutants histories failovers week redis-cluster compat queues types-diff rights churn bench-store bench-store-test helm-test kernel kernels nvdimm powercut verbs verbs-loss verbs-cuts attack page alerts fuzz soak dist dist-test image image-test upgrade

help:
	@echo "make demo            see it: measure, kill, check, report (target/demo/report.html)"
	@echo "make test            everything that must be green; what CI runs. Long campaigns are targets of their own: sim, rules, crash, model, histories, failovers, kernel, compat"
	@echo "make check           before a commit: format, clippy, unit tests, 200 seeds of the simulator; a few minutes after a build"
	@echo "make lint            format, clippy, dependencies, tables of mutants only"
	@echo "make sim SEEDS=$(SEEDS) FROM=$(FROM)   the simulator, from seed FROM on"
	@echo "make rules           the simulator with each rule of the protocol switched off: all must be missed"
	@echo "make crash           log and packet store: every persist point, every image, crashes in recovery too"
	@echo "make model           the protocol in a model checker, searched to its end"
	@echo "make mutants         flushes, fences, orders of persists, the C of the pipeline changed in turn: who notices?"
	@echo "make dropped PACKAGE=$(PACKAGE)   each check and each statement of one crate left out in turn: who notices?"
	@echo "make cargo-mutants PACKAGE=$(PACKAGE)   every operator and value of one crate changed in turn: who notices?"
	@echo "make histories RUNS=$(RUNS)   real processes, killed and cut off: linearizable?"
	@echo "make failovers RUNS=$(RUNS) FROM=$(FROM)   a fleet whose devices, server, Redis, etcd and fronts are lost at random, and which heals by itself"
	@echo "make failovers STORM=1 RUNS=$(RUNS)   the same, with up to five short faults within a few seconds"
	@echo "make week            a week of an idle and of a busy fleet, as fast as a real etcd goes: does its database stay small? (two hours)"
	@echo "make redis-cluster RUNS=$(RUNS)   three shards over a Redis Cluster: everything killed at random, a slot moved there and back"
	@echo "make compat          Redis's own suite, clients' own tests and random commands, direct and through the front (about an hour)"
	@echo "make compat STORE=valkey-9.1   the same with another server (tests/compat/servers.py list); histories, failovers too"
	@echo "make queues STORE=valkey-9.1   Celery, BullMQ, Sidekiq through the front, a minute each, with kills: does every job run once?"
	@echo "make types-diff COMMANDS=$(COMMANDS) SEED=$(SEED)   random commands: does the embedded store answer as Redis does?"
	@echo "make rights COMMANDS=$(COMMANDS) STORE=valkey-9.1   random users and commands, beside the server itself: no leak, no false refusal?"
	@echo "make churn OPERATIONS=$(OPERATIONS)   the packet store, written over and over: how much room does it take?"
	@echo "make bench-store BENCH_OPTIONS=...   the packet store beside RocksDB, LMDB, redb and fjall, and Table 1 of its paper"
	@echo "make bench-store-test   that benchmark itself: lint and tests"
	@echo "make kernel PACKETS=$(PACKETS)   the device in the kernel: answers as the one in user space; killed for minutes: linearizable?"
	@echo "make kernels         does the pipeline load on Debian's kernels, and do there what user space does? (in QEMU)"
	@echo "make nvdimm RUNS=$(RUNS)     the power of a machine with persistent memory is cut under load: is everything there? (in QEMU)"
	@echo "make powercut RUNS=$(RUNS)   a log on ext4 and xfs, as every flush leaves it, and parts of writes: is it whole? (in QEMU)"
	@echo "make verbs           RDMA: a NIC (soft-RoCE) acknowledges, processes are killed and stopped: is all there, in order? (in QEMU)"
	@echo "make verbs-loss LOSS=$(LOSS)   the same with two machines, and so many percent of loss between them (in QEMU)"
	@echo "make verbs-cuts RUNS=$(RUNS)   slots and log in persistent memory, and so many power cuts under load: is everything there? (in QEMU)"
	@echo "make attack PACKETS=$(PACKETS)   an adversary in each link of a chain with keys: processes, AF_XDP, the kernel, each without and with --cache log; each a sixth of so many packets"
	@echo "make page            the page of the status port in Chromium, over real processes; pictures in target/page (UPDATE=1: also in docs)"
	@echo "make alerts MINUTES=$(MINUTES)   load with a kill a minute that heals, watched by a real Prometheus: does any alert cry wolf?"
	@echo "make fuzz FUZZ_SECONDS=$(FUZZ_SECONDS)   each fuzz target for so long"
	@echo "make soak            SOAK_SEEDS=$(SOAK_SEEDS) of the simulator, then SOAK_SECONDS=$(SOAK_SECONDS) of checked load with kills"
	@echo "make setup           install what tests and demo use, where that is possible"
	@echo "make lib             libpmnet, for programs of one's own in C and C++"
	@echo "make install-lib DESTDIR=$(DESTDIR) PREFIX=$(PREFIX)   installs it, with its header, pkg-config file and man pages"
	@echo "make dist            packages of this machine's architecture, with library, archive and SBOM, in target/dist"
	@echo "make dist-test       installs them in a new Debian, uses and purges them (root; mmdebstrap, lintian)"
	@echo "make image           a container image of what make dist made (buildah); make image-test runs it with runc"
	@echo "make helm-test       the Helm chart: lint, schemas of Kubernetes, refused values; its pods run as processes (Go, the first time for 25 minutes; root)"
	@echo "make upgrade BEFORE=$(BEFORE)   one release (a tag or commit) and this tree, mixed under checked load, forth and back"
	@echo "make python          the wheel of pmnet for Python, in target/wheels"
	@echo "make build           the optimised binaries: the product, and the laboratory around it"

# Says in one sentence what to install.
rust:
	@CARGO="$(CARGO)" sh tests/setup.sh rust

build lib python demo test check lint sim rules crash model mutants dropped cargo-mutants histories failovers week redis-cluster compat queues types-diff rights kernel kernels nvdimm powercut verbs verbs-loss verbs-cuts attack page alerts fuzz soak dist upgrade helm-test: rust

build:
	$(CARGO) build --release --locked -p pmnet
	$(CARGO) build --release --locked -p pmnet-lab

lib:
	$(CARGO) build --release --locked -p pmnet-capi

install-lib:
	@test -f $(LIB_FROM)/libpmnet.so || { echo "there is no $(LIB_FROM)/libpmnet.so: build it first (make lib)"; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man3
	install -m 644 crates/capi/include/pmnet.h $(DESTDIR)$(PREFIX)/include/
	install -m 755 $(LIB_FROM)/libpmnet.so $(DESTDIR)$(LIBDIR)/libpmnet.so.$(VERSION)
	ln -sf libpmnet.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libpmnet.so.0
	ln -sf libpmnet.so.0 $(DESTDIR)$(LIBDIR)/libpmnet.so
	install -m 644 $(LIB_FROM)/libpmnet.a $(DESTDIR)$(LIBDIR)/
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' crates/capi/pmnet.pc.in \
		>$(DESTDIR)$(LIBDIR)/pkgconfig/pmnet.pc
	install -m 644 crates/capi/man/*.3 $(DESTDIR)$(PREFIX)/share/man/man3/
	@for page in pmnet_client pmnet_server pmnet_error_text; do \
		sed -n 's/^\.F[on] \(pmnet_[a-z_]*\).*/\1/p' crates/capi/man/$$page.3 | sort -u | while read -r name; do \
			[ "$$name" = $$page ] || ln -sf $$page.3 $(DESTDIR)$(PREFIX)/share/man/man3/$$name.3; \
		done; \
	done

# One wheel for Python 3.9 and later.
python:
	@sh tests/setup.sh python
	@test -x target/venv/bin/maturin || { echo "there is no target/venv/bin/maturin, which builds the wheel (pip install maturin)"; exit 1; }
	target/venv/bin/maturin build --profile $(WHEEL_PROFILE) --locked --manifest-path crates/python/Cargo.toml --out target/wheels

dist:
	@python3 dist/build.py $(DIST_OPTIONS)

dist-test:
	@python3 dist/test.py

image:
	@python3 dist/image.py

image-test:
	@python3 dist/image.py --test

# This is no part of make test, because it compiles Helm for a quarter of an hour.
helm-test:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@python3 tests/helm/run.py tools
	@python3 tests/helm/run.py
	@python3 tests/helm/run.py pods

# The previous release is built from a separate checkout.
upgrade:
	@test -n "$(BEFORE)" || { echo "there is no tag yet: name a commit (make upgrade BEFORE=COMMIT)"; exit 1; }
	@sh tests/setup.sh packages
	@rm -rf target/before && git worktree prune && git worktree add --quiet --detach --force target/before $(BEFORE)
	@cd target/before && $(CARGO) build --release --locked --target-dir ../before-build -p pmnet
	@git worktree remove --force target/before
	@$(CARGO) build --release --locked -p pmnet
	@PMNET_BEFORE=$(CURDIR)/target/before-build/release/pmnet $(CARGO) test --release --locked -p pmnet-lab --test e2e upgrade:: -- \
		--ignored --nocapture --test-threads=1

setup:
	@sh tests/setup.sh packages servers python node

demo:
	@echo "demo: builds pmnet first (once: about 5 minutes on two cores), then measures, kills and checks for a minute and a half"
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@$(LAB) demo

test:
	@sh tests/setup.sh packages redis servers python node promtool
	@bash tests/run.sh all

check:
	@bash tests/run.sh check

lint:
	@bash tests/run.sh lint

sim:
	@$(SIM) --seeds $(SEEDS) --from $(FROM)

rules:
	@$(SIM) --without all --note crates/sim/noticed

crash:
	@$(CARGO) test --release --locked -p pmnet-log --test enumerate -- --ignored --nocapture
	@$(CARGO) test --release --locked -p pmnet-packet-store --test enumerate --test shared -- --ignored --nocapture

model:
	@$(CARGO) run --quiet --release --locked -p pmnet-model

mutants:
	@python3 tests/mutants/run.py

dropped:
	@python3 tests/mutants/dropped.py $(PACKAGE) $(MUTANTS_OPTIONS)

# An exit code of its own says that a mutant survived; survivors.py knows whether it is explained.
cargo-mutants:
	@$(CARGO) mutants --version >/dev/null 2>&1 || \
		{ echo "there is no cargo-mutants: cargo install cargo-mutants --locked"; exit 1; }
	@mkdir -p target/cargo-mutants/$(PACKAGE)
	@$(CARGO) mutants --package $(PACKAGE) --timeout 20 --output target/cargo-mutants/$(PACKAGE) $(MUTANTS_OPTIONS) -- --lib --tests || \
		[ $$? = 2 ] || [ $$? = 3 ]
	@python3 tests/mutants/survivors.py $(PACKAGE) target/cargo-mutants/$(PACKAGE)/mutants.out/outcomes.json

histories:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@PMNET_RUNS=$(RUNS) $(WITH_STORE) $(CARGO) test --release --locked -p pmnet-lab --test e2e histories::many -- \
		--ignored --nocapture --test-threads=1

failovers:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@PMNET_RUNS=$(RUNS) PMNET_TEST_SEED=$(FROM) PMNET_STORM=$(STORM) PMNET_REPORT=$(CURDIR)/target/failovers.json $(WITH_STORE) $(CARGO) test --release --locked \
		-p pmnet-lab --test e2e failovers::many -- --ignored --nocapture --test-threads=1

week:
	@$(CARGO) test --release --locked -p pmnet-fleet agent::week -- --ignored --nocapture

redis-cluster:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@PMNET_RUNS=$(RUNS) $(CARGO) test --release --locked -p pmnet-lab --test e2e redis_cluster::many -- \
		--ignored --nocapture --test-threads=1

compat:
	@sh tests/setup.sh packages redis
	@$(CARGO) build --release --locked -p pmnet
	@python3 tests/compat/run.py $(if $(STORE),--store $(STORE))

queues:
	@sh tests/setup.sh packages redis
	@$(CARGO) build --release --locked -p pmnet
	@python3 tests/compat/queues.py $(if $(STORE),--store $(STORE))

types-diff:
	@sh tests/setup.sh packages redis
	@PMNET_TYPES_COMMANDS=$(COMMANDS) PMNET_TYPES_SEED=$(SEED) $(CARGO) test --locked -p pmnet-store \
		--test store -- types:: --nocapture

rights:
	@sh tests/setup.sh packages redis
	@PMNET_RIGHTS_COMMANDS=$(COMMANDS) PMNET_TEST_SEED=$(SEED) $(WITH_STORE) $(CARGO) test --locked -p pmnet-front \
		--test front -- acl:: --nocapture

churn:
	@$(CARGO) run --quiet --release --locked -p pmnet-packet-store --example measure -- churn /dev/shm/pmnet-churn-$$$$ \
		$(OPERATIONS)

bench-store:
	@ROCKSDB_LIB_DIR="$(ROCKSDB_LIB_DIR)" ROCKSDB_INCLUDE_DIR="$(ROCKSDB_INCLUDE_DIR)" $(CARGO) run --quiet --release --locked \
		--manifest-path bench/store/Cargo.toml --target-dir target/bench-store \
		$(if $(ROCKSDB_LIB_DIR),--features rocksdb) -- $(BENCH_OPTIONS)

# RocksDB is left out, because not every machine has it.
bench-store-test:
	@$(CARGO) clippy --manifest-path bench/store/Cargo.toml --target-dir target/bench-store --locked --all-targets -- -D warnings
	@$(CARGO) test --release --manifest-path bench/store/Cargo.toml --target-dir target/bench-store --locked

kernel:
	@sh tests/setup.sh packages
	@PMNET_PACKETS=$(PACKETS) $(CARGO) test --release --locked -p pmnet-dataplane --test kernel -- \
		--nocapture --test-threads=1
	@PMNET_SECONDS=60 $(CARGO) test --release --locked -p pmnet-packets --test region reception -- --nocapture
	@$(CARGO) build --release --locked -p pmnet
	@$(CARGO) test --release --locked -p pmnet-lab --test e2e kernel:: -- \
		--ignored --nocapture --test-threads=1

kernels:
	@python3 tests/kernels/run.py $(KERNELS)

nvdimm:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@python3 tests/nvdimm/run.py --runs $(RUNS)

powercut:
	@python3 tests/powercut/run.py --runs $(RUNS)

attack:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet -p pmnet-lab
	@for mode in relay af-xdp kernel; do for cache in pending log; do \
		$(CARGO) run --quiet --release --locked -p pmnet-lab -- attack --mode $$mode --cache $$cache --packets $$(($(PACKETS) / 6 + 1)) || exit 1; \
	done; done

verbs verbs-loss verbs-cuts:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet -p pmnet-lab
	@$(CARGO) build --release --locked -p pmnet-verbs --example rude
	@python3 tests/verbs/run.py $(VERBS_$@) $(KERNELS)

page:
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@python3 tests/page/run.py

alerts:
	@sh tests/setup.sh packages promtool
	@$(CARGO) build --release --locked -p pmnet
	@PMNET_MINUTES=$(MINUTES) $(CARGO) test --release --locked -p pmnet-lab --test e2e alerts::none_cries_wolf_for_long -- \
		--ignored --nocapture --test-threads=1

fuzz:
	@bash fuzz/run.sh --seconds $(FUZZ_SECONDS)

soak:
	@$(SIM) --seeds $(SOAK_SEEDS)
	@sh tests/setup.sh packages
	@$(CARGO) build --release --locked -p pmnet
	@$(LAB) demo --quick --checked-seconds $(SOAK_SECONDS)
