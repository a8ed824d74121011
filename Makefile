# `make help` lists the targets; the comment behind `##` is what it shows.

LINT_VERSION := v2.15.0
LINT         := bin/golangci-lint-$(LINT_VERSION)
COLLECTOR    := bin/otelcol
VERSION      := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# The race detector needs a C compiler.
RACE := $(shell command -v $${CC:-gcc} >/dev/null 2>&1 && echo -race)

# test/e2e goes through it. Debian puts it where only root looks.
PGBOUNCER := $(shell PATH=$$PATH:/usr/sbin command -v pgbouncer)

# test/observe and test/e2e check rules and dashboards with it.
PROMETHEUS := $(shell command -v promtool)

# test/e2e sends traces through it, and would build it itself, within its own time.
BUILD_COLLECTOR = @$(MAKE) --no-print-directory $(COLLECTOR) || echo "NO COLLECTOR: no trace is tested through one (its modules cannot be downloaded)"

.DEFAULT_GOAL := help
.PHONY: help demo demo-kill demo-check bench-intake bench-expiry bench-psp bench-relay bench-smoke mutants soak soak-psp record test test-big test-ops test-containers check fmt fmt-check vet lint build migrate up up-observability down test-compose compose-demo clean tools

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## run everything on this machine, nothing to install; Ctrl-C stops it and counts
	go build -o bin/demo ./cmd/demo && exec bin/demo # not go run, which makes a failure of Ctrl-C

demo-kill: ## demo, and every 4 s api, relay, consumer, worker or fakepsp is killed; the PSP loses replies
	go build -o bin/demo ./cmd/demo && exec bin/demo -kill

demo-check: ## the same without a terminal: 28 s at full speed, api, consumer, worker and fakepsp killed once, the relay twice, replies of the PSP lost, everything counted
	go run ./cmd/demo -check

test: ## all tests with -race, against an embedded Postgres and broker (or TEST_DATABASE_URL, TEST_KAFKA_BROKERS)
	@[ -n "$(RACE)" ] || echo "NO C COMPILER: the tests run without the race detector (install gcc)"
	@[ -n "$(PGBOUNCER)" ] || echo "NO PGBOUNCER: nothing is tested through a pooler (install pgbouncer)"
	@[ -n "$(PROMETHEUS)" ] || echo "NO PROMETHEUS: no rule and no dashboard is tested (install prometheus)"
	$(BUILD_COLLECTOR)
	go run ./test/servers -- go test $(RACE) -count=1 -timeout 20m ./...

test-big: ## the plans of all statements with 10 million keys, payments and events (or PLAN_ROWS); minutes, and 15 GB of disk
	PLAN_ROWS=$${PLAN_ROWS:-10000000} go test -count=1 -timeout 2h -run Big ./test/plans

test-ops: ## deploys with the real programs under load, in both orders and back; Postgres upgraded and moved, Kafka's losses sent again, a tenant moved (part of test, too)
	go run ./test/servers -- go test $(RACE) -count=1 -timeout 20m ./test/ops

test-containers: ## all tests with -race, against Postgres and Kafka in Docker, and the whole chain in test/e2e
	@[ -n "$(RACE)" ] || echo "NO C COMPILER: the tests run without the race detector (install gcc)"
	@[ -n "$(PGBOUNCER)" ] || echo "NO PGBOUNCER: nothing is tested through a pooler (install pgbouncer)"
	@[ -n "$(PROMETHEUS)" ] || echo "NO PROMETHEUS: no rule and no dashboard is tested (install prometheus)"
	$(BUILD_COLLECTOR)
	TEST_SERVERS=docker go run ./test/servers -docker -- go test $(RACE) -count=1 -timeout 20m ./...

mutants: ## plant the bugs of test/mutants one by one: the tests must fail with each (minutes; RUN=regexp for some of them)
	$(BUILD_COLLECTOR)
	go run ./test/servers -- go run ./tools/mutants -run '$(RUN)'

check: fmt-check vet lint test ## what CI runs first: format, vet, lint, test

fmt: $(LINT) ## format all Go files
	$(LINT) fmt

fmt-check: $(LINT)
	$(LINT) fmt --diff

vet: ## find what the compiler lets pass
	go vet ./...

lint: $(LINT) ## find what .golangci.yaml forbids, the import table included
	$(LINT) run

build: ## build the programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-X github.com/oncepay/oncepay/internal/telemetry.release=$(VERSION)' -o bin/ ./cmd/...

migrate: ## apply the schema to the database at DATABASE_URL, as its owner
	go run ./cmd/migrate up

up: export VERSION := $(VERSION)
up: ## build the image and start everything in Docker, wait until it is healthy
	docker compose up --build --detach --wait

# Traces go to the collector. Metrics are scraped, so they are not sent as well.
up-observability: export VERSION := $(VERSION)
up-observability: export OTEL_EXPORTER_OTLP_ENDPOINT := http://collector:4318
up-observability: export OTEL_METRICS_EXPORTER := none
up-observability: ## the same, with Prometheus, Grafana (http://127.0.0.1:3000), a collector and Jaeger
	docker compose --profile observability up --build --detach --wait

down: ## stop what `make up` or `make up-observability` started and delete its data
	docker compose --profile observability down --volumes

bench-intake: ## payments a second with group commit and without, latencies, cost of each payment; the books are checked (under 5 minutes)
	go run ./tools/bench intake

bench-expiry: ## 100,000 authorizations expire in one second beside 2,000 payments/s: when the last is released, latencies; the books are checked (2 minutes)
	go run ./tools/bench expiry

bench-psp: ## charges a second through the worker at fakepsp, their wait, latencies of payments with the PSP up and down; both books are checked (6 minutes)
	go run ./tools/bench psp

bench-relay: ## events a second of the relay and the tutorials' one, latencies, cost; every topic is checked (under 6 minutes; KAFKA_BROKERS, else a container, else kfake)
	go run ./tools/bench relay

bench-smoke: ## both in under a minute; fails only if committing together is not twice as fast, or events are missing, out of order or doubled
	go run ./tools/bench intake -smoke
	go run ./tools/bench relay -smoke

soak: ## two relays, a promoted standby, a pinned snapshot, load for SOAK_FOR (20m; at least 1m); everything counted; no operator may be needed (KAFKA_BROKERS, else kfake)
	go run ./tools/soak -for $${SOAK_FOR:-20m}

soak-psp: ## 20,000 payments by card while PSP, worker, broker and connections fail (SOAK_PAYMENTS); the PSP's books and ours must agree
	go run ./tools/soak psp -payments $${SOAK_PAYMENTS:-20000}

test-compose: ## after `make up`: a payment, found by Kafka's own console consumer and in the statements
	test/compose.sh

compose-demo: ## after `make up`: demo-check against the containers
	go run ./cmd/demo -compose -check

clean: ## delete what was built, the linter included
	rm -rf bin

record: ## make docs/demo.svg, the picture of a terminal in the README, from a run of demo-check
	mkdir -p bin && go run ./cmd/demo -check >bin/demo.txt
	awk -f tools/terminal.awk bin/demo.txt >docs/demo.svg

tools: $(LINT) $(COLLECTOR) ## build the linter, and the collector of test/e2e, into bin/

# A tool, not a dependency: its own requirements stay out of go.mod. The first build takes a minute or two.
$(LINT):
	GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	mv bin/golangci-lint $@

# As test/e2e builds it: go build leaves a file alone that it would make again.
$(COLLECTOR): $(wildcard test/collector/*)
	go build -C test/collector -buildvcs=false -o $(CURDIR)/$@ .
