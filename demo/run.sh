#!/usr/bin/env bash
# The whole road on a small real model: answers by the target, a drafter trained on them, held-out prompts decoded both ways.
#
# `make demo` calls it with PACELINE_PROGRAM set. LONG=1 gives it about an hour: more and longer answers, more training. Everything it
# makes lies in runs/demo (or runs/demo-long); it goes on where an interrupted run stopped. Remove that folder to begin anew.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${PACELINE_PROGRAM:-build/paceline}
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
if [ -n "${LONG:-}" ]; then
    run=runs/demo-long prompts=600 answer=192
    settings=(run.epochs=4)
else
    run=runs/demo prompts=300 answer=128 settings=()
fi
mkdir -p "$run"
start=$(date +%s)

say() { printf '\n[%d s] %s\n' $(($(date +%s) - start)) "$*"; }

say "answers of the target to $prompts training prompts, up to $answer tokens each"
"$program" regenerate --target "$model" --prompts demo/prompts.jsonl --where split=train --limit "$prompts" --max-new "$answer" \
    --out "$run/answers.jsonl"

say "training a drafter on them"
"$program" train recipes/smollm2.yaml data.path="$run/answers.jsonl" run.out="$run/drafter" ${settings[@]+"${settings[@]}"}

say "decoding the 40 held-out prompts plainly and with the drafter"
"$program" bench --target "$model" --drafter "$run/drafter/drafter" --prompts demo/prompts.jsonl --where split=heldout --max-new 100 \
    --check --bigram "$run/answers.jsonl" --json "$run/bench.json"
say "done; the figures are in $run/bench.json"
