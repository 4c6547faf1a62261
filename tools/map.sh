#!/usr/bin/env bash
# Brings docs/MAP.md up to date with src/: adds a line for each new file, from the first sentence of its
# opening comment, and removes lines of files that are gone. Sentences and order written by hand stay.
#
# The page has one section '## `src/FOLDER/`' per folder and one line '- `file`: sentence' per file; a
# header and its implementations share a line: '- `x.h` `x.c`: sentence'. Run from the root; no output file
# but docs/MAP.md. New lines go to the end of their folder's section: move them into reading order by hand.
set -eu
cd "$(dirname "$0")/.."
map=docs/MAP.md
export LC_ALL=C.UTF-8

# First sentence of a file's opening comment, on one line.
sentence() {
    awk 'NR == 1 && !/^\/\*/ { exit } { l = $0; sub(/^\/\*+ ?/, "", l); sub(/^ \*\/? ?/, "", l); e = index(l, "*/"); if (e) l = substr(l, 1, e - 1)
        if (l ~ /^ *$/ && NR > 1) exit; t = t " " l; if (e) exit } END { print t }' "$1" |
        sed 's/^ *//; s/ *$//; s/\([a-z0-9)]\)\. .*/\1/; s/[.:;]$//'
}

folders=$(sed -n 's/^FOLDERS := //p' Makefile)
for d in $folders; do
    [ -n "$(ls src/"$d" 2>/dev/null)" ] || continue
    grep -q "^## \`src/$d/\`" $map || printf '\n## `src/%s/`\n' "$d" >>$map
done

# Names whose file is gone lose their mention; a line left without a name goes whole.
for name in $(sed -n 's/^- \(`[^:]*`\):.*/\1/p' $map | grep -o '`[a-z0-9_]*\.[a-z]*`' | tr -d '`' | sort -u); do
    [ -n "$(find src tests tools bench fuzz -name "$name" 2>/dev/null | head -n 1)" ] && continue
    sed -i "/^- /s/\`$name\` \{0,1\}//; /^- *:/d" $map
done

# Headers first: their sentence is the contract's.
for f in $(git ls-files -co --exclude-standard -- 'src/*' | sort -u | awk '{ print ($0 ~ /\.h$/ ? 0 : 1), $0 }' | sort -s -k1,1n | cut -d' ' -f2); do
    [ -f "$f" ] || continue
    name=$(basename "$f") dir=$(dirname "$f")
    grep -q "^- .*\`$name\`[^:]*:" $map && continue
    stem=${name%.*}
    stem=${stem%_avx2} stem=${stem%_avx512}
    if grep -q "^- .*\`$stem\.[a-z]*\`[^:]*:" $map; then
        # Beside its header or its portable twin.
        sed -i "/^- .*\`$stem\.[a-z]*\`[^:]*:/s/:/ \`$name\`:/" $map
    else
        line="- \`$name\`: $(sentence "$f")."
        awk -v head="## \`$dir/\`" -v line="$line" '
            /^## / { if (in_it) { print line; print ""; in_it = 0; blank = 0 } if (index($0, head) == 1) in_it = 1 }
            in_it && /^$/ && seen { blank = 1; next }
            { if (in_it && blank) { print ""; blank = 0 } if (in_it) seen = 1; print }
            END { if (in_it) print line }' $map >$map.new
        mv $map.new $map
    fi
done
