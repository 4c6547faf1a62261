/* Loading and launching kernels on a device: see module.h.
 *
 * A device keeps its modules in a list under one lock. The image comes from the cache before the lock is taken, so a
 * compile never holds up a thread that needs another kernel; loading itself is short and under the lock, so each
 * image is loaded once. Functions hang on their module. */
#include "dev/module.h"
#include "core/arena.h"
#include "core/pool.h"
#include "dev/dev_cuda_private.h"
#include "dev/dev_private.h"
#include <stdio.h>
#include <string.h>

struct module {
    module *next;
    dev *d;
    const kernel_image *image; /* of the cache, which outlives the device */
    cuda_module loaded;
    module_function *functions;
};

struct module_function {
    module_function *next;
    module *m;
    char name[128];
    char title[256]; /* for errors: function and kernel */
    cuda_function function;
    unsigned shared; /* most dynamic bytes */
    module_usage usage;
};

/* Under the lock. */
static err load(module **out, dev *d, const kernel_image *image) {
    for (*out = d->cuda->modules; *out; *out = (*out)->next)
        if ((*out)->image == image) return ERR_OK;
    module *m;
    TRY(mem_new(1, sizeof *m, &m));
    int rc = d->cuda->driver->module_load(&m->loaded, image->data);
    if (rc) {
        mem_free(m);
        return dev_cuda__check(d, rc, "cuModuleLoadData", image->name);
    }
    m->d = d;
    m->image = image;
    m->next = d->cuda->modules;
    d->cuda->modules = m;
    atomic_fetch_add(&d->cuda->loaded, 1);
    *out = m;
    return ERR_OK;
}

err module_get(module **out, dev *d, const kernel_spec *spec) {
    const kernel_image *image;
    *out = NULL;
    TRY(dev_cuda__enter(d));
    TRY(kernel_cache_get(d->cuda->sys->cache, spec, dev_arch(d), &image));
    pthread_mutex_lock(&d->cuda->lock);
    err e = load(out, d, image);
    pthread_mutex_unlock(&d->cuda->lock);
    return e;
}

err module_get_all(module **out, dev *d, kernel_list *l) {
    const int cpus = pool_cpus();
    for (int i = 0; i < l->n; i++) out[i] = NULL;
    if (l->n > 1)
        TRY(kernel_list_compile(l, d->cuda->sys->cache, dev_arch(d), l->n < cpus ? l->n : cpus));
    for (int i = 0; i < l->n; i++) TRY(module_get(&out[i], d, &l->specs[i]));
    return ERR_OK;
}

void module__unload_all(dev *d) {
    if (d->cuda->modules && dev_cuda__enter(d)) return; /* the context is gone, and they with it */
    for (module *m = d->cuda->modules, *next; m; m = next) {
        next = m->next;
        for (module_function *f = m->functions, *after; f; f = after) {
            after = f->next;
            mem_free(f);
        }
        d->cuda->driver->module_unload(m->loaded);
        mem_free(m);
    }
    d->cuda->modules = NULL;
}

/* ---- functions ---- */

static err read_usage(module_function *f) {
    const cuda_driver *driver = f->m->d->cuda->driver;
    const struct {
        int which, *into;
    } table[] = {
        {CUDA_FUNCTION_REGISTERS, &f->usage.registers},
        {CUDA_FUNCTION_LOCAL, &f->usage.local_bytes},
        {CUDA_FUNCTION_SHARED, &f->usage.shared_bytes},
        {CUDA_FUNCTION_MAX_THREADS, &f->usage.max_threads},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !rc; i++)
        rc = driver->function_get(table[i].into, table[i].which, f->function);
    return dev_cuda__check(f->m->d, rc, "cuFuncGetAttribute", f->title);
}

/* Room for dynamic shared memory beside the static. */
static err allow_shared(module_function *f, unsigned shared) {
    const cuda_device *info = dev_cuda_info(f->m->d);
    if (shared <= f->shared) return ERR_OK;
    long all = (long)shared + f->usage.shared_bytes;
    if (all > info->shared_block)
        return err_set(ERR_REFUSED,
                       "%s needs %ld bytes of shared memory a block, and cuda:%d (%s) gives %d",
                       f->title, all, f->m->d->cuda->index, info->name, info->shared_block);
    int rc = f->m->d->cuda->driver->function_set(f->function, CUDA_FUNCTION_MAX_DYNAMIC_SHARED,
                                                 (int)shared);
    TRY(dev_cuda__check(f->m->d, rc, "cuFuncSetAttribute", f->title));
    f->shared = shared;
    return ERR_OK;
}

/* Under the lock. */
static err find(module_function **out, module *m, const char *name) {
    for (*out = m->functions; *out; *out = (*out)->next)
        if (!strcmp((*out)->name, name)) return ERR_OK;
    module_function *f;
    TRY(mem_new(1, sizeof *f, &f));
    f->m = m;
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->title, sizeof f->title, "%s of the kernel %s", name, m->image->name);
    int rc = m->d->cuda->driver->module_function(&f->function, m->loaded, name);
    err e = dev_cuda__check(m->d, rc, "cuModuleGetFunction", f->title);
    if (!e) e = read_usage(f);
    if (e) {
        mem_free(f);
        return e;
    }
    f->next = m->functions;
    m->functions = f;
    *out = f;
    return ERR_OK;
}

err module_get_function(module_function **out, module *m, const char *name, unsigned shared) {
    *out = NULL;
    if (strlen(name) >= sizeof((module_function *)0)->name)
        return err_set(ERR_INTERNAL, "a kernel function's name is too long: %.60s...", name);
    TRY(dev_cuda__enter(m->d));
    pthread_mutex_lock(&m->d->cuda->lock);
    err e = find(out, m, name);
    if (!e) e = allow_shared(*out, shared);
    pthread_mutex_unlock(&m->d->cuda->lock);
    if (e) *out = NULL;
    return e;
}

module_usage module_function_usage(const module_function *f) { return f->usage; }

err module_launch(const module_function *f, dev_stream *s, const module_grid *g,
                  void *const *args) {
    unsigned n[6];
    dev *d = f->m->d;
    TRY(dev_cuda__enter(d));
    for (int i = 0; i < 3; i++) {
        n[i] = g->grid[i] ? g->grid[i] : 1;
        n[3 + i] = g->block[i] ? g->block[i] : 1;
    }
    atomic_fetch_add(&d->cuda->launches, 1);
    /* The driver reads the arguments and changes none. */
    int rc = d->cuda->driver->launch(f->function, n[0], n[1], n[2], n[3], n[4], n[5], g->shared,
                                     s->stream, (void **)(uintptr_t)args, NULL);
    return dev_cuda__check(d, rc, "cuLaunchKernel", f->title);
}
