#!/usr/bin/env bash
# Memory as seen from outside: a long attention problem under an address-space limit, and a training run under a malloc interposer.
#
# Prints 'ok NAME', 'not ok NAME' or 'skip NAME'. Sanitizer builds reserve address space of their own: skipped there.
set -u
program=${PACELINE_PROGRAM:-build/paceline}
build=$(dirname "$program")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
if nm -D "$program" 2>/dev/null | grep -qE '__(asan|tsan)_init'; then
    echo 'skip attention_of_32768_by_71049_runs_under_4_gb'
    echo 'skip training_stays_within_the_allowance_of_plan'
    exit 0
fi

check() { # name, then a command that must succeed
    local name=$1
    shift
    if "$@" >"$dir/log" 2>&1; then echo "ok $name"; else echo "not ok $name"; cat "$dir/log"; fi
}

# 2,048 draft blocks of 16 over 38,281 context keys; a dense score matrix of one head would take 8.7 GiB. Each thread takes address
# space for a stack and a heap of its own, so their number is not the machine's.
long_attention() {
    (
        ulimit -v 4194304
        PACELINE_THREADS=4 "$program" attend --random 1,2,1,32768,71049,16 --let ctx=38281 --let bs=16 --explain \
            --mask 'let blk = q // bs; (kv < ctx && kv < 18 * blk + 100) || (kv >= ctx && (kv - ctx) // bs == blk)'
    ) >"$dir/attend" 2>&1 || { cat "$dir/attend"; return 1; }
    cat "$dir/attend"
    grep -q '^taken ' "$dir/attend" && grep -q '^dense .*17 GiB' "$dir/attend"
}
check attention_of_32768_by_71049_runs_under_4_gb long_attention

training() {
    "$build/tests/cli/make_tiny" "$dir/tiny.gguf" || return 1
    for i in 1 2 3 4 5 6; do
        echo "{\"prompt\": \"word $i\", \"response\": \"the and then $i $i $i the other one $i and so on to the end\"}"
    done >"$dir/answers.jsonl"
    cat >"$dir/recipe.yaml" <<'YAML'
target: {path: tiny.gguf}
data: {path: answers.jsonl, max_length: 256}
drafter: {layers: 2, block_size: 4}
run: {epochs: 4, tokens_per_step: 256, tokens_per_row: 256, out: run}
YAML
    "$program" plan "$dir/recipe.yaml" --json >"$dir/plan.json" || return 1
    COUNT_FILE=$dir/count LD_PRELOAD=$PWD/$build/tests/interpose/count.so "$program" train "$dir/recipe.yaml" --quiet || return 1
    local peak total allowance
    peak=$(awk '/^peak/ { print $2 }' "$dir/count")
    total=$(sed -n 's/.*"total_bytes": \([0-9]*\).*/\1/p' "$dir/plan.json")
    allowance=$(sed -n 's/.*"allowance": \([0-9]*\).*/\1/p' "$dir/plan.json")
    echo "peak $peak, arenas $total, allowance $allowance"
    [ "$peak" -gt $((total / 4)) ] && [ "$peak" -le $((total + allowance)) ]
}
check training_stays_within_the_allowance_of_plan training
