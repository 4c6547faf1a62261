#!/usr/bin/env bash
# Runs each fuzz program in BUILD/fuzz for a bounded time from its small corpus fuzz/corpus/NAME.
#
# Usage: tools/runfuzz.sh BUILD. FUZZ_RUNS and FUZZ_SECONDS bound each program. New inputs go to the
# build folder, never into the committed corpus; a crash stops with the input's path.
set -eu
build=$1
for p in "$build"/fuzz/*; do
    [ -x "$p" ] && [ -f "$p" ] || continue
    name=$(basename "$p")
    work=$build/corpus/$name
    mkdir -p "$work"
    seeds=fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    log=$build/$name.log
    if ! "$p" -runs="${FUZZ_RUNS:-20000}" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=60 \
        -rss_limit_mb=2048 -artifact_prefix="$build/crash-$name-" "$work" $seeds >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "fuzz $name: failed; the input is beside $build/crash-$name-*"
        exit 1
    fi
    echo "fuzz $name: $(grep -o 'Done .*' "$log" || echo finished)"
done
