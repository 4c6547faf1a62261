/* The device of a command: see open_dev.h. This build knows the CPU alone, by the names cpu and cpu:0;
 * anything else is refused rather than run somewhere slow. Other devices enter here, for all
 * commands at once. */
#include "cli/open_dev.h"
#include <string.h>

err open_dev(const args *a, dev **out) {
    const char *device = args_text(a, "--device", "cpu");
    int64_t threads;
    TRY(args_int(a, "--threads", 0, 0, 1024, &threads));
    if (strcmp(device, "cpu") && strcmp(device, "cpu:0"))
        return err_set(ERR_USAGE, "device '%s' is unknown; this build knows cpu", device);
    return dev_open_cpu(out, &(dev_config){.threads = (int)threads});
}
