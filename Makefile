# make without a goal lists what there is.

.DEFAULT_GOAL := help
.PHONY: help build python demo dist test quick test-all accept fuzz soak sim-soak sched-soak sched-kills reshapes kills bench-peers bench-hosts bench-steps bench-compress bench-reshape bench-trainers bench-loop bench-sched bench-plan plan-oracles plan-gaps slurm-test kube-test kube-scale clean

help: ## list these goals
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

build: ## the static binary, bin/shoal
	CGO_ENABLED=0 go build -trimpath -o bin/shoal ./cmd/shoal

python: build ## .venv, a Python with NumPy, PyTorch and shoal, installed if missing
	scripts/setup

demo: build ## train on this machine: in Go; with PY=1 in NumPy and PyTorch, which are installed if missing
ifdef PY
	scripts/setup
	bin/shoal demo --python=.venv/bin/python
else
	bin/shoal demo
endif

dist: ## what people install without a clone, in dist/: wheels and archives for linux x86-64 and arm64
	scripts/dist

quick: ## the tests for while you work: format, build, house rules, Go; docs/testing.md has all tiers
	scripts/test --quick

test: ## the tests of what any change can break, with their own set-up; ends with N passed, N failed
	scripts/test

test-all: ## every test: all frameworks asked again, three PyTorches, all random cases, other systems
	scripts/test --all

