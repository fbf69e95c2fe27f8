#!/bin/sh
# The programs that the tests need beside Python: a Redis server, a browser for the report, shells for completion, a shifted clock.
# As root on Debian they are installed; elsewhere the missing ones are named, and the tests do not begin.
set -eu

missing=
for pair in redis-server:redis-server chromium:chromium faketime:faketime zsh:zsh fish:fish; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair##*:}"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing$missing …"
    apt-get update -qq
    # Debian would start a Redis of its own; the tests start theirs.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    # Debian has Valkey since version 13; where it is, the contract of the Redis store runs on it as well.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valkey-server >/dev/null 2>&1 || true
    exit 0
fi
echo "The tests need these programs, which are not here:$missing. On Debian or Ubuntu: sudo apt install$missing" >&2
exit 2
