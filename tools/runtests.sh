#!/usr/bin/env bash
# Runs test programs and scripts, one line each, and ends with 'N passed, N failed, N skipped'.
#
# Usage: tools/runtests.sh BUILD PROGRAM... . Counts come from cmocka's own closing lines; a script
# prints 'ok NAME', 'not ok NAME' or 'skip NAME' lines, or is one test by its exit code (77: skipped).
# A program that dies, times out, or ends without a closing line counts as one failure more. It goes
# on after failures, shows the output of what failed, and exits 1 when anything did.
# It does not judge how long a test took: the limit TEST_TIMEOUT (seconds, default 900) is for what hangs, many
# times what the slowest program takes on two cores.
set -u
build=$1
shift
limit=${TEST_TIMEOUT:-900}
# Programs under tests/gpu find the CUDA libraries of this folder first, where one is named.
emulated=${EMULATED:-}
logs=$build/test-logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0 bad=()

# Sum of the numbers N in lines '[  WORD  ] N test(s)' of a cmocka log.
count() { sed -n "s/^\[ *$1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$2" | awk '{ s += $1 } END { print s + 0 }'; }

for t in "$@"; do
    name=${t#"$build"/}
    name=${name#tests/}
    log=$logs/${name//\//_}.log
    start=$(date +%s)
    case $t in
    *.sh)
        timeout -k 5 "$limit" bash "$t" >"$log" 2>&1
        rc=$?
        p=$(grep -c '^ok ' "$log") f=$(grep -c '^not ok ' "$log") s=$(grep -c '^skip ' "$log")
        if [ $((p + f + s)) -eq 0 ]; then
            case $rc in 0) p=1 ;; 77) s=1 ;; esac
        fi
        [ $rc -eq 77 ] && rc=0
        ;;
    *)
        with=()
        [ -n "$emulated" ] && [ "${name%%/*}" = gpu ] && with=(env "LD_LIBRARY_PATH=$emulated${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
        ${with[@]+"${with[@]}"} timeout -k 5 "$limit" "$t" >"$log" 2>&1
        rc=$?
        p=$(count PASSED "$log") f=$(count FAILED "$log") s=$(count SKIPPED "$log")
        # cmocka leaves with the number of failures; without its closing line something ended early.
        if [ $rc -eq 0 ] && ! grep -q '^\[==========\] .*run\.' "$log"; then
            echo "no closing line: the program ended before its tests did" >>"$log"
            rc=1
        fi
        ;;
    esac
    note=
    if [ $rc -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
        case $rc in
        124 | 137) note=" (stopped after $limit s or killed)" ;;
        *) note=" (ended with code $rc)" ;;
        esac
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    word=ok
    [ "$f" -gt 0 ] && word=FAIL && bad+=("$log")
    printf '%-4s %-44s %4d passed %3d failed %3d skipped %4d s%s\n' \
        "$word" "$name" "$p" "$f" "$s" $(($(date +%s) - start)) "$note"
done

for log in ${bad[@]+"${bad[@]}"}; do
    echo "---- $log (last 60 lines)"
    tail -n 60 "$log"
done
[ $# -gt 0 ] || echo 'no test programs'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
