#!/usr/bin/env bash
# tools/gpu_check.sh counts right: with a stand-in for NVIDIA's compute-sanitizer and programs that pass, skip, fail, crash and hang.
#
# Prints 'ok NAME' or 'not ok NAME'. Neither a GPU nor the real tool is needed.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/bin" "$dir/build/tests/gpu"

# Takes the tool's options, runs the program, and tells what the real one does: errors when the program has printed BAD.
cat >"$dir/bin/compute-sanitizer" <<'END'
#!/usr/bin/env bash
[ -z "${TOO_NEW:-}" ] || { echo '========= Error: Device not supported. Please refer to the documentation'; exit 1; }
word=ERROR
while [[ $1 == --* ]]; do
    [ "$2" != racecheck ] || word=RACECHECK
    [ "$1" != --error-exitcode ] || code=$2
    shift 2
done
out=$("$@")
rc=$?
echo "$out"
[ $rc -lt 128 ] || exit $rc # its process is gone: no summary
if [[ $out == *BAD* ]]; then echo "========= $word SUMMARY: 1 error"; exit "$code"; fi
echo "========= $word SUMMARY: 0 errors"
exit $rc
END
chmod +x "$dir/bin/compute-sanitizer"

program() { # NAME LINES...: a test program that prints them; a line 'do X' is run instead
    local f=$dir/build/tests/gpu/$1
    shift
    { echo '#!/usr/bin/env bash'; for line; do case $line in 'do '*) echo "${line#do }" ;; *) printf 'echo %q\n' "$line" ;; esac; done; } >"$f"
    chmod +x "$f"
}
passes=('[==========] Running 2 test(s).' '[       OK ] a' '[  SKIPPED ] b' '[==========] 2 test(s) run.' '[  PASSED  ] 1 test(s).')
skips=('skipped: there is no GPU' '[  SKIPPED ] a' '[==========] 1 test(s) run.' '[  PASSED  ] 0 test(s).' '[  SKIPPED ] 1 test(s), listed below:')
all_pass() { for n in test_attention test_blockmask test_expr_device test_paged_cuda; do program $n "${passes[@]}"; done; }

check() { # NAME CODE LAST_LINE PART [VARIABLE=VALUE...]: the run on memcheck and racecheck ends so, and a line of it holds PART
    local name=$1 want=$2 last=$3 part=$4 limit out rc
    shift 4
    for limit in ${LIMITS:-600}; do # the shortest that does
        out=$(env "$@" PATH="$dir/bin:$PATH" CHECK_TIMEOUT="$limit" bash tools/gpu_check.sh "$dir/build" memcheck racecheck 2>&1)
        rc=$?
        if [ $rc -eq "$want" ] && [ "$(tail -n 1 <<<"$out")" = "$last" ] && grep -qF -- "$part" <<<"$out"; then
            echo "ok $name"
            return
        fi
    done
    echo "not ok $name"
    echo "code $rc: $out"
}

all_pass
check sound_programs_pass 0 '8 passed, 0 failed, 0 skipped' 'RACECHECK SUMMARY: 0 errors'
check a_device_that_is_not_supported_is_skipped 0 '0 passed, 0 failed, 8 skipped' 'lets no such tool' TOO_NEW=1
program test_blockmask "${skips[@]}"
check where_nothing_ran_it_is_skipped 0 '6 passed, 0 failed, 2 skipped' 'skipped: there is no GPU'
program test_blockmask '[  SKIPPED ] a' 'do kill -SEGV $$'
check a_crash_behind_a_skipped_test_fails 1 '6 passed, 2 failed, 0 skipped' 'exit code 139'
program test_blockmask '[  SKIPPED ] a' 'do exit 0'
check an_early_end_fails 1 '6 passed, 2 failed, 0 skipped' 'FAIL memcheck  test_blockmask'
program test_blockmask BAD "${passes[@]}"
check what_the_tool_finds_fails 1 '6 passed, 2 failed, 0 skipped' 'exit code 9 ERROR SUMMARY: 1 error'
program test_blockmask '[  FAILED  ] a' '[==========] 1 test(s) run.' '[  PASSED  ] 0 test(s).' '[  FAILED  ] 1 test(s), listed below:' 'do exit 1'
check a_failing_test_fails 1 '6 passed, 2 failed, 0 skipped' 'exit code 1'
program test_blockmask '[  SKIPPED ] a' 'do exec sleep 600'
# The others may need more than the shortest on a machine that is busy.
LIMITS='2 10 60' check a_hang_fails 1 '6 passed, 2 failed, 0 skipped' 's or killed'
rm "$dir/build/tests/gpu/test_blockmask"
check a_program_that_is_not_there_fails 1 '6 passed, 2 failed, 0 skipped' 'FAIL memcheck  test_blockmask'
all_pass
if [ ! -e /usr/local/cuda/bin/compute-sanitizer ]; then
    rm "$dir/bin/compute-sanitizer"
    command -v compute-sanitizer >/dev/null || check without_the_tool_it_is_skipped 0 '0 passed, 0 failed, 1 skipped' 'not installed'
fi
