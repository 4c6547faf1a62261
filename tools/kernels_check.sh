#!/usr/bin/env bash
# Compiles device kernels with NVRTC for each architecture, so that a machine without a GPU finds what
# would fail on one, and holds registers that spill and local memory to tools/kernels_allow.txt.
# Usage: tools/kernels_check.sh CC BUILD 'ARCH...' 'LINK...' KERNEL... .
#
# Kernels of attention are texts that the program makes: tools/kernel_texts.c, linked with LINK, writes a list
# of them to BUILD/kernels. Without NVRTC it says so and passes: the library is not part of what `make setup`
# installs.
set -euo pipefail
cc=$1 build=$2 archs=$3 link=$4
shift 4
mkdir -p "$build/tools"
rm -rf "$build/kernels"
mkdir -p "$build/kernels"
# shellcheck disable=SC2086  # the compiler may be two words ("ccache gcc"), and so are libraries
$cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wpedantic -Werror tools/nvrtc_check.c -o "$build/tools/nvrtc_check" -ldl
# shellcheck disable=SC2086
$cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wpedantic -Werror -Isrc tools/kernel_texts.c -o "$build/tools/kernel_texts" $link
mapfile -t texts < <("$build/tools/kernel_texts" "$build/kernels")
[ "${#texts[@]}" -gt 0 ]
# A few texts for each process, as many processes as processors.
printf '%s\0' "${texts[@]}" "$@" | xargs -0 -n 6 -P "$(nproc)" "$build/tools/nvrtc_check" "$archs" tools/kernels_allow.txt | tee "$build/kernels/report"

# An allowance that nothing needs hides the next spill. Not a failure: other versions of NVRTC spill elsewhere.
awk '
    FNR == NR { if (/\(allowed\)$/) used[$2 " " $4] = 1; if (/^ok/) judged = 1; next }
    /^[^#]/ && judged {
        for (k in used) if (index(k, $1) && ($2 == "*" || k ~ (" " $2 ":$"))) next
        print "note: tools/kernels_allow.txt allows " $1 " on " $2 " " $3 " bytes, and nothing here needs them"
    }' "$build/kernels/report" tools/kernels_allow.txt
