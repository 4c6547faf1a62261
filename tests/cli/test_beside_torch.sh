#!/usr/bin/env bash
# bench/beside_torch.sh with both sides played: what its table says of numbers that are there, and of ones that are not.
#
# Prints 'ok NAME' or 'not ok NAME'. Nothing is measured.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp bench/beside_torch.sh "$dir/"

cat >"$dir/bench_flex" <<'SH'
#!/bin/sh
[ "$2" = baseline ] || exit 2
[ "$PACELINE_ISA" = avx512bf16 ] && [ -e "$(dirname "$0")/no_pairs" ] && exit 1
echo 'gemm_f32 60.6 GFLOP/s (plain C, avx512, 2 threads)'
echo 'fp32 causal      64   8/8   2048 x 2048      2.000     51.5     85%    10.000'
echo 'fp32 window      64   8/8   4096 x 4096      2.000     47.4     78%     8.000'
[ -e "$(dirname "$0")/no_pairs" ] || echo 'bf16 forward: AMX, bf16 pairs with fp32 sums'
echo 'bf16 causal      64   8/8   2048 x 2048      1.000     96.9    160%     9.000'
SH
cat >"$dir/python" <<'SH'
#!/bin/sh
[ "$1" = -c ] && echo 'PyTorch 2.11.0' && exit 0
echo 'threads 2 sgemm GFLOP/s 60.0'
echo 'torch.float32 causal 2048: flex fwd 6.00 ms (1 GFLOP/s visible); sdpa+mask fwd 7.00, fwd+bwd 40.00 ms'
echo 'flex failed no compiler here'
echo 'torch.float32 window 256 4096: flex fwd nan ms (nan GFLOP/s visible); sdpa+mask fwd 7.00, fwd+bwd 16.00 ms'
echo 'torch.float32 dflash 64x16 ctx 1024: flex fwd 5.00 ms (1 GFLOP/s visible); sdpa+mask fwd 7.00, fwd+bwd 16.00 ms'
echo 'torch.bfloat16 causal 2048: flex fwd 0.50 ms (1 GFLOP/s visible); sdpa+mask fwd 7.00'
SH
chmod +x "$dir/bench_flex" "$dir/python"

check() { # name, then lines that the output must hold, blanks counted as one
    local name=$1 line bad=
    shift
    tr -s ' ' <"$dir/said" >"$dir/squeezed"
    for line; do grep -qxF -- "$line" "$dir/squeezed" || bad="$bad; no line '$line'"; done
    if [ "$rc" -eq 0 ] && [ -z "$bad" ]; then echo "ok $name"; else echo "not ok $name: code $rc$bad"; cat "$dir/said"; fi
}

"$dir/beside_torch.sh" run 2 "$dir/python" >"$dir/said" 2>&1
rc=$?
# The first causal line is forward's, the second that of both.
check numbers_and_gates \
    'fp32 causal 6.000 2.000 3.00 2.000 3.00 2.000 3.00 2.000 3.00 1.5 met' \
    'fp32 causal 40.000 10.000 4.00 10.000 4.00 10.000 4.00 10.000 4.00 1.5 met' \
    'bf16 causal 0.500 1.000 0.50 1.000 0.50 1.000 0.50 1.000 0.50 1.0 MISSED' \
    'fp32 window 16.000 8.000 2.00 8.000 2.00 8.000 2.00 8.000 2.00 3.0 MISSED' \
    'bf16 forward: AMX, bf16 pairs with fp32 sums' 'threads 2 sgemm GFLOP/s 60.0'
check missing_numbers_are_told 'flex failed no compiler here' \
    'fp32 window - 2.000 - 2.000 - 2.000 - 2.000 - 1.5 not measured' \
    'fp32 dflash 5.000 - - - - - - - - 1.5 not measured' \
    'bf16 causal - 9.000 - 9.000 - 9.000 - 9.000 - 1.5 not measured' \
    'bf16 dflash - - - - - - - - - 3.0 not measured'
touch "$dir/no_pairs"
"$dir/beside_torch.sh" run 2 "$dir/python" >"$dir/said" 2>&1
rc=$?
check a_missing_form_leaves_the_others 'bench_flex failed with PACELINE_ISA=avx512bf16' \
    'fp32 causal 6.000 2.000 3.00 2.000 3.00 - - 2.000 3.00 1.5 met'
