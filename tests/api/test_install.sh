#!/usr/bin/env bash
# The installed tree as another program's build sees it: `make install`, pkg-config, the examples, names and versions.
#
# Prints 'ok NAME', 'not ok NAME' or 'skip NAME'. Everything goes to a temporary folder. Run by hand it takes the build's own
# compiler and flags, so that nothing is built again. Builds with sanitizers have no public library: skipped there.
set -u
program=${PACELINE_PROGRAM:-build/paceline}
build=$(dirname "$program")
pkgconfig=${PKGCONFIG:-pkg-config}
strict='-std=c11 -O2 -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Wshadow -Wstrict-prototypes -Wundef -Wvla -Werror'
names='header_compiles_alone library_exports_what_the_header_declares library_needs_what_it_declares
 examples_run_against_the_shared_library examples_run_against_the_static_library staged_install_is_found_by_pkg_config
 header_works_from_cxx readme_commands_work runs_allocate_nothing
 memory_that_cannot_be_had_is_told every_allocation_may_fail numbers_have_a_point_in_every_locale'
if nm -D "$program" 2>/dev/null | grep -qE '__(asan|tsan)_init'; then
    for n in $names; do echo "skip $n"; done
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
root=$PWD
cc=$(command -v "${CC:-gcc}" || command -v gcc || command -v clang)

check() { # name, then a command that must succeed
    local name=$1
    shift
    (set -e; "$@") >"$dir/log" 2>&1 # not as a condition: there -e would be ignored
    if [ $? -eq 0 ]; then echo "ok $name"; else echo "not ok $name"; cat "$dir/log"; fi
}
flags=$(cat "$build/flags")
opt=${flags#*-D_GNU_SOURCE }
same=()
[ -n "${MAKEFLAGS:-}" ] || same=(CC="${flags%% -std=c11*}" OPT="${opt%% -ffp-contract*}")
install_to() { # variables of make
    make --no-print-directory BUILD="$build" "${same[@]}" "$@" install
}
pc() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig $pkgconfig "$@"; }

prefix=$dir/prefix
if ! install_to PREFIX="$prefix" DESTDIR= >"$dir/log" 2>&1; then
    for n in $names; do echo "not ok $n"; done
    cat "$dir/log"
    exit 1
