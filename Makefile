# Every target sets up what it needs: `make demo` and `make test` work from a fresh clone.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$name; break; }; done)
BIN := .venv/bin
# The examples of a page follow one another, so a file stays with one worker.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo test check laws bench docs lock clean

.venv/ready: pyproject.toml requirements/lock.txt
	@test -n "$(PYTHON)" || { echo "missbgm needs Python 3.11 or newer on the PATH; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/lock.txt --editable . --group dev
	touch $@

demo: .venv/ready
	$(BIN)/python examples/demo.py

test: .venv/ready
	$(PYTEST)

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST)

laws: .venv/ready
	$(PYTEST) -m slow

bench: .venv/ready
	$(BIN)/python -m benchmarks.speed.measure

docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/lock.txt --group docs
	$(BIN)/mkdocs build --strict

lock: .venv/ready
	$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/python -m pip freeze --exclude-editable --exclude pip > requirements/lock.txt

clean:
	rm -rf .venv build dist site demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
