#!/bin/sh
# The tests of crawls and of the operating commands with the lowest versions that the README promises, for the producer and for the nodes.
# Usage: PYTHON=python3.10 sh tests/lowest.sh [arguments of pytest]
set -eu
cd "$(dirname "$0")/.."

folder=.venv-lowest
python=${PYTHON:-python3}
# The lowest Python, too, where this machine has it.
if python3.10 -c '' 2>/dev/null; then python=python3.10; fi

if [ ! -e "$folder/ready" ] || [ tests/lowest.txt -nt "$folder/ready" ] || [ pyproject.toml -nt "$folder/ready" ]; then
    "$python" -m venv --clear "$folder"
    "$folder/bin/python" -m pip install -q --disable-pip-version-check --upgrade pip
    "$folder/bin/python" -m pip install -q --disable-pip-version-check \
        --constraint tests/lowest.txt --group test --editable '.[local]'
    touch "$folder/ready"
fi

# The nodes get an environment of their own, with the versions of this one and without this project (tests/rig).
unset SDIST_NODE_PYTHON
if [ $# -eq 0 ]; then
    # test_rig.py and test_forks.py are about the tests' own tools, and what only newer Scrapys and Scrapyds do.
    set -- -n 3 --dist loadfile -m "not full" tests/contract --ignore tests/contract/test_rig.py --ignore tests/contract/test_forks.py \
        tests/acceptance/test_settings_only.py \
        tests/acceptance/test_book_ways.py tests/acceptance/test_fair.py \
        tests/acceptance/test_feed_urls.py tests/acceptance/test_requests_travel.py tests/acceptance/test_account.py \
        tests/acceptance/test_shards.py tests/acceptance/test_passed_on.py tests/acceptance/test_bad_input.py \
        tests/acceptance/test_cli_deploy.py tests/acceptance/test_cli_operate.py tests/acceptance/test_mixed_fleet.py \
        tests/acceptance/test_pull.py tests/acceptance/test_other_projects.py tests/acceptance/test_throttle.py \
        tests/acceptance/test_throttle_live.py tests/acceptance/test_throttle_nodes.py tests/acceptance/test_cli_throttle.py
fi
exec "$folder/bin/python" -m pytest "$@"
