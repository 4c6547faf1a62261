/* The device of a command: see open_dev.h. The CPU has the names cpu and cpu:0, GPUs cuda:N; a GPU that is asked for and cannot
 * be used is an error that says why, never the CPU instead. Other devices enter here, for all commands at
 * once. */
#include "cli/open_dev.h"
#include "dev/dev_cuda.h"
#include <string.h>

static err open_cpu(const args *a, const char *device, const char *blas, dev **out) {
    int64_t threads;
    TRY(args_int(a, "--threads", 0, 0, 1024, &threads));
    if (strcmp(device, "cpu") && strcmp(device, "cpu:0"))
        return err_set(ERR_USAGE, "device '%s' is unknown; it is spelled cpu or cuda:N", device);
    return dev_open_cpu(out, &(dev_config){.threads = (int)threads, .blas = blas});
}

err open_dev(const args *a, dev **out) { return open_cpu(a, "cpu", NULL, out); }

static err open_any(const args *a, const char *blas, dev **out, cuda_system **sys) {
    const char *device = args_text(a, "--device", "cpu");
    const int index = cuda_system_parse(device);
    int64_t threads;
    *sys = NULL;
    if (index < 0) return open_cpu(a, device, blas, out);
    TRY(args_int(a, "--threads", 0, 0, 1024, &threads));
    TRY(cuda_system_open(sys, NULL));
    return dev_open_cuda(out, *sys, index, &(dev_config){.threads = (int)threads});
}

err open_dev_any(const args *a, dev **out, cuda_system **sys) {
    return open_any(a, NULL, out, sys);
}

err open_dev_plain(const args *a, dev **out, cuda_system **sys) {
    return open_any(a, "none", out, sys);
}
