# Sluice's commands. `make help` lists them.
#   make demo     two namespaces joined only through firewall → NAT → monitor, with real TCP (root; installs what is missing)
#   make demo-container     the firewall as an OCI container, made of what was built here (root)
#   make test     all tests, with DPDK and the solver where they can be built, and the model check of the ring
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rustup puts cargo here; a shell that was open before does not know it yet. It goes before the system's own, which may be too old.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
PREFIX ?= /usr/local
# Where the library goes for NFs in C, below PREFIX.
LIBDIR ?= lib
CARGO_FLAGS ?= --locked
# DPDK is built in where its development files are: DPDK=no leaves it out, DPDK=yes insists.
DPDK ?= $(shell pkg-config --exists libdpdk 2>/dev/null && echo yes || echo no)
# The optimiser's solver is built in where cmake and libclang are: OPTIMISER=no leaves it out, OPTIMISER=yes insists.
OPTIMISER ?= $(shell scripts/deps --check optimiser 2>/dev/null && echo yes || echo no)
# OTEL=yes builds in what pushes metrics to an OpenTelemetry collector.
OTEL ?= no
# What `make install` and packages take. With PROFILE=debug it is what the tests run, which is there already in CI: not optimized, and with
# checks that a release does not have.
PROFILE ?= release
BUILT = $(TARGET)/$(PROFILE)
# Of all packages.
VERSION = $(shell sed -nE 's/^version = "(.*)"/\1/p' Cargo.toml)
comma := ,
define newline


endef
with := $(strip $(if $(filter yes,$(DPDK)),sluice-daemon/dpdk) $(if $(filter yes,$(OPTIMISER)),sluice-lab/optimiser) \
    $(if $(filter yes,$(OTEL)),sluice-daemon/otel))
FEATURES := $(if $(with),--features $(subst $() $(),$(comma),$(with)))

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.PHONY: deps
deps: ## install what building, testing and the demo need (Debian; root for packages)
	scripts/deps all

.PHONY: demo
demo: ## two namespaces joined only through Sluice, real TCP, a report (root)
	scripts/deps demo
	cargo build --release $(CARGO_FLAGS) -p sluice-daemon -p sluice-client -p sluice-nf-firewall -p sluice-nf-nat -p sluice-nf-monitor \
	    --features sluice-daemon/dpdk
	demo/run $(TARGET)/release

.PHONY: demo-container
demo-container: ## the firewall in an OCI container, made of what was built here (root)
	scripts/deps demo
	cargo build --release $(CARGO_FLAGS) -p sluice-daemon -p sluice-client -p sluice-nf-firewall \
	    $(if $(filter yes,$(DPDK)),--features sluice-daemon/dpdk)
	demo/container $(TARGET)/release

.PHONY: build
build: ## release build of everything: daemon, client, lab, NFs, C library, NFs in C
	cargo build --release --workspace $(CARGO_FLAGS) $(FEATURES)
	$(MAKE) -C nfs/c TARGET=$(TARGET)/release

# All tests with the features that there is everything for, and before them the tests of what is said where DPDK and the solver are missing.
# These are selected by the name of their target: with all packages selected, and with OpenTelemetry where the rest has it, only crates that
# differ are built twice. The programs are built before the tests that start them.
.PHONY: test
test: ## all tests, with DPDK and the solver where they can be built, and the model check of the ring
	scripts/deps --check test
ifneq ($(FEATURES),)
	cargo test --workspace $(CARGO_FLAGS) $(addprefix --features ,$(filter %/otel,$(with))) --test absent
endif
	$(MAKE) test-programs
	cargo test $(CARGO_FLAGS) -p sluice-nf --features trace --lib trace
	SLUICE_TRACED=required $(SOME_OF_CACHEGRIND) cargo test --workspace $(CARGO_FLAGS) $(FEATURES)
ifneq ($(DPDK),yes)
	@echo "DPDK is not installed (apt-get install libdpdk-dev), so the tests did not run with it"
endif
ifneq ($(OTEL),yes)
	@echo "OTEL=yes builds in what pushes metrics to an OpenTelemetry collector; its tests did not run"
endif
ifneq ($(OPTIMISER),yes)
	@echo "cmake or libclang is not installed (apt-get install cmake libclang-dev), so the tests of the optimiser did not run"
endif
	$(MAKE) loom

