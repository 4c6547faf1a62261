/* A complete use of Paceline's attention from C: the mask of a DFlash drafter, forward and backward, checked by a plain loop.
 *
 *     cc attend.c $(pkg-config --cflags --libs paceline) -lm -o attend && ./attend
 *
 * Four draft blocks of 8 slots stand at anchors in a context of 200 positions. A slot sees the context before its block's
 * anchor and every slot of its own block. Nothing here is needed beyond <paceline/flex.h> and the C library. */
#include <math.h>
#include <paceline/flex.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 4, KV_HEADS = 2, CONTEXT = 200, BLOCKS = 4, WIDTH = 8, DIM = 16 };
enum { ROWS = BLOCKS * WIDTH, KEYS = CONTEXT + ROWS, NQ = HEADS * ROWS, NK = KV_HEADS * KEYS };
static const int32_t anchor[BLOCKS] = {20, 77, 130, 199};
/* [HEADS, ROWS, DIM] and [KV_HEADS, KEYS, DIM], batch 1; d_x is the gradient of x. */
static float q[NQ * DIM], k[NK * DIM], v[NK * DIM], o[NQ * DIM], lse[NQ];
static float d_o[NQ * DIM], dq[NQ * DIM], dk[NK * DIM], dv[NK * DIM];

/* Every failure comes with one sentence; an example may stop at the first. */
static void must(pl_error e) {
    if (e == PL_OK) return;
    fprintf(stderr, "%s: %s\n", pl_error_name(e), pl_error_text());
    exit(1);
}
static void draw(float *x, int n) { /* numbers between -1 and 1 */
    for (int i = 0; i < n; i++) x[i] = (float)(rand() % 2001) / 1000.0f - 1.0f;
}
static int visible(int row, int kv) { /* the mask once more, in C */
    int block = row / WIDTH;
    return kv < CONTEXT ? kv < anchor[block] : (kv - CONTEXT) / WIDTH == block;
}
static double dot(const float *a, const float *b) {
    double sum = 0;
    for (int d = 0; d < DIM; d++) sum += (double)a[d] * (double)b[d];
    return sum;
}
static void worse(double *worst, float got, double want) {
    double far = fabs((double)got - want);
    if (!(far <= *worst)) *worst = isnan(far) ? INFINITY : far;
}

/* The definition, cell by cell in double: the largest difference from what the library gave. */
static double difference(void) {
    static double want_dk[NK * DIM], want_dv[NK * DIM];
    double worst = 0, scale = 1 / sqrt(DIM), p[KEYS];
    for (int r = 0; r < NQ; r++) { /* r = head * ROWS + i */
        int head = r / ROWS / (HEADS / KV_HEADS) * KEYS;
        double sum = 0, delta = 0, want_o[DIM] = {0}, want_dq[DIM] = {0};
        for (int j = 0; j < KEYS; j++) {
            p[j] = visible(r % ROWS, j) ? exp(scale * dot(q + r * DIM, k + (head + j) * DIM)) : 0;
            sum += p[j];
        }
        for (int j = 0; j < KEYS; j++) {
            p[j] /= sum;
            delta += p[j] * dot(d_o + r * DIM, v + (head + j) * DIM);
        }
        for (int j = 0; j < KEYS; j++) {
            double ds = scale * p[j] * (dot(d_o + r * DIM, v + (head + j) * DIM) - delta);
            for (int d = 0; d < DIM; d++) {
                int at = (head + j) * DIM + d;
                want_o[d] += p[j] * (double)v[at];
                want_dq[d] += ds * (double)k[at];
                want_dk[at] += ds * (double)q[r * DIM + d];
                want_dv[at] += p[j] * (double)d_o[r * DIM + d];
            }
        }
        worse(&worst, lse[r], log(sum));
        for (int d = 0; d < DIM; d++) worse(&worst, o[r * DIM + d], want_o[d]);
        for (int d = 0; d < DIM; d++) worse(&worst, dq[r * DIM + d], want_dq[d]);
    }
    for (int i = 0; i < NK * DIM; i++)
        worse(&worst, dk[i], want_dk[i]), worse(&worst, dv[i], want_dv[i]);
    return worst;
}

int main(void) {
    /* What is to be computed. Values are given by the names that the expression uses. */
    const pl_shape shape = {sizeof shape, 1, HEADS, KV_HEADS, ROWS, KEYS, DIM, DIM};
    const int64_t blocks = BLOCKS;
    pl_problem *problem;
    must(pl_problem_create(&problem, &shape, PL_F32));
    must(pl_problem_mask(problem, "let block = q // width;\n"
                                  "kv < n ? kv < anchor[block] : (kv - n) // width == block"));
    must(pl_problem_int(problem, "width", WIDTH));
    must(pl_problem_int(problem, "n", CONTEXT));
    must(pl_problem_array(problem, "anchor", PL_I32, 1, &blocks, anchor));
    must(pl_problem_tiles(problem, 8, 16));

    /* How: a device, and a plan that tells its tiles and its workspace. */
    pl_device *device;
    pl_plan *plan;
    pl_mask_info info = {.size = sizeof info};
    must(pl_device_open_cpu(&device, 2));
    must(pl_plan_create(&plan, problem, device));
    must(pl_mask_get_info(pl_plan_mask(plan), &info));
    printf("%s; tiles: %lld full, %lld partial, %lld empty\n", pl_device_text(device),
           (long long)info.full, (long long)info.partial, (long long)info.empty);

    /* The run: all memory is ours. */
    draw(q, NQ * DIM), draw(k, NK * DIM), draw(v, NK * DIM), draw(d_o, NQ * DIM);
    size_t bytes = pl_plan_forward_workspace(plan, device),
           more = pl_plan_backward_workspace(plan, device);
    pl_io io = {.size = sizeof io, .lse = lse, .workspace_bytes = bytes > more ? bytes : more};
    io.workspace = aligned_alloc(64, io.workspace_bytes); /* the plan's sizes are multiples of 64 */
    io.q = pl_view_dense(q, PL_F32, HEADS, ROWS, DIM), io.o = pl_out_dense(o, HEADS, ROWS, DIM);
    io.k = pl_view_dense(k, PL_F32, KV_HEADS, KEYS, DIM),
    io.v = pl_view_dense(v, PL_F32, KV_HEADS, KEYS, DIM);
    must(pl_forward(plan, device, &io));
    io.d_o = pl_view_dense(d_o, PL_F32, HEADS, ROWS, DIM),
    io.dq = pl_out_dense(dq, HEADS, ROWS, DIM);
    io.dk = pl_out_dense(dk, KV_HEADS, KEYS, DIM), io.dv = pl_out_dense(dv, KV_HEADS, KEYS, DIM);
    must(pl_backward(plan, device, &io));

    double worst = difference();
    printf("o, lse and gradients differ from a plain loop by %.1e at most\n", worst);
    pl_plan_free(plan), pl_problem_free(problem), pl_device_free(device);
    free(io.workspace);
    return worst < 1e-4 ? 0 : 1;
}
