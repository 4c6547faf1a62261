#!/usr/bin/env bash
# What the pages say is true for the program: every mask and score printed in docs/LANGUAGE.md is accepted, every command that
# README.md shows exists, and no command is left untold.
#
# Prints 'ok NAME' or 'not ok NAME'. It does not judge the prose.
set -u
program=${PACELINE_PROGRAM:-build/paceline}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Fenced blocks that begin with ```mask, one file each.
awk -v dir="$dir" '/^```mask$/ { n++; on = 1; next } /^```$/ { on = 0 } on { print > (dir "/mask" n) }' docs/LANGUAGE.md
bad=
for f in "$dir"/mask*; do
    "$program" mask "$(cat "$f")" --q 300 --kv 300 --heads 8 >"$dir/log" 2>&1 || bad+="$(cat "$f" "$dir/log")"
done
[ -e "$dir/mask1" ] || bad='docs/LANGUAGE.md shows no mask'
if [ -z "$bad" ]; then echo 'ok masks_of_the_language_page_compile'; else echo 'not ok masks_of_the_language_page_compile'; echo "$bad"; fi

awk -v dir="$dir" '/^```score$/ { n++; on = 1; next } /^```$/ { on = 0 } on { print > (dir "/score" n) }' docs/LANGUAGE.md
bad=
for f in "$dir"/score*; do
    "$program" attend --random 1,4,2,70,80,16 --backward --score "$(cat "$f")" >"$dir/log" 2>&1 || bad+="$(cat "$f" "$dir/log")"
done
[ -e "$dir/score1" ] || bad='docs/LANGUAGE.md shows no score'
if [ -z "$bad" ]; then echo 'ok scores_of_the_language_page_run'; else echo 'not ok scores_of_the_language_page_run'; echo "$bad"; fi

bad=
for c in $(sed -n 's/^paceline \([a-z]*\) .*/\1/p' README.md | sort -u); do
    "$program" "$c" --help >/dev/null 2>&1 || bad+=" $c"
done
if [ -z "$bad" ]; then echo 'ok commands_of_the_readme_exist'; else echo "not ok commands_of_the_readme_exist:$bad"; fi

bad=
for c in $("$program" --help | awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }'); do
    grep -q "^paceline $c\|\`paceline $c\`\|\`$c\`" README.md docs/*.md || bad+=" $c"
done
if [ -z "$bad" ]; then echo 'ok every_command_is_told_of'; else echo "not ok every_command_is_told_of:$bad"; fi
