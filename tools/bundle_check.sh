#!/usr/bin/env bash
# Runs a bundle where only glibc is: a fresh root folder with the loader, libc and libm, nothing else.
#
# Usage: tools/bundle_check.sh BUNDLE . Needs chroot as root, or unshare with user namespaces; where
# neither is allowed it says so and falls back to a check of every library's path under LD_DEBUG, which
# is weaker. Fails when the program does not start, or when any library but glibc's is found outside.
set -eu
bundle=$1
[ -x "$bundle/paceline" ] || { echo "bundle-check: $bundle/paceline is missing; run 'make bundle'" >&2; exit 1; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/app" "$root/proc/self" "$root/tmp" "$root/dev"
ln -s /app/paceline "$root/proc/self/exe" # what $ORIGIN is read from; mounting /proc would need more rights
cp -r "$bundle/." "$root/app/"
loader=$(readelf -l "$bundle/paceline" | sed -n 's/.*interpreter: \(.*\)\]/\1/p')
mkdir -p "$root$(dirname "$loader")"
cp -L "$loader" "$root$loader"
libdir=$(dirname "$(ldd "$bundle/paceline" | awk '$1 ~ /^libc\.so/ { print $3 }')")
mkdir -p "$root$libdir"
for l in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
    if [ -e "$libdir/$l" ]; then cp -L "$libdir/$l" "$root$libdir/$l"; fi
done

if chroot "$root" /app/paceline --version >/dev/null 2>&1; then
    run() { chroot "$root" "$@"; }
elif unshare -r chroot "$root" /app/paceline --version >/dev/null 2>&1; then
    run() { unshare -r chroot "$root" "$@"; }
elif [ "$(id -u)" -eq 0 ] || unshare -r true 2>/dev/null; then
    echo 'bundle-check: the program does not start where only glibc is:' >&2
    if [ "$(id -u)" -eq 0 ]; then chroot "$root" /app/paceline --version; else unshare -r chroot "$root" /app/paceline --version; fi
    exit 1
else
    echo 'bundle-check: neither chroot nor user namespaces are allowed here; checking library paths only'
    stray=$(LD_DEBUG=libs LD_DEBUG_OUTPUT="$root/tmp/ld" "$bundle/paceline" --version >/dev/null &&
        sed -n 's/.*calling init: //p' "$root"/tmp/ld.* | grep -v "$bundle/lib/" | grep -Ev '/(ld-linux.*|libc|libm|libdl|libpthread|librt)\.so' || true)
    [ -z "$stray" ] || { echo "bundle-check: libraries from outside the bundle: $stray" >&2; exit 1; }
    echo 'bundle-check: ok (library paths only)'
    exit 0
fi

run /app/paceline --version
run /app/paceline --help >/dev/null
# A real computation: attention under a mask, forward, on random inputs.
run /app/paceline attend --random 1,2,1,70,90,16 --mask 'kv <= q' --explain
run /app/paceline doctor
# Files of the same names first on the search path: the bundle's own serve. (The folder exists in the new root alone.)
mkdir -p "$root/polluted"
for l in "$bundle"/lib/*; do echo 'no library' >"$root/polluted/$(basename "$l")"; done
LD_LIBRARY_PATH=/polluted run /app/paceline doctor >"$root/tmp/doctor"
grep '/polluted/' "$root/tmp/doctor" && { echo 'bundle-check: a library of the search path is taken' >&2; exit 1; }
echo 'bundle-check: ok'
