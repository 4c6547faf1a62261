#!/usr/bin/env bash
# Runs test programs and scripts, one line each, and ends with 'N passed, N failed, N skipped'.
#
# Usage: tools/runtests.sh BUILD PROGRAM... . Counts come from cmocka's own closing lines; a script
# prints 'ok NAME', 'not ok NAME' or 'skip NAME' lines, or is one test by its exit code (77: skipped).
# A program that dies, times out, or ends without a closing line counts as one failure more. It goes
# on after failures, shows of what failed first the lines that say so (assertions, the first word of a sanitizer, the
# seeds of that test) and then the log's end, and exits 1 when anything did. PACELINE_TEST_SEED=N gives a seed again.
# It does not judge how long a test took: the limit TEST_TIMEOUT (seconds, default 900) is for what hangs, many
# times what the slowest program takes on two cores.
set -u
build=$1
shift
limit=${TEST_TIMEOUT:-900}
# Programs under tests/gpu find the CUDA libraries of this folder first, where one is named.
emulated=${EMULATED:-}
# Switches of whoever calls this that would change what programs say or keep.
unset PACELINE_LOG PACELINE_CACHE PACELINE_NO_COMPILE PACELINE_REFERENCE PACELINE_FAIL_WRITE PACELINE_KILL_AT
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
        timeout -k 5 "$limit" bash "$t" </dev/null >"$log" 2>&1
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
        ${with[@]+"${with[@]}"} timeout -k 5 "$limit" "$t" </dev/null >"$log" 2>&1
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

# The lines of a log that tell a failure, each with some before and behind it: under a sanitizer the end of the log may hold
# nothing but what follows from it. Of a test that did not end: its name.
telling() {
    awk '
        function mark(from, to) { for (; from <= to; from++) if (from > 0) shown[from] = 1 }
        function mark_test(k) { if (run) shown[run] = 1; for (k in seeds) shown[k] = 1 }
        { line[NR] = length($0) > 500 ? substr($0, 1, 500) " ..." : $0 }
        /^\[ RUN/ { run = NR; for (k in seeds) if (first && k > first) delete seeds[k]; if (!first) first = NR }
        /^\[  FAILED  \] [A-Za-z_]/ && !/ test\(s\)/ && !ended { mark_test(); mark(NR - 4, NR) }
        /^\[ +(OK|FAILED|SKIPPED) +\] [A-Za-z_]/ { run = 0 }
        /^\[==========\] .* run/ { ended = 1 }
        /^seed [0-9]/ { seeds[NR] = 1 }
        /^\[  ERROR   \] --- / { mark_test(); mark(NR - 3, NR + 6) }
        /^\[   LINE   \] --- / { mark(NR - 2, NR + 1) }
        /^not ok / { mark(NR - 1, NR + 12) }
        /ERROR: [A-Za-z]+Sanitizer|WARNING: ThreadSanitizer|: runtime error: / && !told++ { mark_test(); mark(NR - 3, NR + 14) }
        /^emulated device: .*seed|^test set-up failed|^no closing line|: Assertion |^PACELINE_TEST_SEED / && !(line[NR] in once) { once[line[NR]] = 1; mark_test(); mark(NR - 2, NR + 1) }
        END {
            if (run) mark_test()
            for (i = 1; i <= NR && n < 60; i++) {
                if (!(i in shown)) continue
                if (last && i > last + 1) print "    ..."
                print line[i]
                last = i
                n++
            }
        }' "$1"
}
for log in ${bad[@]+"${bad[@]}"}; do
    echo "---- $log: what failed"
    telling "$log"
    echo "---- $log: its last 20 lines"
    tail -n 20 "$log"
done
[ $# -gt 0 ] || echo 'no test programs'
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
