/* The device of a command, from its options --device and --threads.
 *
 * One place knows which devices this build has. It opens and checks; the command closes the handle. */
#ifndef CLI_OPEN_DEV_H
#define CLI_OPEN_DEV_H
#include "cli/args.h"
#include "dev/cuda_system.h"
#include "dev/dev.h"

/* For commands that compute on the CPU alone. ERR_USAGE for unknown devices and numbers of threads outside 0..1024 (0: usable CPUs). */
MUST_CHECK err open_dev(const args *a, dev **out);
/* For commands that compute on GPUs too: cuda:N opens *sys, which the caller closes after the device. */
MUST_CHECK err open_dev_any(const args *a, dev **out, cuda_system **sys);
/* The same without a matrix library, whose search and checks take longer than most masks: for what multiplies no matrices by it. */
MUST_CHECK err open_dev_plain(const args *a, dev **out, cuda_system **sys);

#endif
