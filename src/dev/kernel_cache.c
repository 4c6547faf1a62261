/* The kernel cache: see kernel_cache.h.
 *
 * A table of slots by key, under one lock that is never held while something is read or compiled. The first caller of a
 * slot fills it, the others sleep on the slot itself. A slot that failed tells all who waited the same sentence, and the
 * next caller tries again. Between processes the folder's lock of the key decides; who gets it looks at the folder again. */
#include "dev/kernel_cache.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/file.h"
#include "core/log.h"
#include "dev/kernel_folder.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 256 };
static const uint64_t default_bytes = UINT64_C(1) << 30;
static const double default_patience = 120, tell_after = 5;

typedef enum slot_state { SLOT_EMPTY, SLOT_BUSY, SLOT_READY, SLOT_FAILED } slot_state;

typedef struct slot {
    struct slot *next;
    char key[KERNEL_KEY], arch[KERNEL_ARCH];
    pthread_cond_t changed;
    slot_state state;
    err failure;
    char *why, *name, *data, *usage;
    kernel_image image;
} slot;

struct kernel_cache {
    pthread_mutex_t lock;
    slot *buckets[BUCKETS];
    kernel_compiler own; /* NVRTC when no other was given */
    const kernel_compiler *compiler;
    kernel_folder folder;
    atomic_int writing; /* the folder is still written to */
    atomic_int told_locks;
    uint64_t max_bytes;
    double patience;
    int no_compile;
    kernel_cache_stats stats;
};

/* ---- the handle ---- */

static err read_switches(kernel_cache *c, const kernel_cache_config *cfg) {
    const char *forbid = env_get(ENV_PACELINE_NO_COMPILE);
    if (forbid && strcmp(forbid, "0") && strcmp(forbid, "1"))
        return err_set(ERR_USAGE, "PACELINE_NO_COMPILE is '%s'; it must be 0 or 1", forbid);
    c->no_compile = (cfg && cfg->no_compile) || (forbid && *forbid == '1');
    c->max_bytes = cfg && cfg->max_bytes ? cfg->max_bytes : default_bytes;
    c->patience = cfg && cfg->patience > 0 ? cfg->patience : default_patience;
    return ERR_OK;
}

err kernel_cache_open(kernel_cache **out, const kernel_cache_config *cfg) {
    kernel_cache *c;
    *out = NULL;
    TRY(mem_new(1, sizeof *c, &c));
    pthread_mutex_init(&c->lock, NULL);
    err e = read_switches(c, cfg);
    if (!e && cfg && cfg->compiler) c->compiler = cfg->compiler;
    if (!e && !c->compiler) {
        e = kernel_compiler_open(&c->own);
        c->compiler = &c->own;
    }
    if (!e) e = kernel_folder_open(&c->folder, cfg ? cfg->folder : NULL, 1);
    if (e) {
        kernel_cache_close(c);
        return e;
    }
    atomic_store(&c->writing, c->folder.writable);
    if (c->folder.writable && file_sweep(c->folder.path)) log_debug("%s", err_text());
    if (c->folder.note[0])
        log_warn("%s (until then kernels %sare compiled into memory, at every start)",
                 c->folder.note, c->folder.readable ? "that it lacks " : "");
    *out = c;
    return ERR_OK;
}

static void free_slot(slot *s) {
    pthread_cond_destroy(&s->changed);
    mem_free(s->why);
    mem_free(s->name);
    mem_free(s->data);
    mem_free(s->usage);
    mem_free(s);
}

