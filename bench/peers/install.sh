#!/bin/sh
# Installs from Debian what run.py compares shoal with, and nothing that is there already.
# usage: bench/peers/install.sh
set -eu

packages="gcc libc6-dev openmpi-bin libopenmpi-dev mpich libmpich-dev python3-numpy python3-torch"

missing=""
for package in $packages; do
	if ! dpkg-query -W -f '${Status}' "$package" 2>/dev/null |
		grep -q '^install ok installed$'; then
		missing="$missing $package"
	fi
done
if [ -z "$missing" ]; then
	exit 0
fi

if ! command -v apt-get >/dev/null; then
	echo "install.sh: no apt-get on this machine; install by hand:$missing" >&2
	exit 1
fi
root=""
if [ "$(id -u)" -ne 0 ]; then
	root="sudo"
fi
echo "install.sh: installing$missing"
$root apt-get -q update
# shellcheck disable=SC2086 # a list of words
$root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing
