#!/usr/bin/env bash
# Runs the tests of kernels on a real GPU under NVIDIA's compute-sanitizer, a reduced set of cases, and ends with 'N passed, N failed, N skipped'.
#
# Usage: tools/gpu_check.sh BUILD [TOOL...] . Tools: memcheck racecheck initcheck synccheck (default: all four). Programs run side by
# side, each for at most CHECK_TIMEOUT seconds (default 600). test_device and test_race are left out: the one makes a fault on
# purpose, the other runs in children of its own. Skipped where the tool is not installed or does not know the machine, and
# where a program came to its end and no test of it ran. What crashes, hangs or ends early failed, whatever it skipped before.
set -u
[ $# -gt 0 ] || {
    sed -n '4,7s/^# \{0,1\}//p' "$0"
    exit 2
}
build=$1
shift
[ $# -gt 0 ] || set -- memcheck racecheck initcheck synccheck
limit=${CHECK_TIMEOUT:-600}
export PACELINE_PROGRAM=${PACELINE_PROGRAM:-$build/paceline}
# Switches of whoever calls this that would change what programs do.
unset PACELINE_LOG PACELINE_CACHE PACELINE_NO_COMPILE PACELINE_REFERENCE PACELINE_FAIL_WRITE PACELINE_KILL_AT
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

count() { sed -n "s/^\[ *$1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$2" | awk '{ s += $1 } END { print s + 0 }'; } # of a cmocka log
for tool; do
    for name in $names; do
        log=$logs/${tool}_$name.log
        code=$(tail -n 1 "$log") summary=$(grep -o '\(ERROR\|RACECHECK\) SUMMARY.*' "$log" | tail -n 1)
        ended=$(grep -c '^\[==========\] .*run\.' "$log") ran=$(($(count PASSED "$log") + $(count FAILED "$log")))
        if grep -q '^=========.*Device not supported' "$log"; then
            word=skip skipped=$((skipped + 1)) summary='this machine lets no such tool look at the device'
        elif [ "$ended" -gt 0 ] && [ "$ran" -eq 0 ]; then
            word=skip skipped=$((skipped + 1)) summary=$(grep -m 1 '^skipped: ' "$log")
        elif [ "$code" = 'exit code 0' ] && [ "$ended" -gt 0 ] && [ -n "$summary" ]; then
            word=ok passed=$((passed + 1))
        else
            word=FAIL failed=$((failed + 1))
            case $code in 'exit code 124' | 'exit code 137') summary="stopped after $limit s or killed" ;; *) summary="$code $summary" ;; esac
        fi
        printf '%-4s %-9s %-18s %s\n' "$word" "$tool" "$name" "$summary"
        [ $word = FAIL ] && grep -v '^\[ *OK\|^\[ RUN' "$log" | tail -n 25
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
