# make demo       set up, then the whole pipeline on the embedded endgame world: games in, report out
# make test       set up, then every test but those marked `long`
# make test-long  set up, then every test
# make lint       set up, then ruff
# make bench      set up, then how fast the hot paths are, beside other libraries where PEER_PYTHON has them
# make docs       set up, then the pages of docs/ as a site in site/, with dead links as errors
# make setup      set up alone. PYTHON=/path/to/python chooses the interpreter of a new environment

VENV := .venv
# Written last by the script: set-up work is done again only when one of these three files changes.
STAMP := $(VENV)/.setup-complete

.PHONY: setup demo test test-long lint bench docs

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" bash scripts/setup.sh "$(VENV)" "$(STAMP)"

demo: $(STAMP)
	$(VENV)/bin/python -m chessrl experiment=quickstart

test: $(STAMP)
	$(VENV)/bin/python -m pytest -m "not long"

test-long: $(STAMP)
	$(VENV)/bin/python -m pytest

lint: $(STAMP)
	$(VENV)/bin/python -m ruff check .

# An interpreter that has transformers and trl; without them the peers are left out, each with a line.
PEER_PYTHON := $(VENV)/bin/python

bench: $(STAMP)
	$(VENV)/bin/python -m benchmarks peer_python=$(PEER_PYTHON)

docs: $(STAMP)
	$(VENV)/bin/python -m pip install --quiet 'zensical>=0.0.73'
	$(VENV)/bin/python -m chessrl.reference out=docs/configuration.md
	$(VENV)/bin/zensical build --strict --clean
