#!/usr/bin/env bash
# Holds what a machine can judge of the house rules; `make lint` runs it after a build.
#
# Each check prints what it found and counts as one failure; all checks run. The order of folders is
# also held by the linker (each test links only what its folder may reach). Lengths and shares of
# comments are printed as guides at the end and never fail. Reads BUILD and the working tree.
set -u
cd "$(dirname "$0")/.."
build=${BUILD:-build}
failures=0
shopt -s nullglob

# verdict NAME TEXT: TEXT lists the offences, empty when there are none.
verdict() {
    if [ -n "$2" ]; then
        printf 'lint %-22s FAIL\n%s\n' "$1" "$(printf '%s\n' "$2" | sort -u | head -n 40 | sed 's/^/    /')"
        failures=$((failures + 1))
    else
        printf 'lint %-22s ok\n' "$1"
    fi
}
# Files of the tree: tracked, and new ones that git does not ignore.
tree() { git ls-files -co --exclude-standard -- "$@" | while read -r f; do [ -f "$f" ] && echo "$f"; done | sort -u; }

# ---- text ---------------------------------------------------------------------------------------
check_format() {
    tree '*.c' '*.h' '*.cu' | xargs -r clang-format --dry-run -Werror 2>&1 | grep 'error:' | cut -d: -f1 | uniq -c |
        awk '{ print $2 ": " $1 " places differ from .clang-format (make format)" }'
}

# The rows of the folder table: what each folder's files may include.
may_include() {
    case $1 in
    core) echo core ;;
    io) echo io core ;;
    expr) echo expr core ;;
    dev) echo dev core ;;
    text) echo text core io ;;
    dist) echo dist core dev ;;
    flex) echo flex core dev expr ;;
    data) echo data core io text ;;
    nn) echo nn core dev flex ;;
    model) echo model core io dev flex nn ;;
    decode) echo decode core io text dev flex nn model ;;
    train) echo train core io expr dev text dist flex data nn model decode ;;
    report) echo report core io ;;
    serve) echo serve core io text decode model ;;
    api) echo api paceline core io expr dev text dist flex data nn model decode train report serve ;;
    cli) echo cli paceline core io expr dev text dist flex data nn model decode train report serve api ;;
    esac
}
check_includes() {
    local f folder allowed used
    for f in $(tree 'src/*.c' 'src/*.h' 'src/*.def'); do
        folder=$(echo "$f" | cut -d/ -f2)
        allowed=" $(may_include "$folder") "
        [ "$allowed" = '  ' ] && echo "$f: folder $folder is not in the table of tools/lint.sh"
        for used in $(sed -n 's/^ *# *include *"\([a-z]*\)\/.*/\1/p' "$f" | sort -u); do
            case $allowed in *" $used "*) ;; *) echo "$f includes $used/, which $folder may not use" ;; esac
        done
        sed -n 's/^ *# *include *"\([^"/]*\)".*/\1/p' "$f" | while read -r used; do
            echo "$f includes \"$used\": write folder/name"
        done
        if grep -nE '^ *# *include *"[^"]*\.c"' "$f" >/dev/null; then echo "$f includes a .c file"; fi
    done
    grep -nE '^ *# *include *"[^"]*\.c"' $(tree 'tests/*.c' 'bench/*.c') /dev/null | sed 's/$/ (includes a .c file)/'
}

check_getenv() { grep -nwE 'getenv|secure_getenv|setenv|putenv' $(tree 'src/*.c' 'src/*.h') /dev/null | grep -v '^src/core/env\.c:' | grep -vE '^[^:]*:[0-9]*: *(\*|/\*|//)'; }

# A word of unfinished work, a path of one machine, or a host of a package registry has no place here.
check_words() {
    local files
    files=$(tree '*.c' '*.h' '*.def' '*.cu' '*.sh' '*.md' '*.py' '*.yaml' '*.jsonl' Makefile .ci/run | grep -v '^tools/lint\.sh$')
    [ -n "$files" ] || return
    # shellcheck disable=SC2086
    grep -nwE 'TODO|FIXME|XXX|HACK' $files /dev/null
    grep -nE '(^|[^A-Za-z0-9_.$])/(work|root|home|Users|opt/ref)/' $files /dev/null
    grep -nE '(^|[^A-Za-z])(DESIGN|dflash|flex|cases|style)\.md' $files /dev/null | sed 's/$/ (no such page here)/'
    grep -niE 'pypi\.org|pythonhosted|huggingface\.co|hf-mirror|index-url|deb\.debian\.org|registry\.npmjs' $files /dev/null
}

