# On a fresh machine with Python 3.11–3.13 and nothing else, `make demo` and `make test` do everything.

PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
GPU_PEERS := iTransformer TimeMixer PatchTST TimeXer VanillaTransformer Transformer
# What the class of braindecode's MVPFormer imports, 1 MB in all. Its package asks for torchaudio and others besides,
# which that class does not use: the test that compares it with ours puts stand-ins in their place.
BRAINDECODE := braindecode docstring-inheritance skorch tabulate torchinfo
# Folders are listed too: their time changes when a file is deleted.
SOURCES := $(shell find mvpa_ts adapters ieeg -not -path '*__pycache__*')
# Every script has a --quick form, which `make test` runs once. harness/ is what scripts share.
SCRIPTS := $(filter-out experiments/harness/% %/__init__.py,$(sort $(wildcard experiments/*.py experiments/*/*.py)))
script = $(filter %/$(1).py,$(SCRIPTS))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Times inside the wheel are those of the commit, so that two builds of it are equal byte for byte.
export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
export MPLBACKEND := Agg
# The models are small: on two cores with other work, the demo's training took 61 s with one thread and 322 s with two.
export OMP_NUM_THREADS ?= 1

.PHONY: docs help install demo demo-ieeg demo-detect test test-all gpu gpu-forecasting gpu-data faults fuzz numbers lint types unit slow \
	coverage smoke install-docs format clean

help:  ## Print the targets and the scripts
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 22
	@printf '\nScripts, each with --help and --quick:\n'
	@$(foreach room,$(sort $(dir $(SCRIPTS))),echo '$(room)'; \
		echo $(notdir $(basename $(filter-out %/__init__.py,$(sort $(wildcard $(room)*.py))))) | fold -s -w 110 | sed 's/^/  /';)

install: $(VENV)/.project  ## Make .venv with locked versions and install the project into it

demo: $(VENV)/.project  ## Forecast two airlines untrained and trained, write demo_output/report.html (a minute)
	$(BIN)/python $(call script,demo)

demo-ieeg: $(VENV)/.project  ## Pretrain the tiny MVPFormer on simulated recordings, write weights, losses and similarities
	rm -rf demo_ieeg_output
	$(BIN)/mvpformer pretrain --config tiny --output demo_ieeg_output

demo-detect: $(VENV)/.project  ## Pretrain, finetune and detect seizures on simulated subjects, beside a line-length threshold
	$(BIN)/python $(call script,demo_detect)

test:  ## Lint, types, tests, and a quick run of every script (14 minutes on two idle cores)
	@+MAKE="$(MAKE)" bash .ci/steps install lint types unit smoke

test-all:  ## All that `make test` does, and the slow tests: full products and long runs
	@+MAKE="$(MAKE)" bash .ci/steps install lint types unit slow smoke

# A machine with a GPU has its own torch: no environment is made.
gpu:  ## Check and time the Triton kernels on this machine's GPU, under 10 minutes (torch, triton, numpy, einops)
	PYTHONPATH=. $(PYTHON) $(call script,attention_gpu)

# Start it again until no run is left. Peers run where neuralforecast is installed, otherwise they are named as missing.
gpu-forecasting:  ## Train the forecasting models on this machine's GPU, 9 minutes a call (torch, pandas, einops)
	MVPA_TS_DATA=$(or $(MVPA_TS_DATA),.cache/data) PYTHONPATH=. $(PYTHON) $(call script,forecasting) --device cuda --minutes 9 --datasets Weather ETTh1 ETTh2 \
		--models MVPA $(GPU_PEERS) "Linear + cycle" "MVPA content-only" "MVPA time-only" "MVPA channel-only" \
		"MVPA none" --seeds 1 2 3 --table experiments/results/forecasting/forecasting_gpu.csv $(GPU_FORECASTING)

gpu-data: $(VENV)/.project  ## Copy the data sets of gpu-forecasting into .cache/data, to take along to a machine without network
	$(BIN)/python -c "import pathlib, shutil; from mvpa_ts.datasets.forecasting import dataset_path; \
		paths = [dataset_path(name) for name in ('Weather', 'ETTh1', 'ETTh2')]; \
		copies = [pathlib.Path('.cache/data', *path.parts[-2:]) for path in paths]; \
		[copy.parent.mkdir(parents=True, exist_ok=True) for copy in copies]; \
		[shutil.copy(path, copy) for path, copy in zip(paths, copies)]"

numbers: $(VENV)/.project  ## Trace the numbers of README and results to committed rows
	$(BIN)/python $(call script,readme) --quick

fuzz: $(VENV)/.project  ## Read 1000 mutated files of each format within limits of memory and time (an hour)
	$(BIN)/python tests/fuzz/run.py

faults: $(VENV)/.project  ## Kill tasks 200 times, fill their disk, and look what they lose (20 minutes)
	MVPA_TS_KILLS=40 $(BIN)/pytest -m slow tests/faults

lint: $(VENV)/.dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# From build/, so that the installed wheel is checked and not the folder: only there is mvpa_ts.adapters in place.
types: $(VENV)/.project
	cd build && $(BIN)/mypy --config-file ../pyproject.toml -p mvpa_ts

# The pytest command, not `python -m pytest`, which would put the source folder before the installed wheel. For the same
# reason tests that start a Python give it -P.
unit: $(VENV)/.project
	MVPA_TS_TEST_WHEEL=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --durations 30 --durations-min 5 $(COVERAGE)

slow: $(VENV)/.project
	$(BIN)/pytest -m slow --numprocesses 2 --dist loadfile

coverage: COVERAGE = --cov --cov-report=term:skip-covered
coverage: unit  ## The tests, and which lines they miss (slower)

# Without a data folder the quick runs read made-up sets, so that they need no network.
smoke: $(VENV)/.project $(if $(MVPA_TS_DATA),,build/data)
	MVPA_TS_DATA=$(or $(MVPA_TS_DATA),build/data) $(BIN)/python tests/support/quick_runs.py $(SCRIPTS)

build/data: $(VENV)/.project
	$(BIN)/python tests/support/made_up_data.py $@

install-docs: $(VENV)/.sphinx

docs: $(VENV)/.sphinx $(VENV)/.project  ## Build the pages, the reference and the gallery as a site in build/site
	$(BIN)/sphinx-build -q -W --keep-going -j 2 -b html docs build/site

format: $(VENV)/.dependencies  ## Fix what ruff can fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## Remove everything that was built or written, .venv included
	rm -rf $(VENV) build dist *.egg-info *_output lightning_logs .coverage .*_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch first: its build tools (setuptools) then build the project without another download.
$(VENV)/.dependencies: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) --version 2>&1):" \
		"name another one, as in 'make test PYTHON=python3.12'" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV) || \
		{ echo "$(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation '.[dev]'
	@$(BIN)/pip install --quiet -c constraints.txt --no-deps $(BRAINDECODE) || \
		echo "braindecode could not be installed: the test that compares its MVPFormer with ours is skipped" >&2
	@touch $@

$(VENV)/.sphinx: $(VENV)/.dependencies
	$(BIN)/pip install --quiet -c constraints.txt --no-build-isolation '.[docs]'
	@touch $@

# The project itself is installed as its users get it, from a wheel; rebuilt when a source file changes.
$(VENV)/.project: $(VENV)/.dependencies $(SOURCES) setup.py
	@rm -rf build
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(BIN)/pip install --quiet --no-deps --force-reinstall build/wheel/*.whl
	@touch $@
