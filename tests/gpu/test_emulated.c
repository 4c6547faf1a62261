/* The device that tests/emu plays: kernels with one fault each, which has to be told, beside the same without it.
 *
 * Each runs in a child, since a fault stays. So that the other tests of this folder mean something on a machine without a
 * GPU: a race, a copy that nobody waited for, an index outside, memory that nobody wrote, a barrier that some threads miss,
 * lanes that do not come, an address that is not aligned. On a real device there is nothing to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "gpu_case.h"
#include "support/says.h"
#include <sys/wait.h>
#include <unistd.h>

typedef struct faulty {
    const char *name, *body, *says; /* says: NULL for a kernel without fault */
} faulty;

/* Two blocks of 64 threads; out: 64 integers of device memory, all written; fresh: 64 that nobody has written. i: the thread. */
static const faulty kernels[] = {
    {"a barrier between", "s[i] = i; __syncthreads(); if (block == 0) out[i] = s[i ^ 32];", NULL},
    {"no barrier between", "s[i] = i; if (block == 0) out[i] = s[i ^ 32];", "s"},
    {"read before it is written again", "s[i] = i; __syncthreads(); int x = s[i ^ 32]; s[i] = x;",
     "race: "},
    {"a warp's barrier within it", "s[i] = i; __syncwarp(); if (block == 0) out[i] = s[i ^ 1];",
     NULL},
    {"a warp's barrier beyond it", "s[i ^ 32] = i; __syncwarp(); s[i] = 0;", "race: "},
    {"neighbours of 2 bytes", "h[i] = i; __syncthreads(); h[i ^ 1] = 0;", NULL},
    {"two blocks write", "out[i] = block;", "race: writes what another block wrote"},
    {"one block reads", "if (block) out[i] = 1; else s[i] = out[0];", "another block"},
    {"atomics of all", "atomicAdd(&out[0], 1);", NULL},
    {"atomics and a plain store", "if (i == 3) out[0] = 1; else atomicAdd(&out[0], 1);", "race"},
    {"an index behind the end", "if (block == 0) out[i == 63 ? 64 + 512 : i] = 1;",
     "no allocation"},
    {"an index outside shared memory", "s[i + 100] = 1;", "an index leaves its array"},
    {"memory that nobody wrote", "s[i] = fresh[i];",
     "device memory is read that nobody has written"},
    {"shared memory that nobody wrote", "if (block == 0) out[i] = s[i];",
     "shared memory is read that nobody has written"},
    {"not aligned", "s[i] = *(const int *)((const char *)out + 2);", "not aligned"},
    {"a barrier that some miss", "if (i < 40) __syncthreads(); else __syncwarp();",
     "nobody can go on"},
    {"different barriers", "if (i < 32) __syncthreads();\nelse __syncthreads();",
     "different barriers"},
    {"lanes that have ended", "if (i % 32 == 5) return; __syncthreads(); __shfl_sync(~0u, i, 0);",
     "lane 5"},
    {"other masks", "__shfl_xor_sync(i % 32 < 16 ? ~0u : 0xffff0000u, i, 1);", "mask ffffffff"},
    {"a shuffle from outside", "if (i % 32 < 8) __shfl_sync(0xffu, i, 9);",
     "which mask 000000ff lacks"},
    {"a copy that was waited for",
     "ptx_copy_16(at + i * 16, (const int *)out + i % 8 * 4); ptx_copies_commit(); ptx_copies_wait(); __syncthreads();\n"
     "s[i] = big[i * 4 ^ 128];",
     NULL},
    {"a copy and no barrier",
     "ptx_copy_16(at + i * 16, (const int *)out + i % 8 * 4); ptx_copies_commit(); ptx_copies_wait();\n"
     "s[i] = big[i * 4 ^ 128];",
     "s"},
    {"a copy that nobody waited for",
     "ptx_copy_16(at + i * 16, (const int *)out + i % 8 * 4); ptx_copies_commit(); __syncthreads();\n"
     "s[i] = big[i * 4]; ptx_copies_wait();",
     "still fills"},
    {"a copy of the last group",
     "ptx_copy_16(at + i * 16, (const int *)out + i % 8 * 4); ptx_copies_commit(); ptx_copies_wait_but_one();\n"
     "s[i] = big[i * 4]; ptx_copies_wait();",
     "still fills"},
    {"a copy at the end",
     "ptx_copy_16(at + i * 16, (const int *)out + i % 8 * 4); ptx_copies_commit();", "still run"},
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

static err put(str *text) {
    TRY(str_printf(text, "#define PX_FN static inline\n"));
    for (int k = 0; k < KERNELS; k++)
        TRY(str_printf(
            text,
            "extern \"C\" __global__ void __launch_bounds__(64) kernel_%d(int *out, const int *fresh) {\n"
            "__shared__ int s[64]; __shared__ unsigned short h[64]; __shared__ __align__(16) int big[256];\n"
            "const int i = threadIdx.x, block = blockIdx.x;\n"
            "const unsigned at = (unsigned)__cvta_generic_to_shared(big);\n%s\n}\n",
            k, kernels[k].body));
    return ERR_OK;
}

/* ERR_OK, or what the launch says. */
static err launch(const gpu_world *w, module *m, int k) {
    module_function *f;
    dev_arena *never;
    dev_address fresh, out = gpu_new(w, 64 * sizeof(int), 0);
    char name[32];
    void *const args[] = {&out, &fresh};
    snprintf(name, sizeof name, "kernel_%d", k);
    TRY(dev_arena_create(&never, w->d, "never written", 64 * sizeof(int)));
    TRY(dev_arena_alloc(never, 64 * sizeof(int), &fresh));
    TRY(module_get_function(&f, m, name, 0));
    TRY(module_launch(f, w->s, &(module_grid){.grid = {2}, .block = {64}}, args));
    return dev_stream_wait(w->s);
}

static int child(const gpu_world *w, module *m, int k) {
    for (int i = 0; i < 4; i++) { /* orders are random: a race is told in each */
        const err e = launch(w, m, k);
        if (!kernels[k].says && e) printf("%s: %s\n", kernels[k].name, err_text());
        if (!kernels[k].says && e) return 1;
        if (!kernels[k].says) continue;
        if (!e) printf("%s: nothing is told\n", kernels[k].name);
        if (!e) return 2;
        if (!strstr(err_text(), kernels[k].says)) printf("%s: %s\n", kernels[k].name, err_text());
        return strstr(err_text(), kernels[k].says) ? 0 : 3;
    }
    return 0;
}

static void faults_are_told(void **state) {
    gpu_world w;
    str text = {0};
    module *m;
    int bad = 0;
    (void)state;
    if (!gpu_world_open(&w) || !w.own) {
        gpu_world_close(&w);
        skip();
    }
    assert_ok(put(&text));
    const kernel_text source = {"faults.cu", text.s};
    assert_ok(module_get(&m, w.d, &(kernel_spec){.name = "faults", .source = &source}));
    for (int k = 0; k < KERNELS; k++) {
        int status;
        fflush(stdout);
        const pid_t pid = fork();
        if (!pid) {
            const int code = child(&w, m, k);
            fflush(stdout);
            _exit(code);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        bad += status != 0;
    }
    str_free(&text);
    gpu_world_close(&w);
    assert_int_equal(bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(faults_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