check_heads() {
    local f
    for f in $(tree 'src/*.c' 'src/*.h' 'src/*.cu' 'tests/*.c' 'tests/*.h' 'bench/*.c' 'fuzz/*.c' 'tools/*.c'); do
        awk -v f="$f" 'NR == 1 && !/^\/\*/ { print f ": does not open with a comment"; exit }
            { n++ } /\*\// { if (n < 3) print f ": the opening comment has " n " lines, not 3 or more"; exit }' "$f"
    done
}

check_names() {
    tree 'src/*' | sed 's|.*/||' | sort | uniq -d | sed 's/$/: this file name is used twice in src/'
    grep -nE '^ *(typedef|struct|enum|union)[^;]*\b[a-z0-9_]+_t *;|^} *[a-z0-9_]+_t *;' $(tree 'src/*.h' 'src/*.c') /dev/null | sed 's/$/ (no _t)/'
}

check_map() {
    local f name
    [ -f docs/MAP.md ] || { echo 'docs/MAP.md is missing'; return; }
    for f in $(tree 'src/*'); do
        grep -q "^- .*\`$(basename "$f")\`[^:]*:" docs/MAP.md || echo "$f is not in docs/MAP.md (tools/map.sh adds it)"
        grep -q "^## \`$(dirname "$f")/\`" docs/MAP.md || echo "$(dirname "$f")/ is not in docs/MAP.md"
    done
    for name in $(sed -n 's/^- \(`[^:]*`\):.*/\1/p' docs/MAP.md | grep -o '`[a-z0-9_]*\.\(c\|h\|def\|cu\)`' | tr -d '`' | sort -u); do
        [ -n "$(tree "src/*/$name" "tests/*/$name" "tools/$name" "bench/$name" "fuzz/$name")" ] || echo "docs/MAP.md names $name, which is not in the tree"
    done
    for name in $(grep -o '`src/[a-z0-9_/]*/`' docs/MAP.md | tr -d '`' | sort -u); do
        [ -d "$name" ] || echo "docs/MAP.md names $name, which is not in the tree"
    done
}

# Tests that docs/WHY.md names as evidence.
check_why() {
    local name
    for name in $(grep '^| P' docs/WHY.md | grep -o '`tests/[a-z0-9_/.]*`' | tr -d '`' | sort -u); do
        [ -f "$name" ] || echo "docs/WHY.md names $name, which is not in the tree"
    done
    for name in $(grep '^| P' docs/WHY.md | grep -o '`[a-z0-9]*_[a-z0-9_]*`\|`locks`' | tr -d '`' | sort -u); do
        grep -rqw "$name" tests/ || echo "docs/WHY.md names the test $name, which does not exist"
    done
}

# ---- symbols ------------------------------------------------------------------------------------
# One archive per folder; the public library beside them is made of these.
archives() { for f in $FOLDERS; do [ ! -f "$build/lib/lib$f.a" ] || echo "$build/lib/lib$f.a"; done; }
# 'ARCHIVE OBJECT SYMBOL' per line, without comments.
allowed() { sed 's/#.*//; s/ *$//; /^$/d' "$1" 2>/dev/null; }

# Writable data in any section, also inside functions and per thread. Constant tables of pointers
# (.data.rel.ro) are not writable once the program runs.
check_globals() {
    local a
    for a in $(archives); do
        nm -A -f sysv "$a" 2>/dev/null | awk -F'|' -v a="$(basename "$a" .a)" '
            { gsub(/ /, "", $7); n = split($1, p, ":"); sym = p[n]; gsub(/ /, "", sym); obj = p[n - 1] }
            $7 ~ /^\.(data|bss|tbss|tdata)/ && $7 !~ /^\.data\.rel\.ro/ && sym !~ /^\./ || $7 == "*COM*" {
                sub(/\.[0-9]+$/, "", sym); print substr(a, 4) " " obj " " sym }'
    done | sort -u | while read -r folder object symbol; do
        allowed tools/lint_globals.allow | awk '{ print $1, $2 }' | grep -qxF "$folder $symbol" ||
            echo "mutable variable $symbol in src/$folder (${object%.o}.c): hang it on a handle"
    done
}

