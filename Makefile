# Keyward. `make help` lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
BIN := bin
CACHE := .cache
LINT := $(GO) tool -modfile=tools/go.mod golangci-lint
ACTIONLINT := $(GO) tool -modfile=tools/actions/go.mod actionlint
ENVOY_VERSION ?= 1.40.0

.PHONY: help
help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[1m%-15s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/sidecar, bin/xds, bin/keyward, bin/coordinator and bin/ratelimit
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/sidecar ./cmd/xds ./cmd/keyward ./cmd/coordinator
	@ln -sf sidecar $(BIN)/ratelimit

.PHONY: demo
demo: build ## Start three sidecars, xDS and a real Envoy on loopback and watch them limit (about a minute)
	@ENVOY_BIN="$$(scripts/envoy $(ENVOY_VERSION))" KEYWARD_DEMO_ENDS_WITH_PARENT=1 exec $(BIN)/keyward demo $(ARGS)

RUN := $(GO) run ./test/run
.PHONY: test quick deep
test: ## Everything that has to pass: lint, unit tests with the race detector, virtual clusters, real Envoys, a real Kubernetes (half an hour)
	@$(RUN) test

quick: ## Lint, unit tests without the race detector, one real Envoy, one cluster (3 minutes)
	@$(RUN) quick

deep: ## What takes hours: 100,000 virtual clusters, soak, fuzzing, the simulator with the race detector
	@$(RUN) deep

.PHONY: lint
lint: ## Formatting, go vet, go mod tidy, golangci-lint, actionlint
	@echo "== lint"
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not formatted:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) test -run 'TestPromises|TestNamedTests|TestCoverage|TestLanguage|TestGlossary|TestTypeNames' .
	$(GO) mod tidy -diff
	cd bench && $(GO) mod tidy -diff
	cd test/page && $(GO) mod tidy -diff && $(GO) vet ./...
	cd tools/release && $(GO) mod tidy -diff && $(GO) vet ./...
	$(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yml
	$(LINT) run --allow-parallel-runners ./...

.PHONY: chart
chart: ## Write the chart's copies of alerts and boards, its README's table and its renderings (with Helm from make kube)
	$(GO) test -count=1 ./charts -update

.PHONY: unit
unit: ## Unit, property and conformance tests, with the race detector and the searches without it
	@$(RUN) -only unit,search test

.PHONY: sim
SEEDS ?= 5000
sim: ## Run SEEDS (5000) whole clusters in virtual time and hold every decision against its bound; KIND=leases (full, still, closed, ...): other worlds
	$(GO) run ./test/sim/main -seeds $(SEEDS) $(if $(KIND),-$(KIND)) $(if $(LEASES),-leases)

.PHONY: idle
idle: ## The cost of a sidecar without requests: memory and processor time among 3, 100 and 300 members
	@mkdir -p $(BIN)/idle
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/idle/ ./cmd/sidecar ./cmd/keyward # as the image has them
	cd bench && $(GO) run ./idle -bin ../$(BIN)/idle

.PHONY: e2e page boards walk kube rlqs module
MATCH ?= .
e2e: ## End to end: real processes, real Envoys, mTLS; MATCH=Hot: the tests whose names match
	@$(RUN) -only machine,build,e2e -match '$(MATCH)' test

rlqs: ## Envoy's client of quotas (RLQS): what three releases do, and the model of it; the reproductions of docs/upstream
	@$(RUN) -only machine,rlqs test

module: ## The dynamic module for Envoy: builds it with cargo, runs its tests, and spends leases with four releases of Envoy
	@$(RUN) -only machine,build,module test

page: ## The page of a real cluster in a Chromium without a window; KEYWARD_SHOTS=DIR keeps pictures
	@$(RUN) -only machine,build,page test

boards: ## Dashboards and alerts: Grafana's schema, promtool, every query asked of a real cluster's Prometheus
	@$(RUN) -only machine,build,boards test

walk: ## Do what the quickstart and the migration guide say on this machine, command by command, and time it
	@$(RUN) -only machine,build,walk test

kube: ## The chart on a real Kubernetes of one node: rolling update, scale-up, Job, a pod cut off, server-side validation (needs root)
	@$(RUN) -only machine,build,kube-build,chart,kube test

.PHONY: gateways
gateways: build ## Real control planes of gateways with Keyward behind their Envoys, also the cases that take minutes: a table of gateways and cases (needs root)
	@KEYWARD_LONG=1 scripts/gateways
	@KEYWARD_LONG=1 scripts/kube '^TestFirst429$$'

.PHONY: fuzz
FUZZTIME ?= 30s
fuzz: ## Run every fuzz target for FUZZTIME (30s each)
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep ^Fuzz); do \
	  echo "== $$p $$f"; $(GO) test -run xxx -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$p || exit 1; done; done

.PHONY: bench
bench: build ## Compare decisions with other rate limiters and behind Envoy: bench/report/bench.html, in ten minutes; ARGS=-quick: in one
	cd bench && ENVOY_BIN="$$(../scripts/envoy $(ENVOY_VERSION))" $(GO) run . -bin ../$(BIN) $(ARGS)

