#!/usr/bin/env bash
# tools/gpu_check.sh with the sanitizer and the tests played: what it counts as passed, failed and skipped.
#
# Prints 'ok NAME' or 'not ok NAME'. No GPU is looked for.
set -u
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/bin" "$dir/build/tests/gpu"

# It runs the program and adds a summary: $SAYS, or one without faults.
cat >"$dir/bin/compute-sanitizer" <<'SH'
#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@" || exit
echo "========= ${SAYS-ERROR SUMMARY: 0 errors}"
exit ${CODE-0}
SH
for name in attention blockmask expr_device paged_cuda; do
    cat >"$dir/build/tests/gpu/test_$name" <<'SH'
#!/bin/sh
[ "$1" = --few ] || exit 3
echo '[==========] 2 test(s) run.'
if [ -n "${NO_GPU-}" ]; then
    printf '[  PASSED  ] 0 test(s).\n[  SKIPPED ] 2 test(s), listed below:\n'
else
    printf '[  PASSED  ] 1 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n'
fi
SH
done
chmod +x "$dir"/bin/* "$dir"/build/tests/gpu/*

expect() { # name, exit code, closing line, a word of each line; the environment says the rest
    local got rc
    got=$(PATH=$dir/bin:$PATH tools/gpu_check.sh "$dir/build" memcheck racecheck)
    rc=$?
    if [ $rc -eq "$2" ] && [ "$(tail -n 1 <<<"$got")" = "$3" ] && [ "$(grep -c "^$4 " <<<"$got")" -eq 8 ]; then
        echo "ok $1"
    else
        printf 'not ok %s: code %d\n%s\n' "$1" $rc "$got"
    fi
}
expect clean_runs_pass 0 '8 passed, 0 failed, 0 skipped' ok
NO_GPU=1 expect without_a_gpu_nothing_passes 0 '0 passed, 0 failed, 8 skipped' skip
CODE=9 SAYS='ERROR SUMMARY: 3 errors' expect errors_fail 1 '0 passed, 8 failed, 0 skipped' FAIL
SAYS='' expect no_summary_fails 1 '0 passed, 8 failed, 0 skipped' FAIL
