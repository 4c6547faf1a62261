#!/usr/bin/env bash
# Masks, scores, intervals and attention as narrower CPUs compute them: their tests again under PACELINE_ISA, with fewer cases.
#
# On a CPU with AVX-512 nothing else reaches the other forms of the expressions' and intervals' loops, and attention on them. Prints
# 'ok NAME', 'not ok NAME' or 'skip NAME'.
set -u
build=$(dirname "${PACELINE_PROGRAM:-build/paceline}")
log=$(mktemp)
trap 'rm -f "$log"' EXIT

again() { # form, program, its argument
    local name=$1_${2#*/test_}
    if PACELINE_ISA=$1 "$build/tests/$2" ${3:+"$3"} >"$log" 2>&1; then echo "ok $name"; else echo "not ok $name"; cat "$log"; fi
}
for form in portable avx2; do
    if [ $form = avx2 ] && ! { grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; }; then
        echo "skip avx2"
        continue
    fi
    again $form expr/test_expr_meaning
    again $form expr/test_expr_random
    again $form expr/test_expr_score
    again $form expr/test_interval
    again $form flex/test_flex_blockmask_random 500
    again $form flex/test_gallery
    again $form flex/test_gallery_shapes
done