# What the tests start, as they start it.
.PHONY: programs
programs:
	cargo build --workspace $(CARGO_FLAGS) $(FEATURES)
	$(MAKE) -C nfs/c TARGET=$(TARGET)/debug

# And the tests, built and not run: that needs no quiet host.
.PHONY: test-programs
test-programs: programs
	TRACE_LTO=off scripts/trace-nf firewall lookup macswap nat
	TRACE_LTO=off scripts/trace-nf --plain lookup nat
	cargo test --workspace $(CARGO_FLAGS) $(FEATURES) --no-run
	$(LOOM) --no-run

# One NF at few ways, where the model would be wrong first, and one that owns its loop; `make cachegrind` compares all of them.
SOME_OF_CACHEGRIND = SLUICE_CACHEGRIND=required SLUICE_CACHE_NFS=nat,lookup SLUICE_CACHE_WAYS=1,3,8
TRACED = bridge cost crypt firewall lb logger lookup macswap mark monitor nat router search single vlan

.PHONY: cachegrind
cachegrind: ## compare the model of the caches with cachegrind, for the example NFs (twenty minutes)
	scripts/deps --check test
	scripts/trace-nf $(TRACED)
	scripts/trace-nf --plain $(TRACED)
	SLUICE_CACHEGRIND=required cargo test $(CARGO_FLAGS) -p sluice-cache --test cachegrind -- --nocapture

# A target folder of its own: the flag changes every crate, and would make the next build start from nothing. With it, the models are
# the only tests there are.
LOOM = RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=none \
    cargo test $(CARGO_FLAGS) --release -p sluice-shm -p sluice-ownership --lib
.PHONY: loom
loom: ## model check of the ring and of the owners of frames: small models, at most four preemptions
	$(LOOM)

# As often in all forms together, which differ in threads, tenants and backpressure: see crates/manager/src/dataplane_deaths.rs.
DEATHS ?= 2000
# With real processes: see crates/daemon/tests/e2e/faults.rs.
PROCESS_DEATHS ?= 1000
.PHONY: deaths
deaths: programs ## NFs that cheat and die under load: DEATHS times on a rig of packet threads, PROCESS_DEATHS times as real processes
	SLUICE_DEATHS=$(DEATHS) cargo test --workspace $(CARGO_FLAGS) $(FEATURES) --lib deaths:: -- --nocapture
	SLUICE_DEATHS=$(PROCESS_DEATHS) cargo test --workspace $(CARGO_FLAGS) $(FEATURES) --test e2e after_many_deaths -- --nocapture

.PHONY: check
check: fmt clippy doc docs house deny ## formatting, lints, documentation, layout, licences

.PHONY: fmt
fmt:
	cargo fmt --all --check

# The solver is of the lab, and pushed metrics are of the daemon: no crate has both features, so they are linted together. Without OpenTelemetry,
# crates that the solver's build needs have other features, and the solver would be built once more.
beside_dpdk = $(subst $() $(),$(comma),$(filter-out %/dpdk,$(with)))

.PHONY: clippy
clippy:
	cargo clippy --workspace --all-targets $(CARGO_FLAGS) -- -D warnings
	cargo clippy -p sluice-nf --features trace --all-targets $(CARGO_FLAGS) -- -D warnings
ifneq ($(FEATURES),)
	cargo clippy --workspace --all-targets $(CARGO_FLAGS) $(FEATURES) -- -D warnings
endif
	$(foreach features,$(filter %/dpdk,$(with)) $(beside_dpdk),cargo clippy --workspace $(CARGO_FLAGS) --features $(features) -- -D warnings$(newline)	)
	$(foreach features,"" foreign inline otel page pools promises sdn tls turns,cargo clippy $(CARGO_FLAGS) -p sluice-daemon --bins --no-default-features --features $(features) -- -D warnings$(newline)	)

.PHONY: doc
doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps $(CARGO_FLAGS) $(FEATURES)

# Advisories need a database from the network; where it cannot be had, the rest is checked all the same.
.PHONY: deny
deny:
	@cargo deny --version >/dev/null 2>&1 || { echo "cargo-deny is missing: cargo install --debug --locked cargo-deny" >&2; exit 1; }
	cargo deny --all-features --locked check licenses bans sources
	@if timeout 120 cargo deny --all-features --locked fetch db; then cargo deny --all-features --locked --offline check advisories; \
	    else echo "the database of advisories cannot be had: advisories were not checked"; fi