fi
header=$prefix/include/paceline/flex.h
declared() { "$cc" -E -P "$header" | tr '\n' ' ' | grep -oE '\bpl_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u; }

header_alone() {
    for std in c99 c11; do
        for c in gcc clang; do
            if command -v $c; then $c -std=$std -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c "$header"; fi
        done
    done
}
exports() {
    [ "$(declared | wc -l)" -gt 30 ]
    declared >"$dir/declared"
    nm -D --defined-only "$prefix/lib/libpaceline.so.0" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u >"$dir/shared"
    nm -g --defined-only "$prefix/lib/libpaceline.a" | awk 'NF == 3 { print $3 }' | sort -u >"$dir/static"
    diff "$dir/declared" "$dir/shared"
    diff "$dir/declared" "$dir/static"
    readelf -d "$prefix/lib/libpaceline.so.0" | grep 'SONAME.*\[libpaceline.so.0\]'
    [ "$(readlink "$prefix/lib/libpaceline.so")" = libpaceline.so.0 ]
}
# glibc's parts, and what Libs.private or Requires.private of paceline.pc name.
needs() {
    pc --static --libs paceline | tr ' ' '\n' | sed -n 's/^-l//p' >"$dir/named"
    readelf -d "$prefix/lib/libpaceline.so.0" | sed -n 's/.*NEEDED.*\[lib\(.*\)\.so.*\]/\1/p' | while read -r lib; do
        case $lib in c) ;; *) grep -x "$lib" "$dir/named" ;; esac
    done
    [ "$(pc --modversion paceline)" = "$("$program" --version | awk '{ print $2 }')" ]
}
# shellcheck disable=SC2046,SC2086
shared_examples() {
    for e in attend mask_map; do
        "$cc" $strict "examples/$e.c" $(pc --cflags --libs paceline) -lm -o "$dir/$e"
        LD_LIBRARY_PATH=$prefix/lib "$dir/$e"
        LD_LIBRARY_PATH=$prefix/lib ldd "$dir/$e" | grep "$prefix/lib/libpaceline.so.0"
    done
    if LD_LIBRARY_PATH=$prefix/lib "$dir/mask_map" 'kv <= qq'; then false; fi
    LD_LIBRARY_PATH=$prefix/lib "$dir/mask_map" 'kv <= qq' 2>&1 | grep 'syntax error: mask, line 1, column 7'
    LD_LIBRARY_PATH=$prefix/lib "$dir/mask_map" 'kv <= q' 512 | head -n 2 | tr '\n' ' ' | grep -F '+... #+..'
}
# Names of the library's inside do not meet a program's own.
# shellcheck disable=SC2046,SC2086
static_examples() {
    printf 'int err_set(void); int err_set(void) { return 1; }\nint arena_alloc; int pool_run;\n' >"$dir/own.c"
    for e in attend mask_map; do
        "$cc" $strict "examples/$e.c" "$dir/own.c" $(pc --cflags paceline) \
            $(pc --static --libs paceline | sed 's/-lpaceline/-l:libpaceline.a/') -o "$dir/$e-static"
        "$dir/$e-static"
        ldd "$dir/$e-static" >"$dir/ldd"
        if grep libpaceline "$dir/ldd"; then false; fi
    done
}
# shellcheck disable=SC2046,SC2086
staged() {
    install_to PREFIX=/usr DESTDIR="$dir/stage"
    test -x "$dir/stage/usr/bin/paceline"
    grep '^prefix=/usr$' "$dir/stage/usr/lib/pkgconfig/paceline.pc"
    if grep -r "$dir" "$dir/stage/usr/lib/pkgconfig"; then false; fi
    export PKG_CONFIG_SYSROOT_DIR=$dir/stage PKG_CONFIG_PATH=$dir/stage/usr/lib/pkgconfig
    export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
    "$cc" $strict examples/attend.c $($pkgconfig --cflags --libs paceline) -lm -o "$dir/staged"
    LD_LIBRARY_PATH=$dir/stage/usr/lib "$dir/staged"
}
# shellcheck disable=SC2046,SC2086
from_cxx() {
    cat >"$dir/use.cc" <<'CXX'
#include <paceline/flex.h>
int main() {
    pl_shape shape = {sizeof(pl_shape), 1, 1, 1, 300, 300, 0, 0};
    pl_mask_info info = {};
    pl_problem *problem = nullptr;
    pl_mask *mask = nullptr;
    info.size = sizeof info;
    if (pl_problem_create(&problem, &shape, PL_F32) || pl_problem_mask(problem, "kv <= q")) return 1;
    if (pl_mask_create(&mask, problem, nullptr) || pl_mask_get_info(mask, &info)) return 1;
    pl_mask_free(mask);
    pl_problem_free(problem);
    return info.full == 3 && info.partial == 3 && info.empty == 3 ? 0 : 1;
}
CXX
    for std in c++11 c++17; do
        "$cxx" -std=$std -Wall -Wextra -Wpedantic -Werror "$dir/use.cc" $(pc --cflags --libs paceline) -o "$dir/use"
        LD_LIBRARY_PATH=$prefix/lib "$dir/use"
    done
}
# The block of README.md that begins with `make install PREFIX=`, as it stands but for the build's own variables.
readme() {
    awk '/^```$/ { if (on) exit; next } /^make install PREFIX=/ { on = 1 } on { print }' README.md >"$dir/steps"
    [ "$(wc -l <"$dir/steps")" -eq 3 ]
    mkdir "$dir/home"
    (
        export HOME=$dir/home
        make() { command make --no-print-directory BUILD="$build" "${same[@]}" "$@"; }
        cd "$dir/home"
        ln -s "$root"/* .
        # shellcheck disable=SC1091
        . "$dir/steps"
    ) >"$dir/said"
    grep 'differ from a plain loop' "$dir/said"
}

# From outside, by a malloc interposer: a plan run 50 times takes as many allocations as one run once.
# shellcheck disable=SC2046,SC2086
no_allocations() {
    cat >"$dir/steady.c" <<'C'
#include <paceline/flex.h>
#include <stdlib.h>
enum { L = 200, D = 16 };
static float x[L * D], y[L * D], lse[L], bias[2 * L], d_bias[2 * L];
int main(int argc, char **argv) {
    const pl_shape shape = {sizeof shape, 1, 1, 1, L, L, D, D};
    const pl_gradient gradient = {"bias", d_bias};
    const int64_t extent = 2 * L;
    pl_problem *p;
    pl_device *d;
    pl_plan *plan;
    if (argc < 2 || pl_problem_create(&p, &shape, PL_F32) || pl_problem_mask(p, "kv <= q && kv % 7 < 5")) return 1;
    if (pl_problem_score(p, "s + bias[q - kv + 200]") || pl_problem_array(p, "bias", PL_F32, 1, &extent, bias)) return 1;
    if (pl_problem_gradient(p, "bias", 1) || pl_device_open_cpu(&d, 2) || pl_plan_create(&plan, p, d)) return 1;
    pl_io io = {.size = sizeof io, .lse = lse, .gradients = &gradient, .n_gradients = 1};
    io.q = io.k = io.v = io.d_o = pl_view_dense(x, PL_F32, 1, L, D);
    io.o = io.dq = io.dk = io.dv = pl_out_dense(y, 1, L, D);
    size_t f = pl_plan_forward_workspace(plan, d), b = pl_plan_backward_workspace(plan, d);
    io.workspace_bytes = f > b ? f : b;
    io.workspace = aligned_alloc(64, io.workspace_bytes);
    for (int i = atoi(argv[1]); i > 0; i--)
        if (pl_forward(plan, d, &io) || pl_backward(plan, d, &io)) return 1;
    free(io.workspace);
    pl_plan_free(plan), pl_device_free(d), pl_problem_free(p);
    return 0;
}
C
    "$cc" $strict "$dir/steady.c" $(pc --cflags --libs paceline) -o "$dir/steady"
    make --no-print-directory BUILD="$build" "${same[@]}" "$build/tests/interpose/count.so"
    for n in 1 50; do
        LD_LIBRARY_PATH=$prefix/lib COUNT_FILE=$dir/count$n LD_PRELOAD=$(realpath "$build/tests/interpose/count.so") "$dir/steady" $n
        grep -E '^calls [1-9]' "$dir/count$n"
    done
    cmp "$dir/count1" "$dir/count50"
}

# A mask of 15 million rows of tiles in a process that may have 60 MB.
no_memory() {
    local rc=0
    (ulimit -v 60000 && exec "$dir/mask_map-static" 'kv <= q' 2000000000) >"$dir/said" 2>&1 || rc=$?
    [ $rc -eq 1 ]
    grep -E '^out of memory: .* [0-9]{5,} .*bytes' "$dir/said"
}

# From a device to gradients, with each allocation failing in turn: an error that says memory, or success with the same bits where it
# was none of ours (what is read of the system's limits); in each case nothing is kept.
# shellcheck disable=SC2046,SC2086
each_allocation_fails() {
    cat >"$dir/fail.c" <<'C'
#include <dlfcn.h>
#include <paceline/flex.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
enum { L = 100, S = 130, D = 8, ROOM = 1 << 21 };
static float q[2 * L * D], k[S * D], y[2 * L * D], z[S * D], lse[2 * L], bias[300], d_bias[300], sinks[2], d_sinks[2];
static int32_t doc[S], n[2][16], at[2][256];
static _Alignas(64) char room[ROOM];
static pl_error run(pl_problem *p, pl_device *d, pl_plan **plan, pl_mask **mask, pl_mask **given) {
    static const char *const text = "doc[q] == doc[kv] && q - kv < w";
    const int64_t keys = S, far = 300;
    const pl_gradient gradient = {"bias", d_bias};
    const pl_lists lists = {.size = sizeof lists, .batch = 1, .heads = 1, .tile_q = 128, .tile_kv = 128,
                            .by_q = {n[0], at[0], n[1], at[1]}};
    pl_io io = {.size = sizeof io, .lse = lse, .gradients = &gradient, .n_gradients = 1, .d_sinks = d_sinks,
                .workspace = room, .workspace_bytes = ROOM};
    pl_error e = pl_problem_mask(p, text);
    if (!e) e = pl_problem_int(p, "w", 50);
    if (!e) e = pl_problem_array(p, "doc", PL_I32, 1, &keys, doc);
    if (!e) e = pl_problem_array(p, "bias", PL_F32, 1, &far, bias);
    if (!e) e = pl_problem_score(p, "s + bias[q - kv + 150]");
    if (!e) e = pl_problem_gradient(p, "bias", 1);
    if (!e) e = pl_problem_sinks(p, sinks);
    if (!e) e = pl_mask_create(mask, p, d);
    if (!e) e = pl_mask_export(*mask, 0, n[0], at[0], n[1], at[1]);
    if (!e) e = pl_mask_import(given, p, &lists);
    if (!e) e = pl_mask_check(*given, NULL);
    if (!e) e = pl_plan_create(plan, p, d);
    if (!e) e = pl_plan_explain(*plan, NULL, 0, NULL);
    io.q = io.d_o = pl_view_dense(q, PL_F32, 2, L, D), io.k = io.v = pl_view_dense(k, PL_F32, 1, S, D);
    io.o = io.dq = pl_out_dense(y, 2, L, D), io.dk = io.dv = pl_out_dense(z, 1, S, D);
    if (!e) e = pl_forward(*plan, d, &io);
    return e ? e : pl_backward(*plan, d, &io);
}
static pl_error all(void) {
    const pl_shape shape = {sizeof shape, 1, 2, 1, L, S, D, D};
    pl_problem *p = NULL;
    pl_device *d = NULL;
    pl_plan *plan = NULL;
    pl_mask *mask = NULL, *given = NULL;
    pl_error e = pl_device_open_cpu(&d, 2);
    if (!e) e = pl_problem_create(&p, &shape, PL_F32);
    if (!e) e = run(p, d, &plan, &mask, &given);
    pl_plan_free(plan), pl_mask_free(mask), pl_mask_free(given), pl_problem_free(p), pl_device_free(d);
    return e;
}
int main(void) {
    static float want[2 * L * D];
    _Atomic int64_t *fail_at = dlsym(RTLD_DEFAULT, "count_fail_at"), *held = dlsym(RTLD_DEFAULT, "count_held");
    int failed = 0, ended = 0, status;
    for (int i = 0; i < 2 * L * D; i++) q[i] = (float)(i % 13) / 7.0f - 1.0f;
    for (int i = 0; i < S * D; i++) k[i] = (float)(i % 17) / 9.0f - 1.0f;
    for (int i = 0; i < S; i++) doc[i] = i / 40;
    if (!fail_at || !held || all()) return 1;
    memcpy(want, y, sizeof want);
    for (int i = 1; !ended; i++) {
        pid_t child = fork();
        if (child == 0) {
            int64_t before = *held;
            *fail_at = i;
            pl_error e = all();
            int left = *fail_at > 0; /* there are no more allocations than that */
            *fail_at = 0;
            if (e != (e ? PL_ERROR_MEMORY : PL_OK) || (!e && memcmp(want, y, sizeof want)) || *held != before) {
                printf("allocation %d: %d %s, %lld bytes kept\n", i, e, pl_error_text(), (long long)(*held - before));
                fflush(stdout);
                _exit(3);
            }
            _exit(left ? 2 : e ? 1 : 0);
        }
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) > 2) return 1;
        ended = WEXITSTATUS(status) == 2;
        failed += WEXITSTATUS(status) == 1;
    }
    printf("%d allocations failed\n", failed);
    return failed > 60 ? 0 : 1;
}
C
    "$cc" $strict -D_GNU_SOURCE "$dir/fail.c" $(pc --cflags --libs paceline) -o "$dir/fail"
    LD_LIBRARY_PATH=$prefix/lib LD_PRELOAD=$(realpath "$build/tests/interpose/count.so") "$dir/fail"
}

