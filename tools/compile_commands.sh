#!/usr/bin/env bash
# Writes compile_commands.json (to standard output) for editors and language servers.
#
# Usage: tools/compile_commands.sh 'COMPILER FLAGS' FILE... . Needs no tool but the shell.
set -eu
command=$1
shift
json() { printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g'; }
dir=$(json "$PWD")
sep=
printf '[\n'
for f in "$@"; do
    more=
    case $f in
    tests/*) more=' -Itests' ;;
    *_avx2.c) more=' -mavx2 -mfma -mf16c' ;;
    *_avx512.c) more=' -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c' ;;
    esac
    printf '%s{"directory": "%s", "file": "%s", "command": "%s"}' "$sep" "$dir" "$(json "$f")" \
        "$(json "$command$more -c $f")"
    sep=$',\n'
done
printf '\n]\n'
