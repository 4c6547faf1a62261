#!/usr/bin/env bash
# Makes a folder that runs on machines where nothing can be installed: the program and, in lib/, every
# shared library that is not glibc's. Usage: tools/bundle.sh PROGRAM OUT .
#
# PROGRAM was linked to look in $ORIGIN/lib (see the Makefile).
# The matrix library is opened at run time, so it is not in the program's list: a serial BLIS is added where
# the machine has one; without it the bundle computes in plain C and says so. At most 30 MB in all.
set -eu
program=$1 out=$2
limit=$((30 * 1000 * 1000))
# What the loader and libc own: these must come from the machine itself.
glibc='^(ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|linux-vdso)\.so'

rm -rf "$out"
mkdir -p "$out/lib"
cp "$program" "$out/paceline"
strip --strip-debug "$out/paceline" # names of functions stay, for stack traces

copy_needed() { # FILE: its libraries, with theirs, as the loader finds them now
    ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r name path; do
        if ! [[ $name =~ $glibc ]] && [ ! -e "$out/lib/$name" ]; then
            cp -L "$path" "$out/lib/$name"
            chmod 755 "$out/lib/$name"
        fi
    done
}
copy_needed "$out/paceline"
if ldd "$out/paceline" | grep 'not found'; then
    echo 'bundle: a library of the program is missing on this machine' >&2
    exit 1
fi

blas=$(find /usr/lib /usr/local/lib -path '*blis-serial*' -name libblis.so.4 2>/dev/null | head -n 1)
if [ -n "$blas" ]; then
    cp -L "$blas" "$out/lib/libblis.so.4"
    chmod 755 "$out/lib/libblis.so.4"
    copy_needed "$out/lib/libblis.so.4"
else
    echo 'bundle: no serial BLIS here (libblis4-serial): the bundle computes in plain C'
fi
for f in "$out"/lib/*; do strip --strip-unneeded "$f"; done

readelf -d "$out/paceline" | grep -q 'RPATH.*\$ORIGIN/lib' || {
    echo "bundle: $program has no RPATH of \$ORIGIN/lib" >&2
    exit 1
}
size=$(du -sb --apparent-size "$out" | cut -f1)
echo "bundle: $out, $size bytes, $(find "$out/lib" -type f | wc -l) libraries"
if [ "$size" -gt "$limit" ]; then
    echo "bundle: larger than the $limit bytes allowed" >&2
    exit 1
fi