# FUZZ_SECONDS is how long each target is fuzzed, FUZZ_TARGETS which; both by default are what a night has room for. `make test` tries what
# was found before, without a fuzzer.
FUZZ_SECONDS ?= 3600
FUZZ_TARGETS ?=
FUZZ_QUICK ?=
.PHONY: fuzz
fuzz: ## fuzz what comes from outside, an hour each target: make fuzz FUZZ_SECONDS=60 FUZZ_TARGETS=config
	scripts/deps --check build
	FUZZ_QUICK=$(FUZZ_QUICK) FUZZ_FEATURES="$(FEATURES)" scripts/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# CHAOS_SECONDS is how long each of CHAOS_SEEDS is run.
CHAOS_SECONDS ?= 600
CHAOS_SEEDS ?= 10
.PHONY: chaos
chaos: build ## random changes, kills and hostile NFs, ten seeds of ten minutes; packets are counted
	mkdir -p $(TARGET)/bench
	$(TARGET)/release/sluice bench chaos --seconds $(CHAOS_SECONDS) --repeats $(CHAOS_SEEDS) --json $(TARGET)/bench/chaos.json

.PHONY: reference
reference: ## write what the code makes: deploy/openapi.json, deploy/config.schema.json, pages of the reference and of the report
	SLUICE_WRITE=1 cargo test $(CARGO_FLAGS) -p sluice-api -p sluice-config -p sluice-manager --lib in_the_tree
	SLUICE_WRITE=1 cargo test $(CARGO_FLAGS) -p sluice-lab --bins in_the_tree

.PHONY: docs
docs:
	scripts/check-docs
	if command -v mdbook > /dev/null; then mdbook build -d $(TARGET)/book docs; fi

.PHONY: house
house:
	scripts/check-house

# BENCH is the experiment, OUT where its result and raw samples go.
BENCH ?= forward
OUT ?= $(TARGET)/bench/$(BENCH).json
.PHONY: bench
bench: build ## run an experiment: make bench BENCH=forward OUT=forward.json
	mkdir -p $(dir $(OUT))
	$(TARGET)/release/sluice bench $(BENCH) --json $(OUT)

.PHONY: report
report: OUT = $(TARGET)/bench/report
report: build ## run all experiments for a moment, and set them beside the papers: make report OUT=DIR
	$(TARGET)/release/sluice bench all --quick --report $(OUT)

.PHONY: install
install: ## install what `make build` built under PREFIX (/usr/local); DESTDIR is respected
	@test -x $(BUILT)/sluiced || { echo "run make build first"; exit 1; }
	scripts/pages $(BUILT) $(BUILT)/pages
	install -d $(DESTDIR)$(PREFIX)/{bin,include,lib/systemd/system,share/doc/sluice,share/man/man1,share/man/man8}
	install -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 $(BUILT)/pages/man1/*
	install -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man8 $(BUILT)/pages/man8/*
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(BUILT)/pages/completions/sluice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(BUILT)/pages/completions/_sluice
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d $(BUILT)/pages/completions/sluice.fish
	install $(STRIP) -m 755 $(BUILT)/{sluiced,sluice,sluice-lab} $(DESTDIR)$(PREFIX)/bin
	find $(BUILT) -maxdepth 1 -type f -executable -name 'sluice-nf-*' -exec install $(STRIP) -m 755 -t $(DESTDIR)$(PREFIX)/bin {} +
	install -d $(DESTDIR)$(PREFIX)/lib/sluice
	find $(BUILT) -maxdepth 1 -type f -name 'libsluice_nf_*.so' -exec install $(STRIP) -m 755 -t $(DESTDIR)$(PREFIX)/lib/sluice {} +
	install -m 644 crates/nf/include/sluice_nf.h $(DESTDIR)$(PREFIX)/include
	install -d $(DESTDIR)$(PREFIX)/$(LIBDIR)/pkgconfig
	install -m 644 -t $(DESTDIR)$(PREFIX)/$(LIBDIR) $(BUILT)/libsluice_nf.a
	soname=$$(readelf -d $(BUILT)/libsluice_nf.so | sed -nE 's/.*\(SONAME\).*\[(.*)\]/\1/p') && [[ -n $$soname ]] && \
	    install -m 644 $(BUILT)/libsluice_nf.so $(DESTDIR)$(PREFIX)/$(LIBDIR)/$$soname && \
	    ln -sfn $$soname $(DESTDIR)$(PREFIX)/$(LIBDIR)/libsluice_nf.so
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' crates/nf/include/sluice_nf.pc.in | \
	    install -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/$(LIBDIR)/pkgconfig/sluice_nf.pc
	sed 's|=/usr/bin/|=$(PREFIX)/bin/|; s|/usr/share/|$(PREFIX)/share/|' deploy/sluiced.service | \
	    install -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/sluiced.service
	install -D -m 644 deploy/sluiced.tmpfile $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/sluiced.conf
	install -m 644 README.md {ARCHITECTURE,CONTRIBUTING,CHANGELOG}.md LICENSE $(DESTDIR)$(PREFIX)/share/doc/sluice
	install -m 644 deploy/{example.toml,openapi.json,config.schema.json,grafana-dashboard.json,alerts.yml,sluicedump} \
	    $(DESTDIR)$(PREFIX)/share/doc/sluice
	install -d $(DESTDIR)$(PREFIX)/share/doc/sluice/docs/src/pictures
	install -m 644 docs/src/*.md $(DESTDIR)$(PREFIX)/share/doc/sluice/docs/src
	install -m 644 docs/src/pictures/* $(DESTDIR)$(PREFIX)/share/doc/sluice/docs/src/pictures

.PHONY: install-strip
install-strip: ## the same, without line numbers for backtraces: a quarter of the size
	$(MAKE) install STRIP=-s

# What the same tree would install, in a folder of its own, says what there is to remove.
.PHONY: uninstall
uninstall: ## remove what `make install` of this tree put under PREFIX; configurations in /etc and /var/lib/sluice stay
	stage=$$(mktemp -d) && trap 'rm -rf "$$stage"' EXIT && $(MAKE) -s install DESTDIR="$$stage" && cd "$$stage" && \
	    find . ! -type d -printf '$(abspath $(DESTDIR))/%P\0' | xargs -0r rm -f && \
	    find . -depth -type d -path '*/*sluice*' -printf '$(abspath $(DESTDIR))/%P\0' | xargs -0r rmdir --ignore-fail-on-non-empty

