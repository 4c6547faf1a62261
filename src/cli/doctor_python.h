/* The CUDA packages of a Python environment, their records held against their files.
 *
 * Sizes are compared, hashes are not. Libraries of nvidia-* packages are opened, each in a child of its own;
 * those of torch and triton need Python and are judged by record and ELF header. Nothing is changed. */
#ifndef CLI_DOCTOR_PYTHON_H
#define CLI_DOCTOR_PYTHON_H
#include "core/err.h"
#include "io/json.h"

/* dir: root of an environment or its site-packages. Adds findings to list; fails when dir is neither.
 * Opens libraries in forked children: call it while the process has one thread. */
MUST_CHECK err doctor_python_look(json_t *list, const char *dir);

#endif
