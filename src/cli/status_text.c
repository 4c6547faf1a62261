/* The table and the JSON object of `paceline status`: see status_text.h.
 *
 * A living run is shown as its record has it, with the age of what is shown; a run that has ended by what its folder holds.
 * What is not known is a dash, or null in the JSON. */
#include "cli/status_text.h"
#include "core/clock.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BAR = 16 };
#define LATE 5.0 /* seconds after which a record is late: it is written twice a second */

static const char *number(double v, int decimals, char buf[32]) {
    if (!isfinite(v)) return "-";
    snprintf(buf, 32, "%.*f", decimals, v);
    return buf;
}

static const char *span(double seconds, char buf[16]) {
    return isfinite(seconds) ? clock_span(seconds, buf) : "-";
}

/* The first column: as wide as the longest name of a list of structs that begin with one. */
static int widest(const void *list, size_t size, int n, int least) {
    for (int i = 0; i < n; i++) {
        const size_t length = strlen((const char *)list + (size_t)i * size);
        if ((int)length > least) least = (int)length;
    }
    return least;
}

/* "512/10,000" */
static const char *progress_of(int64_t update, int64_t updates, char buf[72]) {
    char a[32], b[32];
    if (update < 0) return "-";
    snprintf(buf, 72, "%s/%s", str_thousands(update, a),
             updates >= 0 ? str_thousands(updates, b) : "?");
    return buf;
}

static double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* ---- a living run ---- */

static err head(const live_record *r, str *out) {
    char up[16], bytes[24];
    int64_t arenas = 0;
    for (int i = 0; i < r->n_arenas; i++) arenas += r->arenas[i].bytes;
    TRY(str_printf(out, "state      %s%s%s\n", r->state, r->doing[0] ? ": " : "", r->doing));
    TRY(str_printf(out, "process    %lld on %s, paceline %s, since %s (%s)\n",
                   (long long)r->process.pid, r->process.host, r->version, r->started,
                   clock_span(r->uptime, up)));
    if (r->supervisor.pid) TRY(str_printf(out, "supervisor %lld\n", (long long)r->supervisor.pid));
    const uint64_t resident = live_is_running(r) ? process_resident(r->process.pid) : 0;
    if (resident)
        TRY(str_printf(out, "memory     %s resident\n", str_bytes((double)resident, bytes)));
    if (r->n_arenas)
        TRY(str_printf(out, "arenas     %s in %d\n", str_bytes((double)arenas, bytes),
                       r->n_arenas));
    const double age = difftime(time(NULL), (time_t)r->stamp);
    if (age > LATE)
        TRY(str_printf(out,
                       "written    %s ago: its writer is late, so what follows may have changed\n",
                       clock_span(age, up)));
    return ERR_OK;
}

static err drafters(const live_record *r, str *out) {
    char update[72], a[32], b[32], c[32], left[16], saved[32];
    if (!r->n_drafters) return ERR_OK;
    const int w = widest(r->drafters, sizeof *r->drafters, r->n_drafters, 16);
    TRY(str_printf(out, "\n%-*s %-11s %17s %6s %8s %7s %10s %8s %11s\n", w, "drafter", "state",
                   "update", "epoch", "loss", "tau", "tokens/s", "left", "checkpoint"));
    for (int i = 0; i < r->n_drafters; i++) {
        const live_drafter *d = &r->drafters[i];
        TRY(str_printf(out, "%-*s %-11s %17s %6" PRId64 " %8s %7s %10s %8s %11s\n", w,
                       d->name[0] ? d->name : "(one)", d->state,
                       progress_of(d->update, d->updates, update), d->epoch, number(d->loss, 4, a),
                       number(d->tau, 3, b), number(d->tokens_per_second, 0, c),
                       span(d->seconds_left, left),
                       d->saved >= 0 ? str_thousands(d->saved, saved) : "-"));
    }
    return ERR_OK;
}

/* A role's name without its device. */
static int bare_length(const live_role *x) {
    const char *on = strstr(x->name, " on ");
    return on ? (int)(on - x->name) : (int)strlen(x->name);
}

