# make help lists the targets. Needs Python 3.11 or later; everything else is installed here.
SCALE ?= tiny
SEEDS ?= 1
WORKERS ?=
CLUSTER ?=
RESULTS ?= results
PYTHON ?= python3
YES ?=
PAIRS ?=
PUBLISH ?=
SEARCH ?= tuning_search
CLAIM ?=
OPTIONS ?=
TASKS ?=
MINUTES ?=
TOY ?=
AGAIN ?=
# Set on the command line alone: the environment may have variables of these names.
FROM = reference
ALL =
RUN =
STEP =
PART =
NAME =
ONLY =
MODEL =
EXPERIMENT =
EXAMPLES =
UNTIL =
PEAK =
FROM_PUBLISHED =

# Switches: these words are off, as nothing is.
on = $(filter-out 0 no false off,$(1))
# For the shell, whatever stands in it.
quoted = '$(subst ','\'',$(1))'
SCALES := $(basename $(notdir $(wildcard lrm/plan/presets/scale/*.yaml)))
$(if $(filter 11,$(words $(SCALE))$(words $(filter $(SCALE),$(SCALES)))),,$(error SCALE=$(SCALE) is no scale; there are $(SCALES)))
$(if $(filter $(FROM),runs reference),,$(error FROM=$(FROM): write runs or reference))

# All that there is to draw and to train, as the tree has it: the paper's figures by their numbers,
# ours by their names.
named = $(basename $(notdir $(sort $(wildcard analysis/figures/$(1).py))))
PAPER := $(call named,fig[0-9]) $(call named,fig[0-9][0-9]) $(call named,table[0-9])
OURS := $(filter-out $(PAPER),$(call named,[a-z]*))
EXPERIMENTS := $(notdir $(patsubst %/config.yaml,%,$(sort $(wildcard experiments/*/config.yaml))))
# Those that search for hyperparameters have a command of their own.
SEARCHES := $(notdir $(patsubst %/config.yaml,%,$(shell grep -ls '^search:' experiments/*/config.yaml)))
UNDRAWN := $(filter-out $(PAPER) $(OURS) $(SEARCHES),$(EXPERIMENTS))
# What uses tuned presets waits at each scale for the search that finds them.
TUNED := $(notdir $(patsubst %/config.yaml,%,$(shell grep -ls 'tuned/[$$]scale' experiments/*/config.yaml)))
# The presets that a search has published for an experiment: those called as its arms are, where it says
# $arm (what stands in braces may be anything), and those that it names itself.
found_for = $(wildcard $(patsubst %,lrm/plan/presets/tuned/$(SCALE)/%.yaml,$(subst ",,$(shell \
	sed -nE -e 's,^  ([^:]*):.*tuned/[$$]scale/[$$]arm.*,\1,p' -e 's,.*tuned/[$$]scale/([A-Z_]+).*,\1,p' \
		experiments/$(1)/config.yaml | sed -E 's,[{][a-z]+[}],*,g'))))
UNTUNED = $(filter-out $(NOT_HERE),$(call figures_of,$(foreach name,$(TUNED),$(if $(call found_for,$(name)),,$(name)))))
# What is made for some scales alone, and what calls the harness.
figures_of = $(basename $(notdir $(foreach name,$(1),$(shell grep -ls '^EXPERIMENTS = .*"$(name)"' analysis/figures/*.py))))
configured = $(notdir $(patsubst %/config.yaml,%,$(shell grep -lsE '$(1)' experiments/*/config.yaml)))
ELSEWHERE := $(filter-out $(call configured,^at: .*$(SCALE)),$(call configured,^at: ))
EVALUATED := $(call configured,^evaluation:)
NOT_HERE := $(call figures_of,$(ELSEWHERE))
# Those of ours whose drawing is published at this scale need no runs, unless FROM=runs. What is published
# lies in this tree alone: with another RESULTS they are neither drawn nor trained.
PUBLISHED := $(filter $(basename $(notdir $(wildcard results/reference/$(SCALE)/figures/*.csv))),$(OURS))
LENT_HERE := $(if $(filter reference,$(FROM)),$(PUBLISHED))
BORROWED := $(filter $(basename $(notdir $(shell ls $(call quoted,$(RESULTS))/reference/$(SCALE)/figures 2>/dev/null))),$(LENT_HERE))
FAR := $(filter-out $(BORROWED),$(LENT_HERE))
# Those of other texts that are not published have targets of their own: scale_vectors, gdn, steepest.
OTHERS := $(filter-out $(BORROWED) $(FAR) $(NOT_HERE),$(filter sv_% gdn_% bm_%,$(OURS)))
OWN := $(filter-out $(UNTUNED) $(NOT_HERE) $(OTHERS),$(PAPER) $(filter-out $(BORROWED) $(FAR),$(OURS)))

VENV := .venv
BIN := $(VENV)/bin
workers := $(if $(WORKERS),--workers $(WORKERS))
cluster := $(if $(CLUSTER),--cluster $(CLUSTER))
options = --scale $(SCALE) --seeds $(call quoted,$(SEEDS)) $(workers) $(cluster) --results $(call quoted,$(RESULTS)) $(if $(call on,$(YES)),--yes)
# In one sweep what figures need of their experiments: whole ones, or some runs of them. Where runs
# failed, what the others give is drawn all the same, by $(2), and then make fails too.
train_and = runs=$$($(BIN)/python -m analysis.needs --sweep $(1)) \
	&& { eval "$(BIN)/python -m lrm.sweep $$runs $(options)"; failed=$$?; } \
	&& { test $$failed -eq 0 || test $$failed -eq 3 || exit $$failed; } \
	&& $(2) && { test $$failed -eq 0 || echo "error: runs failed, see above; figures are of those that have finished" >&2; exit $$failed; }
# One experiment after the other.
train_needed = runs=$$($(BIN)/python -m analysis.needs $(1)) \
	&& echo "$$runs" | while read -r run; do eval "$(BIN)/python $$run $(options)" </dev/null || exit; done
draw = $(BIN)/python -m analysis.figures $(1) --scale $(SCALE) --results $(call quoted,$(RESULTS))

.DEFAULT_GOAL := help
# Several of pip at once spoil .venv, and so does make -j. The two that draw go side by side.
ifeq ($(filter own_figures borrowed_figures,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif
.PHONY: help demo all scale_vectors gdn steepest own_figures borrowed_figures setup setup-dev setup-notebooks tune notebooks lab claims report readme publish evaluate probe bench gpu test test-notebooks test-compiled test-models test-recipes test-cluster test-mutants lint list watch clean-runs lock $(PAPER) $(OURS) $(UNDRAWN)

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9_ -]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo && echo "Figures: train what is missing of their runs, and draw"
	@awk 'FNR == 1 {n = split(FILENAME, part, "[/.]"); gsub(/^"""|"""$$/, ""); printf "  make %-20s %s\n", part[n - 1], $$0}' \
		$(patsubst %,analysis/figures/%.py,$(PAPER) $(OURS))
	@echo && echo "Experiments: train what is missing"
	@awk '/^title: / {n = split(FILENAME, part, "/"); printf "  make %-20s %s\n", part[n - 1], substr($$0, 8)}' \
		$(patsubst %,experiments/%/config.yaml,$(UNDRAWN))
	@echo
	@echo "  SCALE=smoke|tiny|mini|small|paper (now $(SCALE))  SEEDS=3 or SEEDS=100-107 (now $(SEEDS))"
	@echo "  WORKERS=2 (default one a core or GPU)  RESULTS=folder (now $(RESULTS))"
	@echo "  CLUSTER=slurm trains by jobs of SLURM, which cluster.yaml describes"

setup: $(VENV)/.core  ## make .venv with what training and drawing need
setup-dev: $(VENV)/.dev  ## the same with what the tests need
setup-notebooks: $(VENV)/.notebooks  ## the same with Jupyter

# pip byte-compiles on one core, file after file; this takes all of them. What cannot be compiled is
# for other versions of Python.
install = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(1) \
	&& { $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true; }

new_enough = 'import sys; sys.exit(sys.version_info < (3, 11))'
# torch first and by its exact version: a range could take another build with it.
$(VENV)/.core: pyproject.toml requirements.lock
	@{ $(BIN)/python -m pip --version && $(BIN)/python -c $(new_enough); } >/dev/null 2>&1 \
		|| { $(PYTHON) -c $(new_enough) && { test ! -e $(VENV) || test -e $(VENV)/pyvenv.cfg; } && $(PYTHON) -m venv $(VENV) \
			&& $(BIN)/python -c $(new_enough); } \
		|| { echo "error: $(VENV) cannot be made: Python 3.11 or later is needed, with its module venv; remove $(VENV) and call make setup PYTHON=python3.11" >&2; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile $$(grep '^torch==' requirements.lock)
	$(call install,-c requirements.lock -e '.[suite]')
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[dev]')
	@touch $@

$(VENV)/.recipes: $(VENV)/.dev
	$(call install,-c requirements.lock -e '.[recipes]')
	@touch $@

$(VENV)/.cluster: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[cluster]')
	@touch $@

$(VENV)/.report: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[report]')
	@touch $@

$(VENV)/.evaluation: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[evaluation]')
	@touch $@

$(VENV)/.notebooks: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[notebooks]')
	@touch $@

tell_untuned = echo "left out: $(strip $(UNTUNED)). They need tuned presets: make tune SCALE=$(SCALE) PUBLISH=1"
tell_others = echo "left out: $(strip $(OTHERS)). They are of other texts: make scale_vectors, make gdn, make steepest"
tell_far = echo "left out: $(strip $(FAR)). What is published lies in results: leave RESULTS out to draw them, or train them by FROM=runs"
tell_not_here = echo "left out: $(strip $(NOT_HERE)). They have no runs at $(SCALE)"
# Of the figures whose names begin so those that have none; nothing where all have.
absent = $(filter $(NOT_HERE),$(filter $(1),$(OURS)))
tell_absent = $(if $(call absent,$(1)),echo "left out: $(call absent,$(1)). They have no runs at $(SCALE)",:)

demo: $(VENV)/.core  ## figure 1 from the published runs, then two short trainings: a frozen scale and a learned one
	@$(if $(shell test -d $(call quoted,$(RESULTS))/reference/tiny && echo 1),$(BIN)/python -m analysis.figures fig1 --scale tiny --results $(call quoted,$(RESULTS)) --source reference,echo "$(RESULTS) has no published runs: figure 1 is in results/reference/tiny/figures")
	@$(BIN)/python experiments/projector/run.py --scale tiny --only 'FPN S=8 *' --only 'SPN S=8 *' \
		--set train.steps=500 $(workers) --results $(call quoted,$(RESULTS))
	@$(BIN)/python -m analysis.demo --results $(call quoted,$(RESULTS))

# In one sweep, so that no worker waits for an experiment's last run. Two processes draw. A line that holds
# the name of make's own variable would be carried out by make -n too.
again = $(MAKE)
all: $(VENV)/.core $(if $(filter $(OWN),$(call figures_of,$(EVALUATED))),$(VENV)/.evaluation) $(if $(CLUSTER),$(VENV)/.cluster)  ## every figure of the paper that SCALE has, trained and drawn; ours drawn from the published runs (FROM=runs: trained too)
	@$(call train_and,$(OWN),{ $(again) --no-print-directory --keep-going -j2 own_figures $(if $(BORROWED),borrowed_figures) \
		$(if $(UNTUNED),&& $(tell_untuned)) $(if $(NOT_HERE),&& $(tell_not_here)) $(if $(OTHERS),&& $(tell_others)) $(if $(FAR),&& $(tell_far)); })

own_figures: $(VENV)/.core
	@$(call draw,$(OWN))

borrowed_figures: $(VENV)/.core
	@$(call draw,$(BORROWED)) --source reference

# The LRs that designs ask for are found once, on seeds that explore: make sv_learning_rates.
COMPARED = $(filter-out sv_learning_rates $(NOT_HERE),$(filter sv_%,$(OURS)))
# Ours of them that are published are not trained, as in make all.
LENT = $(filter-out sv_fig% sv_theory,$(filter $(BORROWED),$(COMPARED)))
scale_vectors: $(VENV)/.core $(if $(CLUSTER),$(VENV)/.cluster)  ## the second paper: its figures trained in one sweep and drawn, ours drawn from the published runs (FROM=runs: trained too)
	@$(if $(LENT),$(call draw,$(LENT)) --source reference,:)
	@$(call tell_absent,sv_%)
	@$(if $(filter-out $(LENT),$(COMPARED)),$(call train_and,$(filter-out $(LENT),$(COMPARED)),$(call draw,$(filter-out $(LENT),$(COMPARED)))),:)

DELTA = $(filter-out $(NOT_HERE),$(filter gdn_%,$(OURS)))
gdn: $(VENV)/.core $(if $(CLUSTER),$(VENV)/.cluster)  ## the third paper: train what its figures need, and draw them
	@$(if $(DELTA),$(call train_needed,$(DELTA)),:)
	@$(if $(DELTA),$(call draw,$(DELTA)),:)
	@$(call tell_absent,gdn_%)

STEEPEST = $(filter-out $(NOT_HERE) $(UNTUNED),$(filter bm_%,$(OURS)))
steepest: $(VENV)/.core $(if $(CLUSTER),$(VENV)/.cluster)  ## Beyond MuP 3: train the experiments steepest_* in one sweep, and draw their figures
	@$(call tell_absent,bm_%)
	@$(if $(STEEPEST),$(call train_and,$(STEEPEST),$(call draw,$(STEEPEST))),:)

# A figure of own runs waits for all that it reads: ONLY would leave it empty.
# Jobs of all its experiments are submitted together.
$(PAPER) $(OURS): $(VENV)/.core $(if $(CLUSTER),$(VENV)/.cluster)
	@$(if $(ONLY),echo "error: a figure trains all that it reads; leave ONLY out or call experiments/<name>/run.py --only" >&2; exit 2)
	@$(if $(CLUSTER),$(call train_and,$@,$(call draw,$@)),$(call train_needed,$@) && $(call draw,$@))

$(call figures_of,$(EVALUATED)) $(filter $(UNDRAWN),$(EVALUATED)): $(VENV)/.evaluation

$(UNDRAWN): $(VENV)/.core $(if $(CLUSTER),$(VENV)/.cluster)
	@$(BIN)/python experiments/$@/run.py $(options) $(if $(ONLY),--only $(call quoted,$(ONLY)))

tune: $(VENV)/.core  ## search the hyperparameters of the tuning ablation; PUBLISH=1 has experiments use what was found, FROM_PUBLISHED=1 goes on from the published log, ONLY='ADAM*', UNTIL=NONE ends with that tier, SEARCH=steepest_search runs that search
	@$(if $(CLUSTER),echo "error: a search does not run by jobs; leave CLUSTER out" >&2; exit 2)
	@$(BIN)/python experiments/$(SEARCH)/run.py --scale $(SCALE) $(workers) --results $(call quoted,$(RESULTS)) $(if $(call on,$(PUBLISH)),--publish) \
		$(if $(call on,$(FROM_PUBLISHED)),--from-published) $(if $(UNTIL),--until $(call quoted,$(UNTIL))) $(foreach one,$(ONLY),--only $(call quoted,$(one)))

notebooks: $(VENV)/.notebooks  ## run every notebook from top to bottom and store its outputs in it
	@$(BIN)/python -m analysis.notebooks

# Jupyter writes into what it opens, so it gets copies, which stay as their user leaves them.
lab: $(VENV)/.notebooks  ## open copies of the notebooks, in lab/, in Jupyter; OPTIONS="--no-browser" goes to jupyter lab
	@mkdir -p lab && for file in notebooks/*; do test -e lab/$${file##*/} || cp $$file lab/; done
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(OPTIONS) lab

claims: $(VENV)/.core  ## every claim and its verdict, as published, or with FROM=runs judged from yours; CLAIM=P1, ALL=1
	@$(BIN)/python -m analysis.claims --scale $(SCALE) --results $(call quoted,$(RESULTS)) --source $(FROM) \
		$(if $(CLAIM),--claim $(CLAIM)) $(if $(call on,$(ALL)),--all)

report: $(VENV)/.report  ## all that was found as pages for a browser; FROM=runs: yours beside what is published
	@$(BIN)/python -m analysis.report --scale $(SCALE) --results $(call quoted,$(RESULTS)) --source $(FROM)

readme: $(VENV)/.report  ## write the published results into README.md and experiments/README.md, and draw analysis/report/idea.png
	@$(BIN)/python -m analysis.report.overview
	@$(BIN)/python -m analysis.report.idea

publish: $(VENV)/.core  ## publish finished runs, in results/reference: EXPERIMENT=projector SEEDS=100-107
	@$(BIN)/python -m analysis.publish $(EXPERIMENT) --scale $(SCALE) --seeds $(call quoted,$(SEEDS)) --results $(call quoted,$(RESULTS))

evaluate: $(VENV)/.evaluation  ## score a finished run or exported folder, or any model with TASKS: RUN=results/models/adamw-with EXAMPLES=400
	@$(if $(RUN),,echo "error: no run is named; give RUN=, a finished run or a model's folder" >&2; exit 2)
	@$(BIN)/lrm evaluate $(call quoted,$(RUN)) --results $(call quoted,$(RESULTS)) $(if $(STEP),--step $(STEP)) $(if $(EXAMPLES),--examples $(EXAMPLES)) $(if $(TASKS),--tasks $(TASKS))

probe: $(VENV)/.dev  ## row and column norms of any transformers model: MODEL=folder or a name on the hub
	@$(if $(MODEL),,echo "error: no model is named; give MODEL=, a folder or a name on the hub" >&2; exit 2)
	@table=$$($(BIN)/lrm probe $(call quoted,$(MODEL)) --results $(call quoted,$(RESULTS))) \
		&& $(BIN)/python -m analysis.explore.checkpoint_norms "$$(dirname "$$table")"

bench: $(VENV)/.dev  ## speed and memory beside transformers: PAIRS=5 is quick, ONLY='multipliers* parts', PUBLISH=name (20 or more) publishes it
	@$(if $(filter 0 1 yes no,$(PUBLISH)),echo "error: PUBLISH=$(PUBLISH): here it is the name of the record" >&2; exit 2)
	@$(BIN)/python -m lrm.bench --results $(call quoted,$(RESULTS)) $(if $(PAIRS),--pairs $(PAIRS)) $(foreach one,$(ONLY),--only $(call quoted,$(one))) \
		$(if $(PUBLISH),--publish --name $(PUBLISH))

# A part that time has ended is no failure: what there is of it is drawn, and the next call goes on.
gpu: $(VENV)/.dev  ## a first day on a GPU, in parts of nine minutes at most; PART=speed, MINUTES=9, NAME=mine, AGAIN=1, PEAK=989e12 FLOPs/s of a card without a known peak, TOY=1 tries it on a CPU
	@record=$$($(BIN)/python -m lrm.bench.gpu --results $(call quoted,$(RESULTS)) $(if $(PART),--part $(PART)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(NAME),--name $(NAME)) $(if $(call on,$(TOY)),--toy) \
		$(if $(call on,$(AGAIN)),--again) $(if $(PEAK),--peak-flops $(PEAK))) || test $$? -eq 3 && $(BIN)/python -m analysis.explore.gpu "$$record"

test: $(VENV)/.dev  ## run the tests, but for those of the six targets that follow
	@$(BIN)/python -m pytest -n 3 --dist loadfile -m 'not compiles and not notebooks'  # a third, for when tests wait

test-notebooks: $(VENV)/.dev  ## execute every notebook, on what is published and on runs at the smoke scale
	@$(BIN)/python -m pytest -n 2 -m notebooks

test-compiled: $(VENV)/.dev  ## compile layers, and take the day on a GPU at toy size: needs a C++ compiler
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m compiles

test-models: $(VENV)/.dev  ## train and save models of many kinds, and compile transformers' layers; writes lrm/multipliers/MODELS.md
	@$(BIN)/python -m pytest tests/models.py tests/peers.py

test-recipes: $(VENV)/.recipes  ## run lrm/multipliers/RECIPES.md with Lightning, TRL and torchao too, which it installs
	@$(BIN)/python -m pytest -rs -p no:xdist tests/test_library_recipes.py

test-cluster: $(VENV)/.dev  ## sweeps on a real SLURM, started on this machine: needs root, slurm-wlm and munge
	@$(BIN)/python -m pytest -rs -p no:xdist tests/cluster/sweeps.py

test-mutants: $(VENV)/.dev  ## change the judging functions, one small change at a time: do their tests notice?
	@$(BIN)/python tests/mutants.py

lint: $(VENV)/.dev  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

of_experiment = $(if $(EXPERIMENT),--experiment $(call quoted,$(EXPERIMENT)))
list: $(VENV)/.core  ## show the runs on disk, of all scales, with their sizes; EXPERIMENT=projector
	@$(BIN)/python -m lrm.sweep.runs list --results $(call quoted,$(RESULTS)) $(of_experiment)

watch: $(VENV)/.core  ## show what is being trained, in another terminal: progress, loss, norms, time left
	@$(BIN)/python -m lrm.sweep.watch --results $(call quoted,$(RESULTS))

clean-runs: $(VENV)/.core  ## show and remove the runs at SCALE, of all experiments or of EXPERIMENT=projector (asks first; YES=1 does not)
	@$(BIN)/python -m lrm.sweep.runs clean --scale $(SCALE) --results $(call quoted,$(RESULTS)) $(of_experiment) $(if $(call on,$(YES)),--yes)

lock: $(VENV)/.notebooks $(VENV)/.recipes  ## pin what is installed in .venv
	@$(BIN)/pip list --format=freeze --exclude lrm-suite --exclude pip --exclude setuptools > $(VENV)/lock
	@sed 's/+cpu$$//' $(VENV)/lock > requirements.lock