check_calls() {
    local a folder
    for a in $(archives); do
        folder=$(basename "$a" .a); folder=${folder#lib}
        [ "$folder" = cli ] && continue
        nm -A -u "$a" 2>/dev/null | awk '{ print $1, $NF }' | sed 's/@.*//' |
            grep -E ' (exit|_exit|_Exit|quick_exit|abort|printf|vprintf|puts|putchar|perror|err|errx|warn|warnx|system|stdout|__printf_chk|__vprintf_chk)$' |
            sed "s/^.*\.a://; s/\.o://" | while read -r object call; do
            allowed tools/lint_calls.allow | awk '{ print $1, $2, $3 }' | grep -qxF "$folder $object $call" ||
                echo "src/$folder: $object.c uses $call"
        done
    done
}

# A symbol seen outside its file starts with its header's or its file's name (without the variant's suffix).
check_prefixes() {
    local a folder heads
    for a in $(archives); do
        folder=$(basename "$a" .a); folder=${folder#lib}
        heads=$( (ls src/"$folder"; allowed tools/lint_prefix.allow | awk -v f="$folder" '$1 == f { print $2 ".h" }') | sed -n 's/\.[ch]$//p; s/\.cu$//p' | sort -u | tr '\n' ' ')
        nm -A -g --defined-only "$a" 2>/dev/null | sed 's/^.*\.a://' | awk -v heads="$heads" -v folder="$folder" '
            BEGIN { n = split(heads, h, " ") }
            { obj = $1; sub(/\.o:.*/, "", obj); sym = $NF; ok = sym == "main" && folder == "cli"
              base = obj; sub(/_(avx2|avx512|avx512bf16|amx|cuda|portable)$/, "", base)
              if (index(sym, base "_") == 1 || sym == base) ok = 1
              for (i = 1; i <= n && !ok; i++) if (index(sym, h[i] "_") == 1 || sym == h[i]) ok = 1
              if (!ok) print "src/" folder "/" obj ".c: " sym " does not start with the name of a header or of its file" }'
    done | sort -u
}

# ---- guides -------------------------------------------------------------------------------------
figures() {
    local files
    files=$(tree 'src/*.c' 'src/*.h')
    [ -n "$files" ] || return
    echo 'guide figures (printed, never a failure); in brackets what good code of this kind shows'
    # shellcheck disable=SC2086
    ctags -x --_xformat='%{line} %{end} %{input} %N' --languages=C --kinds-C=f --fields=+ne $files 2>/dev/null |
        awk '$2 ~ /^[0-9]+$/ { print $2 - $1 + 1, $3, $4 }' | sort -n >"$build/lint-functions.txt"
    awk '{ l[NR] = $1; if ($1 > 100) long = long "\n      " $3 " " $1 " lines, " $2 }
        END { if (NR) printf "  functions %d: median %d, p90 %d, longest %d lines [15, 50, 100]%s\n", NR, l[int((NR + 1) / 2)], l[int(NR * 0.9 + 0.99)], l[NR], long }' "$build/lint-functions.txt"
    # shellcheck disable=SC2086
    wc -l $files | awk '$2 != "total" { print $1, $2 }' | sort -n |
        awk '{ l[NR] = $1; n[NR] = $2; s += $1; if ($2 ~ /\.h$/ && $1 > 200) big = big "\n      header " $2 " " $1; if ($1 > 600) big = big "\n      " $2 " " $1 }
        END { printf "  files %d, %d lines: median %d, longest %d [250, 800]%s\n", NR, s, l[int((NR + 1) / 2)], l[NR], big }'
    # shellcheck disable=SC2086
    awk '{ n++ } /\/\*/ { c = 1 } c { k++ } /\*\// { c = 0 } !c && /^ *\/\// { k++ } /^ *# *define/ { d++ } /(^|[^a-z_])(assert|_Static_assert)\(/ { a++ } length($0) > 100 { w++ }
        END { printf "  comments %.0f %% of lines [10-20]; per 1000 lines: %.1f macros [<= 5], %.1f assertions [>= 10], %.1f lines over 100 columns\n", 100 * k / n, 1000 * d / n, 1000 * a / n, 1000 * w / n }' $files
}

verdict format "$(check_format)"
verdict 'order of folders' "$(check_includes)"
verdict 'getenv in one file' "$(check_getenv)"
verdict 'words and paths' "$(check_words)"
verdict 'opening comments' "$(check_heads)"
verdict 'names' "$(check_names)"
verdict 'docs/MAP.md' "$(check_map)"
verdict 'docs/RECIPES.md' "$(tools/recipe_table.sh --check)"
verdict 'docs/WHY.md' "$(check_why)"
verdict 'mutable globals' "$(check_globals)"
verdict 'exit, abort, printf' "$(check_calls)"
verdict 'prefixes' "$(check_prefixes)"
figures
if [ "$failures" -gt 0 ]; then
    echo "lint: $failures checks failed"
    exit 1
fi
echo 'lint: ok'
