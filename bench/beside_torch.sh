#!/usr/bin/env bash
# Attention of bench_flex beside PyTorch on the same cores, in one call, with the gates: forward beside its compiled flex, forward and
# backward beside its dense attention with a mask (there is no flex backward on CPUs).
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
    LD_LIBRARY_PATH="$here/lib" PACELINE_BLAS="$blas" PACELINE_ISA=$1 "$here/bench_flex" "$threads" baseline
}

# The table of a folder with the outputs of PyTorch's script (torch) and of bench_flex (first, second, avx512bf16, avx512).
# A number that is not there is shown as -, and a gate without both of its sides as not measured.
table() { # FOLDER
    awk '
        function number(x) { return x ~ /^[0-9]+\.?[0-9]*$/ && x > 0 ? x : "" }
        function behind(label,  at) { # the word behind a label of this line, "" where it has none
            at = index($0, label)
            if (!at) return ""
            split(substr($0, at + length(label)), word, " ")
            return number(word[1])
        }
        FILENAME ~ /torch$/ && / flex fwd / {
            type = $1 ~ /bfloat/ ? "bf16" : "fp32"
            theirs[type, $2, 0] = behind(" flex fwd "); theirs[type, $2, 1] = behind("fwd+bwd ")
            next
        }
        $1 ~ /^(fp32|bf16)$/ && $6 == "x" {
            part = FILENAME; sub(/.*\//, "", part)
            ms[part, $1, $2, 0] = number($8); ms[part, $1, $2, 1] = number($11)
        }
        function cell(form, type, name, both,  t) {
            t = ms[form, type, name, both]
            if (t == "") return sprintf("%9s %5s", "-", "-")
            if (theirs[type, name, both] == "") return sprintf("%9.3f %5s", t, "-")
            return sprintf("%9.3f %5.2f", t, theirs[type, name, both] / t)
        }
        function judged(a, b, their, gate) {
            if (a == "" || b == "" || their == "") return "not measured"
            return their / (a > b ? a : b) >= gate ? "met" : "MISSED"
        }
        END {
            split("fp32 bf16", types, " "); split("causal window dflash", names, " ")
            split("1.5 1.5 1.5 1 1 1", forward, " "); split("1.5 3 3 1.5 3 3", pair, " ")
            for (both = 0; both < 2; both++) {
                print both ? "forward + backward" : "forward"
                print "ms and ratio    PyTorch        ours before      ours after     AVX512-BF16        AVX-512     gate"
                for (i = 1; i <= 2; i++) for (k = 1; k <= 3; k++) {
                    t = types[i]; n = names[k]; their = theirs[t, n, both]
                    row = 3 * (i - 1) + k; gate = both ? pair[row] : forward[row]
                    printf "%-4s %-7s %10s  %s  %s  %s  %s  %.1f %s\n", t, n, their == "" ? "-" : sprintf("%.3f", their),
                        cell("first", t, n, both), cell("second", t, n, both), cell("avx512bf16", t, n, both),
                        cell("avx512", t, n, both), gate,
                        judged(ms["first", t, n, both], ms["second", t, n, both], their, gate)
                }
            }
        }' "$1/torch" "$1/first" "$1/second" "$1/avx512bf16" "$1/avx512"
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
    for isa in avx512bf16 avx512; do
        ours $isa >"$log/$isa" || echo "bench_flex failed with PACELINE_ISA=$isa" >&2
    done
    grep -h 'bf16 forward' "$log/first" || true # widened: it names no form
    grep -h '^threads\|^flex failed' "$log/torch" || true
    table "$log"
}

case ${1:-} in
pack) shift; pack "$@" ;;
run) shift; run "$@" ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