# Of the cluster's workspace, which `make build` leaves out.
.PHONY: install-cluster
install-cluster: ## build sluice-cluster, which `sluice slo list --cluster` and the like start, and put it beside sluice: PREFIX, DESTDIR
	cargo build --release $(CARGO_FLAGS) --manifest-path cluster/Cargo.toml --target-dir $(TARGET)/cluster -p sluice-cluster
	install -D -m 755 $(TARGET)/cluster/release/sluice-cluster $(DESTDIR)$(PREFIX)/bin/sluice-cluster

# Debian packages of what is in the release folder. Each is described in the Cargo.toml of a crate, two of them as variants; their files are
# those of `make install`, and a bill of materials. SOURCE_DATE_EPOCH is the commit's time, so that the same build gives the same packages.
DEB_PACKAGES = sluice-daemon sluice-nf-group sluice-nf:runtime sluice-nf:dev sluice-lab
DEB_MAINTAINER ?= Sluice maintainers <maintainers@sluice.invalid>
DEB_FLAGS ?=
# cargo-deb finds it there also where what is packed was built with another profile.
STAGE = $(TARGET)/release/stage
EPOCH = SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}
.PHONY: packages
packages:
	@cargo deb --version >/dev/null 2>&1 || { echo "cargo-deb is missing: cargo install --locked cargo-deb@3.8.0" >&2; exit 1; }
	scripts/deps --check packages
	rm -rf $(STAGE) $(TARGET)/debian
	$(MAKE) install DESTDIR=$(STAGE) PREFIX=/usr LIBDIR=lib/$$(gcc -print-multiarch)
	ln -s usr/lib/$$(gcc -print-multiarch) $(STAGE)/libdir
	$(EPOCH) scripts/sbom $(STAGE)/sbom $(FEATURES)
	$(foreach package,$(DEB_PACKAGES),$(call pack,$(subst :, ,$(package)))$(newline)	)
pack = $(EPOCH) cargo deb -p $(word 1,$(1)) $(if $(word 2,$(1)),--variant $(word 2,$(1)) --multiarch same) --no-build --locked --strip \
    --maintainer "$(DEB_MAINTAINER)" $(DEB_FLAGS)

# A release build without a path of this machine in it, for packages. What an earlier build has left is taken as it is.
C_PATHS = -ffile-prefix-map=$(or $(CARGO_HOME),$(HOME)/.cargo)=/usr/src/cargo -ffile-prefix-map=$(CURDIR)=/usr/src/sluice \
    -ffile-prefix-map=$(TARGET)=/usr/src/sluice/target