void kernel_cache_close(kernel_cache *c) {
    if (!c) return;
    for (int i = 0; i < BUCKETS; i++)
        for (slot *s = c->buckets[i], *next; s; s = next) {
            next = s->next;
            free_slot(s);
        }
    kernel_compiler_close(&c->own);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

const char *kernel_cache_folder(const kernel_cache *c) {
    return c->folder.readable ? c->folder.path : "";
}

int kernel_cache_keeps(kernel_cache *c) { return atomic_load(&c->writing); }

const char *kernel_cache_compiler(const kernel_cache *c) { return c->compiler->identity; }

err kernel_cache_check_arch(const kernel_cache *c, const char *arch) {
    return c->compiler->check_arch(c->compiler->ctx, arch);
}

void kernel_cache_get_stats(kernel_cache *c, kernel_cache_stats *out) {
    pthread_mutex_lock(&c->lock);
    *out = c->stats;
    pthread_mutex_unlock(&c->lock);
}

/* ---- filling a slot ---- */

/* What filling a slot works on. */
typedef struct job {
    kernel_cache *c;
    slot *s;
    const kernel_spec *spec;
    const str *recipe;
    int rebuilt; /* the entry was there and damaged */
} job;

static err copy_bytes(const void *from, size_t n, char **out) {
    TRY(mem_new(n + 1, 1, out));
    if (n) memcpy(*out, from, n);
    return ERR_OK;
}

static err fill_image(slot *s, const void *data, size_t size, const char *usage,
                      kernel_origin origin) {
    mem_free(s->data);
    mem_free(s->usage);
    s->data = s->usage = NULL;
    TRY(copy_bytes(data, size, &s->data));
    TRY(copy_bytes(usage, strlen(usage), &s->usage));
    s->image.data = s->data;
    s->image.size = size;
    s->image.usage = s->usage;
    s->image.origin = origin;
    return ERR_OK;
}

/* *found: the folder had a sound entry. A damaged one is told once and counts as none. */
static err adopt(job *j, int *found) {
    kernel_entry entry;
    *found = 0;
    err e = kernel_folder_read(&j->c->folder, j->s->key, j->recipe, &entry);
    if (e == ERR_MEMORY) return e;
    if (e) {
        if (!j->rebuilt)
            log_warn("%s; the kernel '%s' is compiled anew", err_text(), j->spec->name);
        j->rebuilt = 1;
        if (e == ERR_FORMAT && atomic_load(&j->c->writing))
            kernel_folder_drop(&j->c->folder, j->s->key, &entry);
        return ERR_OK;
    }
    if (!entry.bytes) return ERR_OK;
    e = fill_image(j->s, entry.image, entry.image_size, entry.usage, KERNEL_ADOPTED);
    kernel_entry_free(&entry);
    *found = !e;
    return e;
}

static void stop_writing(kernel_cache *c, const char *why) {
    if (atomic_exchange(&c->writing, 0))
        log_warn(
            "the kernel cache cannot be written: %s; from here on kernels are compiled into memory",
            why);
}

/* Brings what was compiled into the folder; when somebody was first, his is taken instead. */
static err publish(job *j, const kernel_product *p, double ms) {
    kernel_cache *c = j->c;
    str bytes = {0};
    int found = 0;
    TRY(kernel_entry_make(&bytes, j->spec->name, j->s->arch, j->recipe, p, ms));
    err e = kernel_folder_publish(&c->folder, j->s->key, &bytes);
    if (e == ERR_REFUSED) {
        e = adopt(j, &found);
        if (!e && !found) e = kernel_folder_publish(&c->folder, j->s->key, &bytes);
    }
    str_free(&bytes);
    if (!e && !found) e = kernel_folder_trim(&c->folder, c->max_bytes, j->s->key);
    if (e == ERR_MEMORY) return e;
    if (e) stop_writing(c, err_text());
    return ERR_OK;
}

static err compile(job *j) {
    kernel_cache *c = j->c;
    kernel_product p = {0};
    if (c->no_compile)
        return err_set(
            ERR_REFUSED,
            "the kernel '%s' for %s is %s in the cache %s, and PACELINE_NO_COMPILE=1 forbids "
            "to compile it; run 'paceline warmup' first",
            j->spec->name, j->s->arch, j->rebuilt ? "damaged" : "not",
            c->folder.path[0] ? c->folder.path : "(none)");
    double start = clock_seconds();
    TRY(c->compiler->compile(c->compiler->ctx, j->spec, j->s->arch, &p));
    double ms = (clock_seconds() - start) * 1e3;
    err e = fill_image(j->s, p.image, p.size, p.usage ? p.usage : "",
                       j->rebuilt ? KERNEL_REBUILT : KERNEL_COMPILED);
    pthread_mutex_lock(&c->lock);
    c->stats.compile_ms += ms;
    pthread_mutex_unlock(&c->lock);
    if (!e && atomic_load(&c->writing)) e = publish(j, &p, ms);
    mem_free(p.image);
    mem_free(p.usage);
    return e;
}

static void nap(double seconds) {
    struct timespec t = {0, (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* The folder's lock of this kernel. *fd stays -1 where there are no locks, or when its holder lasts too long:
 * then it is compiled beside him, and who publishes first wins. */
static err take_lock(job *j, int *fd) {
    kernel_cache *c = j->c;
    double start = clock_seconds(), pause = 0.001;
    for (int told = 0;;) {
        err e = kernel_folder_lock(&c->folder, j->s->key, fd);
        if (!e || e == ERR_MEMORY) return e;
        double waited = clock_seconds() - start;
        if (e != ERR_REFUSED) {
            if (!atomic_exchange(&c->told_locks, 1))
                log_warn("%s; processes that need a kernel at the same moment may each compile it",
                         err_text());
            return ERR_OK;
        }
        if (waited > c->patience) {
            log_warn("the kernel '%s' is compiled here too after %.0f s of waiting: %s",
                     j->spec->name, waited, err_text());
            return ERR_OK;
        }
        if (waited > tell_after && !told) {
            told = 1;
            log_info("waiting for another process that compiles the kernel '%s': %s", j->spec->name,
                     err_text());
        }
        nap(pause);
        if (pause < 0.02) pause *= 2;
    }
}

static err fill(job *j) {
    kernel_cache *c = j->c;
    int found = 0, fd = -1;
    double start = clock_seconds();
    err e = adopt(j, &found);
    if (!e && !found && atomic_load(&c->writing) && !c->no_compile) {
        e = take_lock(j, &fd);
        if (!e) e = adopt(j, &found);
        if (!e && !found) e = compile(j);
        kernel_folder_unlock(&c->folder, j->s->key, fd);
    } else if (!e && !found) {
        e = compile(j);
    }
    j->s->image.ms = (clock_seconds() - start) * 1e3;
    return e;
}

/* ---- asking ---- */

static err new_slot(kernel_cache *c, slot **at, const char *key, const kernel_spec *spec,
                    const char *arch) {
    slot *s;
    TRY(mem_new(1, sizeof *s, &s));
    pthread_cond_init(&s->changed, NULL);
    err e = copy_bytes(spec->name, strlen(spec->name), &s->name);
    if (e) {
        free_slot(s);
        return e;
    }
    memcpy(s->key, key, KERNEL_KEY);
    snprintf(s->arch, sizeof s->arch, "%s", arch);
    s->image = (kernel_image){.key = s->key, .name = s->name, .arch = s->arch};
    s->next = *at;
    *at = s;
    c->stats.entries++;
    return ERR_OK;
}

/* Under the lock. */
static err find_slot(kernel_cache *c, const char *key, const kernel_spec *spec, const char *arch,
                     slot **out) {
    unsigned bucket = 0;
    for (int i = 0; i < 8; i++) bucket = bucket * 31 + (unsigned char)key[i];
    slot **at = &c->buckets[bucket % BUCKETS];
    for (*out = *at; *out && strcmp((*out)->key, key) != 0; *out = (*out)->next) {
    }
    if (*out) return ERR_OK;
    TRY(new_slot(c, at, key, spec, arch));
    *out = *at;
    return ERR_OK;
}

/* Under the lock: what a finished attempt leaves. */
static void settle(kernel_cache *c, slot *s, err e) {
    mem_free(s->why);
    s->why = NULL;
    s->failure = e;
    s->state = e ? SLOT_FAILED : SLOT_READY;
    if (e && copy_bytes(err_text(), strlen(err_text()), &s->why)) s->why = NULL;
    if (!e) {
        c->stats.bytes += s->image.size;
        c->stats.compiled += s->image.origin == KERNEL_COMPILED;
        c->stats.adopted += s->image.origin == KERNEL_ADOPTED;
        c->stats.rebuilt += s->image.origin == KERNEL_REBUILT;
    }
    pthread_cond_broadcast(&s->changed);
}

static err get(kernel_cache *c, const kernel_spec *spec, const char *arch, const str *recipe,
               const kernel_image **out) {
    char key[KERNEL_KEY];
    slot *s;
    kernel_key(recipe, key);
    pthread_mutex_lock(&c->lock);
    err e = find_slot(c, key, spec, arch, &s);
    if (!e && s->state == SLOT_BUSY) {
        while (s->state == SLOT_BUSY) pthread_cond_wait(&s->changed, &c->lock);
        if (s->state == SLOT_FAILED)
            e = err_set(s->failure, "%s", s->why ? s->why : "a kernel could not be made");
    } else if (!e && s->state != SLOT_READY) {
        job j = {.c = c, .s = s, .spec = spec, .recipe = recipe};
        s->state = SLOT_BUSY;
        pthread_mutex_unlock(&c->lock);
        e = fill(&j);
        pthread_mutex_lock(&c->lock);
        settle(c, s, e);
    }
    if (!e) *out = &s->image;
    pthread_mutex_unlock(&c->lock);
    return e;
}

err kernel_cache_get(kernel_cache *c, const kernel_spec *spec, const char *arch,
                     const kernel_image **out) {
    str recipe = {0};
    int number;
    *out = NULL;
    TRY(kernel_check_arch(arch, &number));
    err e = kernel_recipe(spec, arch, c->compiler->identity, &recipe);
    if (!e) e = get(c, spec, arch, &recipe, out);
    str_free(&recipe);
    return e;
}
