/* Devices of the public library: a CPU handle of dev, and its words.
 *
 * Attention needs no matrix library, so none is looked for: opening a device touches no file and starts no process, only
 * the threads that were asked for. */
#include "api/api_private.h"
#include <stdio.h>

static err open_cpu(pl_device **out, int threads) {
    const dev_config cfg = {.threads = threads, .blas = "none"};
    pl_device *d;
    if (threads < 0)
        return err_set(ERR_RANGE,
                       "pl_device_open_cpu: %d threads were asked for; give 1 to 1024, "
                       "or 0 for the usable CPUs",
                       threads);
    TRY(mem_new(1, sizeof *d, &d));
    err e = dev_open_cpu(&d->dev, &cfg);
    if (e) {
        mem_free(d);
        return e;
    }
    snprintf(d->text, sizeof d->text, "CPU, %d thread%s, %s", dev_threads(d->dev),
             dev_threads(d->dev) == 1 ? "" : "s", dev_isa_name(dev_get_isa(d->dev)));
    *out = d;
    return ERR_OK;
}

pl_error pl_device_open_cpu(pl_device **out, int threads) {
    err e = pl__need(out, "pl_device_open_cpu", "out");
    if (e) return pl__result(e);
    *out = NULL;
    return pl__result(open_cpu(out, threads));
}

void pl_device_free(pl_device *d) {
    if (!d) return;
    dev_close(d->dev);
    mem_free(d);
}

int pl_device_threads(const pl_device *d) { return d ? dev_threads(d->dev) : 0; }
const char *pl_device_text(const pl_device *d) { return d ? d->text : ""; }