static err roles(const live_record *r, str *out) {
    int w = 16;
    if (!r->n_roles) return ERR_OK;
    for (int i = 0; i < r->n_roles; i++)
        if (bare_length(&r->roles[i]) > w) w = bare_length(&r->roles[i]);
    TRY(str_printf(out, "\n%-*s %-8s %-34s %9s %8s %7s\n", w, "role", "device", "does", "step",
                   "for", "waited"));
    for (int i = 0; i < r->n_roles; i++) {
        const live_role *x = &r->roles[i];
        char does[2 * LIVE_NAME], age[16];
        const char *on = strstr(x->name, " on ");
        snprintf(does, sizeof does, "%s%s",
                 x->left      ? "left after "
                 : x->waiting ? "waits for "
                              : "",
                 x->phase);
        if (x->age < 9.95)
            snprintf(age, sizeof age, "%.1fs", x->age);
        else
            clock_span(x->age, age);
        TRY(str_printf(out, "%-*.*s %-8s %-34s %9" PRId64 " %8s %5.0f %%\n", w, bare_length(x),
                       x->name, on ? on + 4 : "-", does, x->step, age, share(x->waited, x->lived)));
    }
    return ERR_OK;
}

static err rings(const live_record *r, str *out) {
    if (!r->n_rings) return ERR_OK;
    const int w = widest(r->rings, sizeof *r->rings, r->n_rings, 16);
    TRY(str_printf(out, "\n%-*s %-*s %7s %12s %16s %16s\n", w, "ring", BAR + 2, "fill", "",
                   "passed", "producer waited", "consumer waited"));
    for (int i = 0; i < r->n_rings; i++) {
        const live_ring *x = &r->rings[i];
        char bar[BAR + 1], a[32], b[16], c[16];
        const int64_t full = x->capacity > 0 ? x->fill * BAR / x->capacity : 0;
        for (int k = 0; k < BAR; k++) bar[k] = k < full ? '#' : '.';
        bar[BAR] = 0;
        TRY(str_printf(out, "%-*s [%s] %3" PRId64 "/%-3" PRId64 " %12s %16s %16s\n", w, x->name,
                       bar, x->fill, x->capacity, str_thousands(x->passed, a),
                       span(x->producer_wait, b), span(x->consumer_wait, c)));
    }
    return ERR_OK;
}

static err devices(const live_record *r, str *out) {
    char bytes[24];
    if (!r->n_devices) return ERR_OK;
    TRY(str_printf(out, "\n%-10s %8s %10s  %s\n", "device", "threads", "bytes", "roles"));
    for (int i = 0; i < r->n_devices; i++) {
        const live_device *d = &r->devices[i];
        TRY(str_printf(out, "%-10s %8" PRId64 " %10s  %s\n", d->name, d->threads,
                       str_bytes((double)d->bytes, bytes), d->roles));
    }
    return ERR_OK;
}

static err living(const live_record *r, str *out) {
    TRY(head(r, out));
    TRY(drafters(r, out));
    TRY(roles(r, out));
    TRY(rings(r, out));
    return devices(r, out);
}

/* ---- a run that has ended ---- */

static int finished(const run_folder *f) {
    int n = 0;
    for (int i = 0; i < f->n_saved; i++) n += f->saved[i].finished;
    return f->n_saved > 0 && n == f->n_saved;
}

err status_text_end(const run_folder *f, str *out) {
    const live_record *r = f->live;
    const live_end *e = &f->end;
    if (f->has_record) /* no clean end has removed it */
        return str_printf(out,
                          "process %lld on %s ended without a word (killed, or its machine went "
                          "down); it was %s at %s",
                          (long long)r->process.pid, r->process.host, r->state, r->written);
    if (!f->ended)
        return str_printf(out,
                          finished(f) ? "finished" : "not finished; nothing is known of its end");
    TRY(str_printf(out, "%s at %s (process %lld on %s)", e->how, e->at, (long long)e->pid,
                   e->host));
    return e->text[0] ? str_printf(out, ": %s", e->text) : ERR_OK;
}

