# make help lists the targets. Needs Python 3.11 or later; everything else is installed here.
SCALE ?= tiny
SEEDS ?= 1
WORKERS ?=
RESULTS ?= results
FROM ?= reference
PYTHON ?= python3
YES ?=
PAIRS ?=
PUBLISH ?=
PLACEMENTS ?= all scalar symmetry_free irredundant

PAPER := fig1 fig2 fig3 fig4 fig5 fig6 fig8 fig9 fig10 table1
OURS := gradient_noise frozen_multipliers mlp_scale_design multiplier_lr projector_controls symmetry_stress

VENV := .venv
BIN := $(VENV)/bin
workers := $(if $(WORKERS),--workers $(WORKERS))
options = --scale $(SCALE) --seeds $(SEEDS) $(workers) --results $(RESULTS)
train = $(BIN)/python experiments/$(1)/run.py $(options) $(2)
draw = $(BIN)/python -m analysis.figures $(1) --scale $(SCALE) --results $(RESULTS)

.DEFAULT_GOAL := help
.PHONY: help all paper_figures our_figures reference_figures setup setup-dev setup-notebooks fig1 fig2 fig3 fig4 fig5 fig6 fig8 fig9 fig10 table1 symmetries symmetry_stress projector_placement equilibrium projector_controls mlp_scale_design gradient_noise frozen_multipliers multiplier_lr notebooks lab claims publish export probe bench test lint list clean-runs lock

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9_ -]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  SCALE=smoke|tiny|small|paper (now $(SCALE))  SEEDS=3 or SEEDS=100-107 (now $(SEEDS))"
	@echo "  WORKERS=2 (default one a core or GPU)  RESULTS=folder (now $(RESULTS))"

setup: $(VENV)/.core  ## make .venv with what training and drawing need
setup-dev: $(VENV)/.dev  ## the same with what the tests need
setup-notebooks: $(VENV)/.notebooks  ## the same with Jupyter

# pip byte-compiles on one core, file after file; this takes all of them. What cannot be compiled is
# for other versions of Python.
install = $(BIN)/pip install --quiet --disable-pip-version-check --no-compile $(1) \
	&& { $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true; }

# torch first and by its exact version: a range could take another build with it.
$(VENV)/.core: pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or later is needed; make PYTHON=python3.11"; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile $$(grep '^torch==' requirements.lock)
	$(call install,-c requirements.lock -e .)
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[dev]')
	@touch $@

$(VENV)/.notebooks: $(VENV)/.core
	$(call install,-c requirements.lock -e '.[notebooks]')
	@touch $@

TRAINED := projector mlp_scale scale_diversity symmetry symmetry_placement width_scaling table1 grad_clipping

# In one sweep, so that no worker waits for an experiment's last run. Ours, controls most of all, take
# as long again: drawn of the reference, where there is one, unless FROM=runs. Two processes draw.
ifeq ($(and $(filter reference,$(FROM)),$(wildcard $(RESULTS)/reference/$(SCALE))),)
all: names := $(TRAINED) $(OURS)
all: figures := paper_figures our_figures
else
all: names := $(TRAINED)
all: figures := paper_figures reference_figures
endif
all: $(VENV)/.core  ## every figure: the paper's trained and drawn, ours drawn of the reference (FROM=runs: trained too)
	@$(BIN)/python -m lrm.experiment $(addprefix experiments/,$(names)) $(options) || test $$? -eq 3
	@$(MAKE) --no-print-directory --keep-going -j2 $(figures)

paper_figures: $(VENV)/.core
	@$(call draw,$(PAPER))

our_figures: $(VENV)/.core
	@$(call draw,$(OURS))

reference_figures: $(VENV)/.core
	@$(call draw,$(OURS)) --source reference

fig1: $(VENV)/.core  ## figure 1: train what is missing of the projector sweep and of the MLP's with Adam, draw
	@$(call train,projector)
	@$(call train,mlp_scale,--only 'ADAM* S=0.[25]*' --only 'ADAM* S=[1-8] *')
	@$(call draw,fig1)

fig2 fig3: $(VENV)/.core  ## figures 2 and 3: scales that multipliers learn over depth and width
	@$(call train,scale_diversity)
	@$(call draw,$@)

fig4: $(VENV)/.core  ## figure 4: multipliers along symmetries, and what holds them
	@$(call train,symmetry)
	@$(call train,symmetry_placement)
	@$(call draw,fig4)

symmetry_stress: $(VENV)/.core  ## train and draw multipliers under stress: half precision, log-scale (S6, LOG1)
	@$(call train,symmetry_stress)
	@$(call draw,symmetry_stress)

