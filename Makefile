# make demo: install and train a small model on synthetic scenes. make test: lint, types, tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types unit browser soak docs audit install clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "CrOC needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/croc demo

test: lint types unit

lint: install
	$(BIN)/ruff check croc tests benchmarks examples docs/hooks.py hubconf.py
	$(BIN)/ruff format --check croc tests benchmarks examples docs/hooks.py hubconf.py

types: install
	$(BIN)/basedpyright

# Shapes are checked by jaxtyping's hook, which torch.compile cannot pass: hence two passes.
unit: install browser
	$(BIN)/pytest -n 2 --dist loadgroup -m "not compiled" --jaxtyping-packages=croc,beartype.beartype
	$(BIN)/pytest -n 2 -m compiled tests/kernels tests/method tests/train

# The pages are tested in a real browser; where there is none and Debian's can be had, take it.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium >/dev/null; }; } || \
		echo "no chromium: the tests of the pages will be skipped"

# Long tests of what a run survives; half an hour on two cores.
soak: install
	CROC_SOAK=1 $(BIN)/pytest tests/train
	$(BIN)/python -m tests.train.soak --to soak.json

# The documentation as a site, in build/site. The variable silences its maker's announcements.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Known vulnerabilities of what is pinned; asks PyPI. An environment of its own keeps ours as pinned.
audit:
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet pip-audit
	build/audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

clean:
	rm -rf $(VENV) build dist *.egg-info
