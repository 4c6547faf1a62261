#!/usr/bin/env bash
# Attention forward of bench_flex beside PyTorch's compiled flex on the same cores, in one call, as one table with the gates.
#   bench/beside_torch.sh pack BENCH_FLEX BASELINE.py FOLDER     a folder with all that the run needs but Python and PyTorch
#   FOLDER/beside_torch.sh run [THREADS] [PYTHON]                both sides, one after the other, on the machine at hand
#
# BASELINE.py is the PyTorch script, taken as it is. Ours runs before it and after it, and the slower of the two counts; bf16 also with
# its narrower forms (PACELINE_ISA), each once. Ratio is PyTorch's time over ours. Judges nothing but the gates that it prints.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

pack() { # BENCH_FLEX BASELINE FOLDER
    mkdir -p "$3/lib"
    cp "$1" "$3/bench_flex"
    cp "$2" "$3/baseline.py"
    cp "$here/beside_torch.sh" "$3/beside_torch.sh"
    strip --strip-debug "$3/bench_flex"
    ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt)\.so/ { print $3 }' |
        xargs -I{} cp -L {} "$3/lib/"
    blas=$(find /usr/lib /usr/local/lib -path '*blis-serial*' -name libblis.so.4 2>/dev/null | head -n 1)
    if [ -n "$blas" ]; then cp -L "$blas" "$3/lib/"; fi
    du -sh "$3"
}

ours() { # ISA: lines of "type mask ms", with the form of bf16
    blas=
    if [ -e "$here/lib/libblis.so.4" ]; then blas=$here/lib/libblis.so.4; fi
    LD_LIBRARY_PATH="$here/lib" PACELINE_BLAS="$blas" PACELINE_ISA=$1 "$here/bench_flex" "$threads" forward
}

run() { # [THREADS] [PYTHON]
    threads=${1:-16} python=${2:-python3}
    log=$(mktemp -d)
    trap 'rm -rf "$log"' EXIT
    lscpu | sed -n 's/^Model name: *//p; s/^Thread(s) per core: */threads a core: /p'
    "$python" -c 'import torch; print("PyTorch", torch.__version__)'
    ours amx >"$log/first"
    T=$threads "$python" "$here/baseline.py" >"$log/torch" 2>"$log/errors" ||
        { cat "$log/torch" "$log/errors" >&2; exit 1; }
    ours amx >"$log/second"
    for isa in avx512bf16 avx512; do ours $isa >"$log/$isa"; done
    grep -h 'bf16 forward' "$log/first"
    grep -h '^threads' "$log/torch"
    awk -v dir="$log" '
        function torch_line() { type = $1 ~ /bfloat/ ? "bf16" : "fp32"; sub(/.*flex fwd /, ""); return type }
        FILENAME ~ /torch$/ && / flex fwd / { name = $2; type = torch_line(); theirs[type, name] = $1; next }
        $1 ~ /^(fp32|bf16)$/ && $6 == "x" {
            part = FILENAME; sub(/.*\//, "", part); ms[part, $1, $2] = $8
        }
        function cell(t, type, name) { return sprintf("%9.3f %5.2f", t, theirs[type, name] / t) }
        END {
            print "ms and ratio    PyTorch        ours before      ours after     AVX512-BF16        AVX-512     gate"
            split("fp32 bf16", types, " "); split("causal window dflash", names, " ")
            for (i = 1; i <= 2; i++) for (k = 1; k <= 3; k++) {
                t = types[i]; n = names[k]; a = ms["first", t, n]; b = ms["second", t, n]
                gate = i == 1 ? 1.5 : 1.0; worse = a > b ? a : b
                printf "%-4s %-7s %10.3f  %s  %s  %s  %s  %.1f %s\n", t, n, theirs[t, n], cell(a, t, n), cell(b, t, n),
                    cell(ms["avx512bf16", t, n], t, n), cell(ms["avx512", t, n], t, n), gate,
                    (theirs[t, n] / worse >= gate) ? "met" : "MISSED"
            }
        }' "$log/torch" "$log/first" "$log/second" "$log/avx512bf16" "$log/avx512"
}

case ${1:-} in
pack) shift; pack "$@" ;;
run) shift; run "$@" ;;
*) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