.PHONY: build-anywhere
build-anywhere:
	$(EPOCH) HOST_CFLAGS="$(C_PATHS)" HOST_CXXFLAGS="$(C_PATHS)" RUSTC_WRAPPER=$(abspath scripts/remapped-rustc) $(MAKE) build

.PHONY: deb
deb: build-anywhere ## Debian packages, in target/debian: sluice, sluice-nfs, libsluice-nf1, libsluice-nf-dev, sluice-lab
	$(MAKE) packages PROFILE=release

# With PROFILE=debug, of what the tests run, which `make programs` builds.
.PHONY: test-packages
test-packages: ## install, run, upgrade under traffic and remove the packages in a clean Debian root (root, network)
	$(MAKE) $(if $(filter release,$(PROFILE)),deb,programs packages)
	scripts/test-packages $(TARGET)/debian

# Nothing is taken from a registry, and no container engine is needed.
OCI = $(TARGET)/oci
.PHONY: oci
oci: ## an OCI image of daemon, client and NFs, in target/oci, of what `make build` or `make deb` built
	scripts/deps --check image
	rm -rf $(OCI)
	$(MAKE) install DESTDIR=$(OCI)/root PREFIX=/usr
	$(EPOCH) scripts/oci-image $(OCI)/root $(OCI)/sluice-$(VERSION).oci.tar
	scripts/oci-image --check $(OCI)/sluice-$(VERSION).oci.tar

# The cluster's crates are a workspace of their own. With PROFILE=debug the programs are those of its tests, without the optimiser's solver:
# others would have other features, and so be built anew.
.PHONY: oci-cluster
oci-cluster: oci ## the OCI images for Kubernetes, in target/oci: `make oci`, and sluice-lab, sluice-operator and sluice-node
ifeq ($(PROFILE),release)
	cargo build --release $(CARGO_FLAGS) --manifest-path cluster/Cargo.toml --target-dir $(TARGET)/cluster \
	    -p sluice-operator -p sluice-node $(if $(filter yes,$(OPTIMISER)),--features sluice-operator/optimiser)
else
	cargo test $(CARGO_FLAGS) --manifest-path cluster/Cargo.toml --target-dir $(TARGET)/cluster --workspace --no-run
endif
	install -m 755 -t $(OCI)/root/usr/bin $(TARGET)/cluster/$(PROFILE)/sluice-{operator,node}
	for image in sluice-lab sluice-operator sluice-node; do \
	    $(EPOCH) scripts/oci-image $(OCI)/root $(OCI)/$$image-$(VERSION).oci.tar $$image; \
	    scripts/oci-image --check $(OCI)/$$image-$(VERSION).oci.tar; \
	done

.PHONY: static
static: ## daemon, client and NFs as programs that need no library, in target/static: without DPDK, inline chains and groups
	scripts/static $(TARGET)/static

.PHONY: reproducible
reproducible: ## build packages and image twice, in two folders, and compare their bytes (two release builds)
	scripts/reproducible

.PHONY: test-page
test-page: ## try the web page of what `make build` or `make deb` built in a real browser, with 10 and 1,000 NFs (Playwright, Chromium)
	scripts/test-page --target $(BUILT)

.PHONY: test-metrics
test-metrics: ## have a real Prometheus scrape what `make build` or `make deb` built, and evaluate the dashboard and the alerts
	scripts/test-metrics --target $(BUILT)

.PHONY: test-chart
test-chart: ## lint and render the Helm chart, and see what values it refuses; builds Helm once (Go 1.26, three minutes)
	scripts/test-chart

# Kubernetes is built once, outside of the target folder: the script says how long that takes.
.PHONY: test-cluster
test-cluster: ## tests of cluster/ against a real control plane; builds Kubernetes once (Go 1.24, a quarter of an hour)
	scripts/test-cluster

.PHONY: test-node
test-node: ## one real Kubernetes node with what `make build` built: NFs, pods, claims, packets, kills, a drain (root, Go 1.26, half an hour once)
	scripts/deps node
	scripts/test-cluster --build $$(scripts/test-node --programs)
	scripts/test-node --build
	$(MAKE) oci-cluster PROFILE=$(PROFILE)
	scripts/test-node $(OCI)

.PHONY: clean
clean: ## remove everything that was built
	cargo clean