symmetries: $(VENV)/.core  ## count the symmetries of multipliers: PLACEMENTS="all symmetry_free", derived and found
	@$(BIN)/python -m lrm.symmetry $(PLACEMENTS)

fig5 fig10: $(VENV)/.core  ## figures 5 and 10: norms, activations and multipliers over the width
	@$(call train,width_scaling)
	@$(call draw,$@)

table1: $(VENV)/.core  ## table 1: exponents of the width, of a linear layer and of models
	@$(call train,table1)
	@$(call draw,table1)

fig6: $(VENV)/.core  ## figure 6: multipliers in and out of the clipping norm
	@$(call train,grad_clipping)
	@$(call draw,fig6)

fig8 fig9: $(VENV)/.core  ## figures 8 and 9: the MLP's norm sweep, Adam and Muon, all blocks and each layer
	@$(call train,mlp_scale)
	@$(call draw,$@)

projector_placement: $(VENV)/.core  ## train rows and fixed scalars on the projector (PR1, PR2)
	@$(call train,projector_placement)

equilibrium: $(VENV)/.core  ## train the sweeps of LR and weight decay apart (EQ1)
	@$(call train,equilibrium)

projector_controls: $(VENV)/.core  ## train and draw the controls of the projector sweep
	@$(call train,projector_controls)
	@$(call draw,projector_controls)

mlp_scale_design: $(VENV)/.core  ## train and draw the MLP's norm sweep on variants of the model
	@$(call train,mlp_scale_design)
	@$(call draw,mlp_scale_design)

gradient_noise: $(VENV)/.core  ## train and draw signal and noise of gradients (N1)
	@$(call train,gradient_noise)
	@$(call draw,gradient_noise)

frozen_multipliers: $(VENV)/.core  ## train and draw multipliers frozen at learned and at random values
	@$(call train,frozen_multipliers)
	@$(call draw,frozen_multipliers)

multiplier_lr: $(VENV)/.core  ## train and draw the sweep of the multipliers' own LR (MLR)
	@$(call train,multiplier_lr)
	@$(call draw,multiplier_lr)

notebooks: $(VENV)/.notebooks  ## run every notebook from top to bottom and store its outputs in it
	@$(BIN)/python -m analysis.notebooks

lab: $(VENV)/.notebooks  ## open the notebooks in Jupyter
	@$(BIN)/jupyter lab notebooks

claims: $(VENV)/.core  ## judge the claims of the reference, or with FROM=runs your own; write claims.json
	@$(BIN)/python -m analysis.claims --scale $(SCALE) --results $(RESULTS) --source $(FROM)

publish: $(VENV)/.core  ## make finished runs the reference: EXPERIMENT=projector SEEDS=100-107
	@$(BIN)/python -m analysis.publish $(EXPERIMENT) --scale $(SCALE) --seeds $(SEEDS) --results $(RESULTS)

export: $(VENV)/.dev  ## a finished run as a folder for transformers: RUN=results/runs/projector/<id> TO=folder
	@$(BIN)/python -m lrm.export $(RUN) $(TO)

probe: $(VENV)/.dev  ## row and column norms of any transformers model: MODEL=folder or a name on the hub
	@folder=$$($(BIN)/python -m lrm.checkpoint_norms $(MODEL) --results $(RESULTS)) \
		&& $(BIN)/python -m analysis.checkpoint_norms $$folder

bench: $(VENV)/.dev  ## speed and memory beside transformers: PAIRS=5 is quick, PUBLISH=name (20 or more) keeps it in the reference
	@$(BIN)/python -m lrm.bench --results $(RESULTS) $(if $(PAIRS),--pairs $(PAIRS)) \
		$(if $(PUBLISH),--publish --name $(PUBLISH))

test: $(VENV)/.dev  ## run the whole suite of tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.dev  ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

list: $(VENV)/.core  ## show the runs on disk, of all scales, with their sizes
	@$(BIN)/python -m lrm.runs list --results $(RESULTS)

clean-runs: $(VENV)/.core  ## show and remove the runs at SCALE (asks first; YES=1 does not)
	@$(BIN)/python -m lrm.runs clean --scale $(SCALE) --results $(RESULTS) $(if $(YES),--yes)

lock: $(VENV)/.dev  ## pin what is installed in .venv
	@$(BIN)/pip list --format=freeze --exclude lrm-suite --exclude pip --exclude setuptools \
		| sed 's/+cpu$$//' > requirements.lock
