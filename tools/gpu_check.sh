#!/usr/bin/env bash
# Runs the tests of kernels on a real GPU under NVIDIA's compute-sanitizer, a reduced set of cases, and ends with 'N passed, N failed, N skipped'.
#
# Usage: tools/gpu_check.sh BUILD [TOOL...] . Tools: memcheck racecheck initcheck synccheck (default: all four). Programs run side by
# side, each for at most CHECK_TIMEOUT seconds (default 600). test_device and test_race are left out: the one makes a fault on
# purpose, the other runs in children of its own. Skipped where the tool is not installed or does not know the machine.
set -u
build=$1
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
limit=${CHECK_TIMEOUT:-600}
export PACELINE_PROGRAM=${PACELINE_PROGRAM:-$build/paceline}
logs=$build/test-logs
mkdir -p "$logs"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [ -z "$sanitizer" ]; then
    echo 'skip: compute-sanitizer is not installed (it comes with the CUDA toolkit)'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
names='test_attention test_blockmask test_expr_device test_paged_cuda'

one() { # TOOL NAME: a log, whose last line is the tool's exit code
    log=$logs/$1_$2.log
    timeout -k 5 "$limit" "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20 "$build/tests/gpu/$2" --few >"$log" 2>&1 </dev/null
    echo "exit code $?" >>"$log"
}
for tool; do
    for name in $names; do one "$tool" "$name" & done
done
wait
passed=0 failed=0 skipped=0
for tool; do
    for name in $names; do
        log=$logs/${tool}_$name.log
        code=$(tail -n 1 "$log") summary=$(grep -o '\(ERROR\|RACECHECK\) SUMMARY.*' "$log" | tail -n 1)
        if grep -q 'Device not supported' "$log"; then
            word=skip skipped=$((skipped + 1)) summary='this machine lets no such tool look at the device'
        elif ! grep -q '^\[  PASSED  \] [1-9]' "$log" && grep -q '^\[  SKIPPED \]' "$log"; then
            word=skip skipped=$((skipped + 1)) summary='no GPU that can be used'
        elif [ "$code" = 'exit code 0' ] && [ -n "$summary" ]; then
            word=ok passed=$((passed + 1))
        else
            word=FAIL failed=$((failed + 1)) summary="$code $summary"
        fi
        printf '%-4s %-9s %-18s %s\n' "$word" "$tool" "$name" "$summary"
        [ $word = FAIL ] && grep -v '^\[ *OK\|^\[ RUN' "$log" | tail -n 25
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
