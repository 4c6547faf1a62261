/* Every library that the program uses or may open: by opening it and calling one symbol, with path and version.
 *
 * Linked ones are looked at in place; the matrix library as the device chose it, with those it refused; CUDA's in a child
 * each, as the loader would find them. Versions now are held against the headers of the build and the oldest that serves. */
#ifndef CLI_DOCTOR_LIBRARIES_H
#define CLI_DOCTOR_LIBRARIES_H
#include "dev/dev.h"
#include "io/json.h"

void doctor_libraries_linked(json_t *list, json_t *libraries);
void doctor_libraries_matrix(json_t *list, json_t *libraries, const dev *d);
/* driver: there is one, so an absent library is worth a fix. cuda: the generation that it serves, or "". Call it while no
 * other thread computes. */
void doctor_libraries_cuda(json_t *list, json_t *libraries, int driver, const char *cuda);

#endif
