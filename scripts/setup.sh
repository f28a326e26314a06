#!/usr/bin/env bash
# Sets the project up: a virtual environment, the pinned dependencies, the project itself (editable), Stockfish and pgn-extract.
# Usage: scripts/setup.sh VENV STAMP, from the repository's root (the Makefile does it). PYTHON chooses the interpreter.
# Everything may be run again: what is there already is kept.
set -eu

venv=$1
stamp=$2
# Two packages come as source: older pips warn at length unless they are told to build them in the standard way.
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_USE_PEP517=1

phase() { printf 'set-up [%3d s] %s\n' "$SECONDS" "$*"; }
warn() { printf 'set-up warning: %s\n' "$*" >&2; }
fail() { printf 'set-up error: %s\n' "$*" >&2; exit 1; }

# ---- Python ----------------------------------------------------------------------------------------------------------------------

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    is_recent "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.11 or later; give the path of one that is"
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if is_recent "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.11 or later is needed; python3 here is $(python3 --version 2>/dev/null || echo missing)." \
    "Install one (Debian/Ubuntu: python3.11 python3.11-venv; Fedora: python3.12; Arch: python; macOS: brew install python)" \
    "or name one: make demo PYTHON=/path/to/python3.11"
}

make_environment() {
  # An environment left half made by an interrupted call has a python but no pip: it is made anew.
  if is_recent "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    phase "$venv is there ($("$venv/bin/python" --version))"
    return
  fi
  local python version
  python=$(find_python)
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
    fail "Python $version has no venv module. Install it (Debian/Ubuntu: apt install python$version-venv), then run the same command again"
  phase "making $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
}

install_python_packages() {
  phase "installing the pinned Python packages (requirements.txt)"
  command -v nvidia-smi >/dev/null 2>&1 ||
    phase "  no NVIDIA GPU found: torch's CPU build is far smaller than the default one; README, 'Smaller install', says how to get it"
  "$venv/bin/python" -m pip install -q -r requirements.txt ||
    fail "pip could not install requirements.txt (its message is above). Check the network and the free disk space, then run the same command again"
  phase "installing the project itself (editable)"
  # The build tool is pinned in requirements.txt too: no second, unpinned copy is fetched.
  "$venv/bin/python" -m pip install -q --no-deps --no-build-isolation --editable . || fail "pip could not install the project (its message is above)"
}

# ---- programs of the system --------------------------------------------------------------------------------------------------------

# Debian installs games to /usr/games, which is not on root's PATH.
has_program() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/games/$1" ]; }

apt_get() {
  if [ "$(id -u)" = 0 ]; then
    apt-get "$@" </dev/null
  else
    sudo -n apt-get "$@" </dev/null
  fi
}

# Never asks for a password: without root and without a password-free sudo the user is told what to install.
try_install() {
  command -v apt-get >/dev/null 2>&1 || return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1 || return 0
  phase "installing $1 (apt-get)"
  local log
  log=$(mktemp)
  if ! apt_get install -y --no-install-recommends "$1" >"$log" 2>&1; then
    # The package lists of a fresh machine or container are empty or old.
    { apt_get update && apt_get install -y --no-install-recommends "$1"; } >"$log" 2>&1 || warn "apt-get could not install $1: $(tail -n 1 "$log")"
  fi
  rm -f "$log"
}

install_programs() {
  for program in stockfish pgn-extract; do
    has_program "$program" || try_install "$program"
  done
  has_program pgn-extract ||
    warn "pgn-extract is missing; PGN files are read by python-chess instead, about 20 times slower." \
      "To install it: Debian/Ubuntu: sudo apt install pgn-extract; Fedora: sudo dnf install pgn-extract; Arch: pgn-extract from the AUR; macOS: brew install pgn-extract"
  has_program stockfish ||
    fail "Stockfish is missing and could not be installed." \
      "Install it (Debian/Ubuntu: sudo apt install stockfish; Fedora: sudo dnf install stockfish; Arch: stockfish from the AUR; macOS: brew install stockfish) and run the same" \
      "command again; or, for a binary elsewhere, run: $venv/bin/python -m chessrl experiment=quickstart engine.path=/path/to/stockfish"
}

make_environment
install_python_packages
install_programs
touch "$stamp"
phase "complete"
