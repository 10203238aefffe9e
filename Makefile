# Set-up and the everyday commands. `make` alone lists them; ARGS="..." is passed on to the program.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup train waveform many dashboard test test-all bench drill story clean
.DELETE_ON_ERROR:

PYTHON := .venv/bin/python
PIP := $(PYTHON) -m pip --disable-pip-version-check install -qq --progress-bar off  # errors only
PACKAGES := .venv/packages-installed
PROJECT := .venv/project-installed
SHAPES := dataset/shapes/made_by.json
TONES := dataset/tones/made_by.json
MANY := dataset/many/made_by.json

# A .venv whose Python has gone is made anew; one whose `finite` is not this folder's (a moved clone) gets it again.
ifneq ($(wildcard $(PROJECT)),)
  ifneq ($(shell $(PYTHON) -c 'print("runs")' 2>/dev/null),runs)
    $(PACKAGES): FORCE
  else ifneq ($(shell $(PYTHON) -c 'import finite, os; print(os.path.samefile(finite.__path__[0], "src/finite"))' 2>/dev/null),True)
    $(PROJECT): FORCE
  endif
endif
.PHONY: FORCE
FORCE:

# An interpreter counts if it runs (a pyenv shim may not), fits the pinned packages, and can make environments.
CANDIDATES := python3.11 python3.12 python3.10 python3 python
FITS := import ensurepip, platform, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
LINUX := import platform, sys; sys.exit((platform.system(), platform.machine(), platform.libc_ver()[0]) != ("Linux", "x86_64", "glibc"))

help:
	@echo 'make setup     make .venv with the pinned dependencies (once); the others do it too'
	@echo 'make train     set up (once), make the built-in data (once), train, evaluate, export: a new run in runs/'
	@echo 'make waveform  the same with sound: clips are made (once), a denoiser is trained and exported'
	@echo 'make many      the same with several objects per image (examples/many.yaml)'
	@echo 'make dashboard show runs/ in MindInsight (sets up its own environment once), until Ctrl-C'
	@echo 'make test      set up (once), run the tests'
	@echo 'make test-all  the slow tests too'
	@echo 'make bench     measure speed: the guard, the step, the data, the whole job (takes long)'
	@echo 'make drill     put faults into short trainings and show what came of each'
	@echo 'make story     train the published recipe with each remedy alone, write docs/story.* (half an hour)'
	@echo 'make clean     remove .venv and .venv-mindinsight, the built-in data and caches; never runs/'
	@echo 'Options for the program: make train ARGS="--seed 2 --set training.batch_size=16"'

setup: $(PROJECT)

train: $(PROJECT) $(SHAPES)
	@$(PYTHON) main.py --stage all $(ARGS)

waveform: $(PROJECT) $(TONES)
	@$(PYTHON) main.py --stage all --config examples/waveform.yaml $(ARGS)

many: $(PROJECT) $(MANY)
	@$(PYTHON) main.py --stage all --config examples/many.yaml $(ARGS)

dashboard: $(PROJECT)
	@$(PYTHON) tools/dashboard.py $(ARGS)

test: $(PROJECT)
	@$(PYTHON) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS)

test-all: $(PROJECT)
	@$(PYTHON) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations=10 -m '' $(ARGS)

bench: $(PROJECT) $(SHAPES)
	@$(PYTHON) tools/benchmark.py $(ARGS)

drill: $(PROJECT)
	@$(PYTHON) tools/fault_drill.py $(ARGS)

story: $(PROJECT) $(SHAPES)
	@$(PYTHON) tools/published_story.py $(ARGS)

# Written last, so an install that was cut short starts over, in an empty environment.
$(PACKAGES): requirements.lock
	@python=; for name in $(CANDIDATES); do \
	    if $$name -c '$(FITS)' >/dev/null 2>&1; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo 'No Python 3.10, 3.11 or 3.12 with venv was found (tried: $(CANDIDATES)); install one, e.g. apt-get install python3-venv.' >&2; exit 1; \
	fi; \
	if ! $$python -c '$(LINUX)'; then \
	    echo 'The pinned packages are for Linux x86-64 with glibc; elsewhere: pip install -e . && python dataset/make_shapes.py && python main.py --stage all' >&2; exit 1; \
	fi; \
	echo "Making .venv with $$($$python --version)"; \
	$$python -m venv --clear .venv
	@echo 'Installing dependencies (2.8 GB, once; a few minutes)'
	@$(PIP) --requirement requirements.lock
	@touch $@

$(PROJECT): $(PACKAGES) pyproject.toml
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The generator leaves a set alone that is as it would draw it, and refuses a folder that it did not draw.
$(SHAPES): dataset/make_shapes.py | $(PROJECT)
	@echo 'Making the built-in data in dataset/shapes (once)'
	@$(PYTHON) dataset/make_shapes.py
	@touch $@

$(TONES): dataset/make_tones.py | $(PROJECT)
	@echo 'Making the built-in clips in dataset/tones (once)'
	@$(PYTHON) dataset/make_tones.py
	@touch $@

$(MANY): dataset/make_many.py dataset/make_shapes.py | $(PROJECT)
	@echo 'Making the set of many objects in dataset/many (once)'
	@$(PYTHON) dataset/make_many.py
	@touch $@

# Data are removed only where the generator left its mark: a folder that a user put there stays.
clean:
	@rm -rf .venv .venv-mindinsight build dist .pytest_cache .hypothesis src/*.egg-info rank_[0-9]* kernel_meta
	@for mark in dataset/*/made_by.json; do if [ -f "$$mark" ]; then rm -rf "$$(dirname "$$mark")"; fi; done
	@find main.py src tests tools dataset -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@echo 'Removed .venv and .venv-mindinsight, the built-in data and caches; runs/ was left alone.'