static err saved(const run_folder *f, str *out) {
    char update[72], a[32], b[32], best[32];
    const int w = widest(f->saved, sizeof *f->saved, f->n_saved, 16);
    TRY(str_printf(out, "\n%-*s %17s %9s %7s %9s %12s\n", w, "drafter", "checkpoint", "finished",
                   "tau", "best tau", "at update"));
    for (int i = 0; i < f->n_saved; i++) {
        const run_saved *s = &f->saved[i];
        TRY(str_printf(out, "%-*s %17s %9s %7s %9s %12s\n", w, s->name[0] ? s->name : "(one)",
                       s->update >= 0 ? progress_of(s->update, s->updates, update) : "none",
                       s->finished ? "yes" : "no", number(s->tau, 3, a), number(s->best_tau, 3, b),
                       s->best_update >= 0 ? str_thousands(s->best_update, best) : "-"));
        if (s->problem[0]) TRY(str_printf(out, "  %s\n", s->problem));
    }
    return ERR_OK;
}

static err ended(const run_folder *f, str *out) {
    TRY(str_printf(out, "state      %s\nlast       ",
                   f->locked && f->has_record
                       ? "locked: the last process is on its way out, or another has just begun"
                   : f->locked   ? "locked by a process without a live record"
                   : finished(f) ? "not running; finished"
                                 : "not running; the same train command continues it"));
    TRY(status_text_end(f, out));
    TRY(str_printf(out, "\n"));
    return saved(f, out);
}

err status_text(const run_folder *f, str *out) {
    TRY(str_printf(out, "run        %s\n", f->path));
    if (f->problem[0]) TRY(str_printf(out, "damaged    %s\n", f->problem));
    if (f->where == LIVE_RUNS) return living(f->live, out);
    if (f->where == LIVE_GONE) return ended(f, out);
    TRY(str_printf(out, "seen       not from here: what it wrote last follows; ask on %s\n",
                   f->live->process.host));
    return living(f->live, out);
}

/* ---- JSON ---- */

static json_t *real(double v) { return isfinite(v) ? json_real(v) : json_null(); }
static json_t *count(int64_t v) { return v >= 0 ? json_integer(v) : json_null(); }
static json_t *text_of(const char *s) {
    json_t *j = json_string(s);
    return j ? j : json_string("?");
}

static json_t *saved_json(const run_saved *s) {
    json_t *o = json_object();
    json_object_set_new(o, "drafter", text_of(s->name));
    json_object_set_new(o, "update", count(s->update));
    json_object_set_new(o, "updates", count(s->updates));
    json_object_set_new(o, "finished", json_boolean(s->finished));
    json_object_set_new(o, "tau", real(s->tau));
    json_object_set_new(o, "best_tau", real(s->best_tau));
    json_object_set_new(o, "best_update", count(s->best_update));
    json_object_set_new(o, "problem", s->problem[0] ? text_of(s->problem) : json_null());
    return o;
}

static json_t *end_json(const live_end *e) {
    json_t *o = json_object();
    json_object_set_new(o, "how", text_of(e->how));
    json_object_set_new(o, "text", text_of(e->text));
    json_object_set_new(o, "at", text_of(e->at));
    json_object_set_new(o, "pid", json_integer(e->pid));
    json_object_set_new(o, "host", text_of(e->host));
    json_object_set_new(o, "update", count(e->update));
    json_object_set_new(o, "updates", count(e->updates));
    return o;
}

json_t *status_text_json(const run_folder *f) {
    static const char *const where[] = {"gone", "here", "unseen"};
    json_t *o = json_object(), *list = json_array();
    const int runs = f->where == LIVE_RUNS;
    json_object_set_new(o, "run", text_of(f->path));
    json_object_set_new(o, "running", f->where == LIVE_UNSEEN ? json_null() : json_boolean(runs));
    json_object_set_new(o, "process", json_string(f->has_record ? where[f->where] : "none"));
    json_object_set_new(o, "locked", json_boolean(f->locked));
    json_object_set_new(o, "problem", f->problem[0] ? text_of(f->problem) : json_null());
    json_object_set_new(o, "resident_bytes",
                        runs ? json_integer((json_int_t)process_resident(f->live->process.pid))
                             : json_null());
    json_object_set_new(o, "record", f->has_record ? live_json(f->live) : json_null());
    json_object_set_new(o, "end", f->ended ? end_json(&f->end) : json_null());
    for (int i = 0; i < f->n_saved; i++) json_array_append_new(list, saved_json(&f->saved[i]));
    json_object_set_new(o, "checkpoints", list);
    return o;
}