accept: ## ask PyTorch, DeepSpeed and Megatron-Core all questions of the tests, and keep their answers
	scripts/setup torch2
	rm -rf format/*/testdata/answers
	FRAMEWORKS=record go test -count=1 -timeout 0 ./format/...

fuzz: ## give each fuzz target INPUTS=500000 inputs, 50 times as many as make test; some hours on two cores
	INPUTS=$(or $(INPUTS),500000) scripts/test --all fuzz

soak: ## train under random faults for SECONDS=300, half of them on several hosts (as root); with PY=1 in NumPy and PyTorch, on one host, and then watch what 500 kills, 2000 jobs and 3000 connections leave of an agent; SEED=N repeats the choices
ifdef PY
	$(MAKE) build
	scripts/setup
	SECONDS=$(or $(SECONDS),300) .venv/bin/python -m pytest -q -s -p no:cacheprovider \
		python/tests/test_soak.py python/tests/test_soak_resources.py
else
	SECONDS=$(or $(SECONDS),300) go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./cmd/shoal
endif

reshapes: ## CASES=100000 random changes of layout in memory, as many of files of all formats, and as many ways through formats of frameworks, each compared with a gather and scatter of whole arrays; SEED=N repeats them
	go test -count=1 -timeout 0 -run '^TestReshape$$' ./state/plan -rapid.checks=$(or $(CASES),100000) -rapid.seed=$(or $(SEED),0)
	CASES=$(or $(CASES),100000) SEED=$(SEED) go test -count=1 -timeout 0 -v -run '^TestReshape' ./checkpoint

kills: ## kill KILLS=100 processes that reshard a checkpoint at random moments and let others go on; GB=18 makes it one of that size, on the disk of TMPDIR; SEED=N repeats the choices
	KILLS=$(or $(KILLS),100) go test -count=1 -timeout 0 -v -run '^TestKilled$$' ./checkpoint

plan-gaps: ## how far from the best possible plans of the public profiles below the folder SHOAL_DATA are at most; a minute
	SHOAL_PLAN_GAPS=1 go test -count=1 -timeout 0 -v -run '^TestProvedGaps$$' ./decide/planner

plan-oracles: ## compare plans with brute force in CASES=2000 random cases of each kind and, where PYTHON=python3 has SciPy, with integer programmes; some minutes
	PLAN_CASES=$(or $(CASES),2000) PLAN_MILP=$(or $(PYTHON),python3) go test -count=1 -timeout 0 -v \
		-run 'TestBruteForce|TestBestOf|TestOverHosts|TestRepair|TestOwnReplicas|TestMixed|TestMinCut|TestPartition|TestSchedule|TestGuarantee|TestMILP' \
		./decide/planner ./decide/planner/bound ./decide/planner/spp

sim-soak: ## simulate SCHEDULES=1000000 random schedules of a job on several hosts, from SEED=1 on; about 8 minutes a core for 100000
	SCHEDULES=$(or $(SCHEDULES),1000000) SEED=$(or $(SEED),1) go test -count=1 -timeout 0 -v -run '^TestRandomSchedules$$' ./head/simtest

sched-soak: ## play SCHEDULES=100000 random schedules of a pool of several hosts, from SEED=1 on; about 20 minutes of a processor
	SCHEDULES=$(or $(SCHEDULES),100000) SEED=$(or $(SEED),1) go test -count=1 -timeout 0 -v -run '^TestRandomSchedules$$' ./pool

sched-kills: build ## kill the head of a pool, keepers and whole hosts KILLS=100 times, where three network namespaces are the hosts: needs root; SEED=N repeats the choices; about 7 minutes
	scripts/setup
	.venv/bin/python bench/sched/kills.py --kills $(or $(KILLS),100) --seed $(or $(SEED),1)

bench-peers: build ## measure against Gloo and MPI, which are installed if missing, and write docs/benchmarks.md; about 20 minutes
	bench/peers/install.sh
	bench/peers/run.py --write

bench-hosts: build ## the same on hosts of 1 Gbit/s, which are network namespaces of this machine: needs root; about 20 minutes
	bench/peers/install.sh
	bench/hosts/run.py --write

bench-steps: build ## whole steps of training with PyTorch, on gloo and on shoal; about 20 minutes
	bench/peers/install.sh
	bench/peers/step.py --write

bench-compress: build ## steps with compressed gradients on hosts with slow cables, which are network namespaces: needs root; about 10 minutes
	bench/peers/install.sh
	bench/hosts/compress.py --write

bench-reshape: build ## how long training pauses while its mesh changes, on hosts with slow cables, which are network namespaces: needs root; about 20 minutes
	bench/peers/install.sh
	bench/hosts/reshape.py --write

bench-trainers: build ## what a lost worker costs the Trainer of transformers on shoal, torchrun and torchft, and whether it trains on right; about 90 minutes; QUICK=1 a tiny model, once
	scripts/setup torchft
	.venv-torch2/bin/python bench/trainers/run.py $(if $(QUICK),--quick,--write)

bench-loop: build ## how true the predictions of the loop are and what it brings, on paced workers; about 65 minutes; QUICK=1 a few changes and one seed
	scripts/setup
	.venv/bin/python bench/loop/run.py $(if $(QUICK),--quick,--write)

bench-sched: build ## real jobs in a pool on this machine: how soon an urgent job has its slots, what a job loses that is made smaller and parked 200 times, and ten jobs under two policies and in Slurm; about 20 minutes
	scripts/setup slurm
	scripts/setup
	.venv/bin/python bench/sched/run.py

slurm-test: build ## a job on three nodes of a Slurm on this machine, which preempts it 20 times and loses a node; about 9 minutes
	scripts/setup slurm
	scripts/setup
	PREEMPTIONS=20 .venv/bin/python -m pytest -q python/tests/test_slurm.py

kube-test: build ## jobs on Kubernetes with pods as processes and a real API server, which is built if missing (fifteen minutes of a processor, once): a session TIMES=1 times, ROUNDS=20 lost nodes, the guide, a queue of Kueue's own controller, and all faults; KUBE=memory does what an API server in memory can
	scripts/setup
ifeq ($(KUBE),memory)
	cd deploy/kube && KUBE=memory go test -count=1 -timeout 0 -v ./kubelet
else
	scripts/setup kube
	cd deploy/kube && CGO_ENABLED=0 go build -trimpath -o ../../build/tools/shoal-operator .
	cd deploy/kube && KUBE=server go test -count=$(or $(TIMES),1) -timeout 0 -v -run '^TestSession$$' ./kubelet
	cd deploy/kube && export KUBE=server && \
	{ ROUNDS=$(or $(ROUNDS),20) go test -count=1 -timeout 0 -v -run '^TestNodesLost$$' ./kubelet & } && lost=$$!; \
	go test -count=1 -timeout 0 -v -run '^TestServer' ./kubelet ./operator && \
	go test -count=1 -timeout 0 -v -skip '^Test(Session|Server.*|NodesLost)$$' ./kubelet; \
	others=$$?; wait $$lost && exit $$others
endif

kube-scale: ## the operator for Kubernetes with 200 jobs on 2,000 nodes without processes, and a real API server: how long 200 pods take to come and go, memory, requests; about 2 minutes once the server is built
	scripts/setup kube
	cd deploy/kube && CGO_ENABLED=0 go build -trimpath -o ../../build/tools/shoal-operator .
	cd deploy/kube && KUBE=server SCALE=1 go test -count=1 -timeout 0 -run TestScale -v ./kubelet

bench-plan: build ## how true the predictions of shoal plan are, and what its plans bring; about 25 minutes; QUICK=1 a few cases
	scripts/setup torch2
	scripts/setup
	.venv/bin/python bench/plan/run.py $(if $(QUICK),--quick,--write)

clean: ## remove what was built, the Python environments too
	rm -rf bin build dist .venv .venv-torch2 python/dist