# A program that has set a locale with a decimal comma.
# shellcheck disable=SC2046,SC2086
other_locale() {
    cat >"$dir/comma.c" <<'C'
#include <locale.h>
#include <paceline/flex.h>
#include <stdio.h>
int main(void) {
    const pl_shape shape = {sizeof shape, 1, 1, 1, 8, 8, 8, 8};
    char text[8];
    pl_problem *problem;
    pl_mask *mask;
    pl_mask_info info = {.size = sizeof info};
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) return 3;
    snprintf(text, sizeof text, "%.1f", 0.5);
    if (text[1] != ',' || pl_problem_create(&problem, &shape, PL_F32)) return 4;
    if (pl_problem_mask(problem, "float(q) * 0.25 >= 1.75e0")) return 5;
    if (pl_mask_create(&mask, problem, NULL)) printf("%s\n", pl_error_text());
    if (pl_mask_get_info(mask, &info) || info.partial != 1) return 6;
    pl_mask_free(mask);
    pl_problem_free(problem);
    snprintf(text, sizeof text, "%.1f", 0.5);
    return text[1] == ',' ? 0 : 7; /* and it is set still */
}
C
    "$cc" $strict "$dir/comma.c" $(pc --cflags --libs paceline) -o "$dir/comma"
    LOCPATH=$dir/locales LD_LIBRARY_PATH=$prefix/lib "$dir/comma"
}

check header_compiles_alone header_alone
check library_exports_what_the_header_declares exports
check library_needs_what_it_declares needs
check examples_run_against_the_shared_library shared_examples
check examples_run_against_the_static_library static_examples
check staged_install_is_found_by_pkg_config staged
cxx=$(command -v g++ || command -v clang++)
if [ -n "$cxx" ]; then check header_works_from_cxx from_cxx; else echo 'skip header_works_from_cxx'; fi
check readme_commands_work readme
check runs_allocate_nothing no_allocations
check memory_that_cannot_be_had_is_told no_memory
check every_allocation_may_fail each_allocation_fails
mkdir "$dir/locales"
if localedef -i de_DE -f UTF-8 "$dir/locales/de_DE.UTF-8" 2>/dev/null; then
    check numbers_have_a_point_in_every_locale other_locale
else
    echo 'skip numbers_have_a_point_in_every_locale'
fi
