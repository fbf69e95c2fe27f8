#!/bin/sh
# The wheel and the source archive: built, compared with the repository, and tried from other folders: on the lowest Python with
# the lowest packages, and on the Pythons that are named with the newest packages, as far as they are to be had here.
# Usage: sh tests/wheel.sh [3.12 …], with uv and twine on the path
set -eu
cd "$(dirname "$0")/.."
lowest=$PWD/tests/lowest.txt

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
uv build --quiet # makes the wheel of the source archive
twine check --strict dist/*
wheel=$(echo "$PWD"/dist/*.whl)
tar -xzf dist/*.tar.gz -C "$work"
archive=$(echo "$work"/scrapyd_dist-*)
git ls-files | sort >"$work/expected"
(cd "$archive" && find . -type f | cut -c 3- | grep -Ev '^(PKG-INFO|setup.cfg|[^/]*\.egg-info/.*)$' | sort) >"$work/found"
diff "$work/expected" "$work/found" || { echo "MANIFEST.in does not name the files of the repository (<)." >&2; exit 1; }
uvx --quiet --from "$wheel" scrapyd-dist --version

# The path of Python $1: of this machine, of pyenv, or of uv.
interpreter() {
    for python in "$(command -v "python$1" || true)" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$python" -c '' 2>/dev/null; then echo "$python"; return; fi
    done
    uv python install --quiet "$1" 2>/dev/null && uv python find "$1"
}

# An environment of $python at $1 with packages: the further arguments of `uv pip install`.
environment() {
    uv venv --quiet --clear --seed --python "$python" "$1"
    uv pip install --quiet --python "$@"
}

# Tests of the archive, with the wheel on $python. The command pytest, unlike `python -m pytest`, leaves the archive's packages off the path.
tests() {
    (cd "$archive/tests" && SDIST_NODE_PYTHON=$work/nodes/bin/python "$work/env/bin/pytest" --quiet -n 2 --dist loadfile "$@")
}

# The wheel on $python: a crawl from an empty folder, and a crawl in push and in pull. The arguments are those of `uv pip install`.
try() {
    "$python" --version
    environment "$work/env" --group "$archive/pyproject.toml:test" "$wheel[local]" "$@"
    environment "$work/nodes" scrapy scrapyd twisted 'setuptools<81' "$@"
    (cd "$(mktemp -d -p "$work")" && "$work/env/bin/scrapyd-dist" demo --items 300 --nodes 2)
    tests acceptance/test_settings_only.py::test_one_line_and_targets_in_scrapy_cfg \
        acceptance/test_pull.py::test_a_pulled_crawl_has_every_item_once_and_leaves_nothing_running
}

python=$(interpreter 3.10 || interpreter 3)
try --constraint "$lowest"
for version in "$@"; do
    python=$(interpreter "$version" || true)
    if [ -n "$python" ]; then try; else echo "Python $version is not to be had here." >&2; fi
done
