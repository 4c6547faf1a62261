#!/usr/bin/env bash
# Compiles every device kernel with NVRTC for each architecture, so that a machine without a GPU
# finds what would fail on one. Usage: tools/kernels_check.sh CC BUILD 'ARCH...' KERNEL... .
#
# Without NVRTC it says so and passes: the library is not part of what `make setup` installs.
set -eu
cc=$1 build=$2 archs=$3
shift 3
if [ $# -eq 0 ]; then
    echo 'kernels-check: no kernels yet'
    exit 0
fi
mkdir -p "$build/tools"
# shellcheck disable=SC2086  # the compiler may be two words ("ccache gcc")
$cc -std=c11 -D_GNU_SOURCE -O1 -Wall -Wextra -Wpedantic -Werror tools/nvrtc_check.c -o "$build/tools/nvrtc_check" -ldl
"$build/tools/nvrtc_check" "$archs" "$@"