.PHONY: bench-check
OLD ?= HEAD~1
NEW ?= HEAD
WORSE ?= 0.10
bench-check: build ## Compare two commits, OLD (HEAD~1) and NEW (HEAD), in one run; fails when a decision costs more by WORSE (0.10)
	cd bench && $(GO) run . -bin ../$(BIN) -check "$(OLD)..$(NEW)" -worse $(WORSE) -rounds 5 $(ARGS)

.PHONY: microbench
BENCHTIME ?= 1s
microbench: ## Go benchmarks of every layer, BENCHTIME (1s) each; 1x: only that they run
	$(GO) test -run xxx -bench . -benchmem -benchtime $(BENCHTIME) ./internal/limit ./ring ./hotkey ./internal/lease ./handoff ./owner ./internal/config ./internal/peer ./envoy/...

.PHONY: vuln
vuln: ## Known vulnerabilities in what the programs call (needs vuln.go.dev; STRICT=1 fails without it)
	scripts/vuln

.PHONY: sbom
sbom: build ## Bill of materials of the built programs, CycloneDX, in bin/sbom.cdx.json
	scripts/sbom $(VERSION) > $(BIN)/sbom.cdx.json

.PHONY: reproduce
reproduce: ## Build the sidecar twice, in two folders, and compare the bytes
	scripts/reproduce $(VERSION)

.PHONY: release-dry-run
release-dry-run: ## Make a release in dist as the workflow does, without pushing and signing, and use it from a registry on loopback; TAG (the chart's version)
	scripts/release-dry-run $(TAG)

.PHONY: soak
SOAK ?= 30m
QUOTA_SOAK ?= 60s
soak: build ## The long test: twenty rounds of rolling updates and of healed cuts, full tables, hot keys of five members, twenty kills of all members, then members restarted, killed and stopped for SOAK (30m)
	KEYWARD_ROUNDS=20 $(GO) test -count=1 -timeout 6h -v -run TestHandoffRolling ./test/e2e/
	KEYWARD_LONG=1 $(GO) test -count=1 -timeout 1h -v -run TestHotKey ./test/e2e/
	KEYWARD_LONG=1 $(GO) test -count=1 -timeout 6h -v -run 'TestFullTablesRestart|TestHealedCuts|TestKillAllRounds|TestRestartOtherMembers' ./test/e2e/
	KEYWARD_SOAK=$(SOAK) $(GO) test -count=1 -timeout 6h -v -run 'TestSoak$$' ./test/e2e/
	$(MAKE) -s quota-soak QUOTA_SOAK=1h

.PHONY: quota-soak
quota-soak: ## Three releases of Envoy spend one limit without calls for QUOTA_SOAK (60s), while streams, sidecars and Envoys fail (after make build)
	ENVOY_BIN=$$(scripts/envoy 1.40.0) ENVOY_1_36=$$(scripts/envoy 1.36.4) ENVOY_1_38=$$(scripts/envoy 1.38.3) \
		KEYWARD_QUOTA_SOAK=$(QUOTA_SOAK) $(GO) test -count=1 -timeout 6h -v -run TestQuotaSoak ./test/e2e/

.PHONY: figures
figures: build ## The figures of docs/federation.md: three regions that share 1,000 requests a second, 150 ms from their coordinator (25 minutes; AT="chrt -r 10": ahead of other programs)
	KEYWARD_LONG=1 $(AT) $(GO) test -count=1 -timeout 1h -v -run TestRegionsFigures ./test/e2e/

.PHONY: upgrade
upgrade: build ## Replace the members of a cluster of the commit OLD (HEAD~1) by those of this one, and back, under load: calls, RLQS, the module (with cargo)
	scripts/at "$(OLD)" $(CACHE)/before $(ENVOY_VERSION)
	KEYWARD_BEFORE="$(CURDIR)/$(CACHE)/before" ENVOY_BIN="$$(scripts/envoy $(ENVOY_VERSION))" $(GO) test -count=1 -timeout 30m -v -run '^TestUpgrade' ./test/e2e/
	@if [ -d $(CACHE)/before/module ]; then set -ex; \
	  export KEYWARD_MODULE=required KEYWARD_MODULES="$$(scripts/module all)" ENVOY_BIN="$$(scripts/envoy $(ENVOY_VERSION))" ENVOY_1_36="$$(scripts/envoy 1.36.4)" ENVOY_1_38="$$(scripts/envoy 1.38.3)" ENVOY_1_39="$$(scripts/envoy 1.39.3)"; \
	  KEYWARD_BEFORE="$(CURDIR)/$(CACHE)/before" $(GO) test -count=1 -timeout 30m -v -run '^TestUpgrade' ./test/module/; \
	else echo "no upgrade of the module: no cargo, or $(OLD) has none"; fi

.PHONY: compose
compose: ## The same topology in containers, from images built of local files (needs dockerd)
	scripts/compose

.PHONY: clean
clean: ## Remove what was built and downloaded
	rm -rf $(BIN) $(CACHE) dist
