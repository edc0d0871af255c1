# The main jobs. Each installs what it needs (scripts/setup.sh) and works from a clean clone.
.DEFAULT_GOAL := help
.PHONY: help setup build install uninstall everyday test locks longtest bench benchreport demo clients fuzz tidy ci

CARGO ?= cargo
PREFIX ?= /usr/local
# Where mount(8) looks for helpers; it looks nowhere else.
HELPERDIR ?= /sbin
HELPERS := mount.fuse.papilio mount.papilio umount.fuse.papilio umount.papilio

help: ## show this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what is missing (apt packages, as root)
	@bash scripts/setup.sh

build: setup ## build the papilio command: target/release/papilio
	$(CARGO) build --release --locked -p papilio-cli

install: build ## install the command, its pages and completions (PREFIX=/usr/local), and helpers of mount(8) (HELPERDIR=/sbin)
	install -D -m 755 target/release/papilio $(DESTDIR)$(PREFIX)/bin/papilio
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(HELPERDIR)
	target/release/papilio man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	target/release/papilio completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/papilio
	target/release/papilio completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_papilio
	target/release/papilio completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/papilio.fish
	for helper in $(HELPERS); do ln -sfn $(PREFIX)/bin/papilio $(DESTDIR)$(HELPERDIR)/$$helper; done

uninstall: ## take away what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/papilio $(DESTDIR)$(PREFIX)/share/man/man1/papilio.1 \
		$(DESTDIR)$(PREFIX)/share/man/man1/papilio-*.1 \
		$(DESTDIR)$(PREFIX)/share/bash-completion/completions/papilio \
		$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_papilio \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/papilio.fish \
		$(HELPERS:%=$(DESTDIR)$(HELPERDIR)/%)

test: setup ## run all tests; those that need root, loop devices or the kernel's Btrfs say so when skipped
	$(CARGO) test --workspace --locked
	$(CARGO) test --locked -p papilio-pagecache --features shuttle --test model_check
	bash scripts/lock-order.sh

locks: setup ## run tests of threads with locks that check the order they are taken in, and print that order
	@bash scripts/lock-order.sh

longtest: setup ## compare 50,000 files and 2 GiB with the kernel in every shape and profile (hours; PAPILIO_ORACLE_PRESETS picks)
	PAPILIO_REQUIRE_ALL=1 PAPILIO_ORACLE_FILES=50000 PAPILIO_ORACLE_BYTES=2147483648 \
		$(CARGO) test --release --locked -p papilio --test kernel -- --nocapture --test-threads 1

bench: setup ## compare fio jobs, reads and writes with the kernel, in turn, as ratios (root; some 4 GiB of memory)
	$(CARGO) build --release --locked -p papilio-fio -p papilio-cli
	target/release/papilio bench --output target/bench
	$(CARGO) run --release --locked -p papilio-bench -- read
	$(CARGO) run --release --locked -p papilio-bench -- names

BENCH := target/release/papilio bench
QUICK := --rounds 1 --runtime 1
benchreport: setup ## run all fio jobs and sweeps, and write docs/bench.md and docs/plots (root; some 8 GiB of memory)
	$(CARGO) build --release --locked -p papilio-fio -p papilio-cli
	$(BENCH) --rounds 5 --runtime 1 --profile --output target/bench/jobs
	$(BENCH) sweep --over extents --sides kernel,papilio,raw $(QUICK) --output target/bench/extents
	$(BENCH) sweep --over snapshots,threads --sides kernel,papilio $(QUICK) --output target/bench/sweeps
	$(BENCH) $(foreach run,jobs extents sweeps,--report target/bench/$(run)/report.json) \
		--output target/bench --markdown docs/bench.md

demo: setup ## read a file system that the kernel made, build, change and mount one of our own, and prove all of it
	@bash scripts/demo.sh
	@bash scripts/demo-write.sh
	@bash scripts/demo-mount.sh

clients: build ## git, rsync, tar, SQLite and PostgreSQL on a mount, its server killed under them (root; 6 GiB of memory)
	@bash scripts/clients.sh

everyday: build ## tar, cp, find, grep, rm and dd on a mount and on the kernel's Btrfs, in turn (root; some 4 GiB of memory)
	@bash scripts/everyday.sh

fuzz: setup ## run each fuzz target for FUZZ_SECONDS (60); needs cargo-fuzz and a nightly toolchain
	@bash scripts/fuzz.sh

tidy: ## check layers, dead files, long functions, headers
	$(CARGO) xtask tidy

ci: ## what every change must pass
	@bash .ci/run
