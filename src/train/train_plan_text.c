/* The plan as a person reads it: what is trained on what, how much, where, and the bytes of every role by device and on disk.
 *
 * Figures come from the plan alone; lines fit a terminal of 100 columns, but for paths. Lines of one device stand together, in the order of the devices. It computes nothing
 * and decides nothing. */
#include "train/train_parts.h"
#include <inttypes.h>
#include <string.h>

static err drafter_lines(const train *t, str *out) {
    char a[32];
    for (int i = 0; i < t->n_drafters; i++) {
        const train_drafter *d = &t->drafter[i];
        const drafter_config *c = &d->l.cfg;
        TRY(str_printf(out,
                       "drafter   %s%s%" PRId64 " layers, block of %" PRId64 ", mask token %" PRId32
                       ", taps",
                       d->name, d->name[0] ? ": " : "", c->layers, c->block_size, c->mask_token));
        for (int k = 0; k < c->n_taps; k++) TRY(str_printf(out, " %" PRId64, c->taps[k]));
        TRY(str_printf(out, ", %s parameters", str_thousands(t->plan.drafters[i].params, a)));
        if (d->n_ranks > 1) TRY(str_printf(out, ", data parallel over %d devices", d->n_ranks));
        TRY(str_printf(out, "\n"));
    }
    return ERR_OK;
}

static err memory_line(const train_plan_line *l, int width, str *out) {
    char bytes[24];
    return str_printf(out, "  %-8s %-*s %-30s %12s\n", l->device[0] ? l->device : "host", width,
                      l->role, l->name, str_bytes((double)l->bytes, bytes));
}

static err total_line(const char *name, int width, double bytes, str *out) {
    char text[24];
    return str_printf(out, "  %-*s %12s\n", width + 40, name, str_bytes(bytes, text));
}

/* Host first, then device by device. */
static err memory_lines(const train *t, str *out) {
    const train_plan *p = &t->plan;
    int width = 34; /* of the roles' column */
    for (int i = 0; i < p->n_lines; i++)
        if ((int)strlen(p->lines[i].role) > width) width = (int)strlen(p->lines[i].role);
    TRY(str_printf(out, "memory\n"));
    for (int at = -1; at < t->n_devices; at++) {
        const char *device = at < 0 ? "" : t->device[at].name;
        for (int i = 0; i < p->n_lines; i++)
            if (!strcmp(p->lines[i].device, device)) TRY(memory_line(&p->lines[i], width, out));
    }
    TRY(total_line("in all", width, (double)p->total_bytes, out));
    TRY(total_line("libraries and buffers, at most", width, (double)p->allowance, out));
    if (!p->memory_room) return ERR_OK;
    return total_line("available to this process", width, (double)p->memory_room, out);
}

/* Bytes in the end, and the free bytes of each file system once. */
static err disk_lines(const train *t, str *out) {
    const train_plan *p = &t->plan;
    char bytes[24], there[24];
    TRY(str_printf(out, "disk%85s\n", "there already"));
    for (int i = 0; i < p->n_files; i++) {
        const train_plan_file *f = &p->files[i];
        TRY(str_printf(out, "  %-60s %12s %13s\n", f->name, str_bytes((double)f->bytes, bytes),
                       str_bytes((double)f->there, there)));
    }
    for (int i = 0; i < p->n_files; i++) {
        const train_plan_file *f = &p->files[i];
        int again = 0;
        for (int k = 0; k < i; k++) again |= p->files[k].system == f->system;
        if (!again)
            TRY(str_printf(out, "  %-60s %12s\n  %s\n", "free on the file system of",
                           str_bytes((double)f->room, bytes), f->folder));
    }
    return ERR_OK;
}

err train_plan_text(const train *t, str *out) {
    const train_plan *p = &t->plan;
    char a[32], b[32], c[32];
    TRY(str_printf(out, "target    %s, %s parameters\n", target_path(t->t),
                   str_thousands(p->target_params, a)));
    TRY(drafter_lines(t, out));
    TRY(str_printf(out, "devices   %s\n", p->placement));
    TRY(str_printf(out, "data      %s documents, %s tokens, %s supervised\n",
                   str_thousands(p->documents, a), str_thousands(p->tokens, b),
                   str_thousands(p->supervised, c)));
    TRY(str_printf(out, "rows      %s per epoch, at most %s tokens and %s anchors\n",
                   str_thousands(p->rows_per_epoch, a), str_thousands(p->max_row_tokens, b),
                   str_thousands(p->max_row_anchors, c)));
    TRY(str_printf(out, "updates   %s of up to %s tokens", str_thousands(p->updates, a),
                   str_thousands(t->tokens_per_step, b)));
    if (t->from_update) TRY(str_printf(out, ", %s of them done", str_thousands(t->from_update, a)));
    TRY(str_printf(out, "\nwork      %.3g FLOP per epoch, %.0f %% of it the target's\n",
                   p->flops_per_epoch, 100 * p->target_flops_per_epoch / p->flops_per_epoch));
    TRY(memory_lines(t, out));
    TRY(disk_lines(t, out));
    return str_printf(out, "first document, what is supervised in brackets\n%s\n", p->preview);
}
