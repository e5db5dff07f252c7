# make demo   train a digit classifier on two processes
# make test   every test; TensorFlow, Keras, JAX and MXNet in environments of their own (tests/environments)
# make test-quick   what one runs all day: no whole programs, no frameworks but PyTorch; under 5 minutes
# make system-packages   install what tests of hosts, of Slurm and of the page need (Debian, as root)
# make check  style, types, spelling, room order, limits on size, and the documentation site: a minute
# make docs   build the documentation site and open it
# make pictures   draw the pictures of the documentation from stored measurements
# make bench  the speed table of the README (BENCH="allreduce --np 2")
# All of it happens in .venv, which is set up once per content of pyproject.toml and constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BENCH ?=

bin := $(VENV)/bin
inputs := $(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
python := $(VENV)/.python
install = echo "Installing farandole[$(1)] into $(VENV) (once; torch is a large download) ..." && \
	$(bin)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(1)]'

# Strict: a warning is an error.
site = $(bin)/sphinx-build -q -n -W --keep-going -b html docs docs/_build

# Tests start thousands of processes. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each would compile
# our files for itself: a third of the time of tests that start jobs.
compile = $(bin)/python -m compileall -q src compat/src compat-azureml/src tests

.PHONY: demo test test-quick check docs pictures bench clean

demo: $(VENV)/.demo-$(inputs)
	$(bin)/farandole run -np 2 --track $(bin)/python examples/torch_digits.py

test: $(VENV)/.dev-$(inputs)
	@$(compile)
	$(bin)/python -m tests.environments

test-quick: $(VENV)/.dev-$(inputs)
	@$(compile)
	$(bin)/python -m pytest -m 'not slow'

# Hosts are network namespaces, each with its own sshd; a cluster of Slurm has two nodes on this machine. Chromium
# shows the page.
debian := openssh-server iproute2 slurm-wlm munge chromium

system-packages:
	@dpkg-query --show $(debian) >/dev/null 2>&1 || { apt-get -qq update && \
	DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $(debian); }

check: $(VENV)/.dev-$(inputs)
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/codespell src compat/src compat-azureml/src tests docs examples benchmarks README.md CONTRIBUTING.md CHANGELOG.md
	$(bin)/python -m pytest tests/test_architecture.py tests/test_structure.py tests/test_language.py
	$(site)

docs: $(VENV)/.dev-$(inputs)
	$(site)
	$(bin)/python -m webbrowser -t "file://$(CURDIR)/docs/_build/index.html"

pictures: $(VENV)/.dev-$(inputs)
	$(bin)/python -m benchmarks.pictures

bench: $(VENV)/.dev-$(inputs)
	$(bin)/farandole bench $(BENCH)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(python):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Farandole needs Python 3.10 or newer; \
	this is " + sys.version.split()[0] + ". Choose another one with: make PYTHON=...")'
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.demo-$(inputs): | $(python)
	@$(call install,demo)
	@touch $@

$(VENV)/.dev-$(inputs): | $(python)
	@$(call install,dev)
	@touch $@ $(VENV)/.demo-$(inputs)
