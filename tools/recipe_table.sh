#!/usr/bin/env bash
# Writes the table of fields in docs/RECIPES.md anew from src/io/recipe.def, after the line '## Fields'.
# With --check it changes nothing and fails when the page is not what it would write.
set -eu
cd "$(dirname "$0")/.."
page=docs/RECIPES.md

table() {
    echo '| key | kind | default | range | meaning |'
    echo '| --- | --- | --- | --- | --- |'
    awk -F, '/^X\(/ {
        help = $0; match(help, /"[^"]*"\) *$/); help = substr(help, RSTART + 1, RLENGTH); sub(/"\) *$/, "", help); gsub(/\|/, ", ", help)
        for (i = 1; i <= 6; i++) gsub(/^ *(X\()?| *$/, "", $i)
        kind = tolower($3); gsub(/_/, " ", kind)
        gsub(/"/, "", $4); value = $4 == "REQUIRED" ? "required" : $4 == "" ? "none" : "`" $4 "`"
        printf "| `%s.%s` | %s | %s | %s | %s |\n", $1, $2, kind, value, $3 ~ /INT|REAL/ ? $5 " … " $6 : "", help
    }' src/io/recipe.def
}
whole() { sed '/^## Fields/q' $page; echo; table; }

if [ "${1:-}" = --check ]; then
    whole | cmp -s - $page || { echo "$page differs from src/io/recipe.def; run tools/recipe_table.sh"; exit 1; }
else
    whole >$page.new
    mv $page.new $page
fi
