/* Findings as people read them: one section per topic, one column of names, long lines broken on a terminal.
 *
 * What needs a hand is marked with '!' in the margin, its fix on the next line, and counted at the end. */
#ifndef CLI_DOCTOR_PRINT_H
#define CLI_DOCTOR_PRINT_H
#include "io/json.h"
#include <stdio.h>

/* findings: objects {"topic", "item", "finding", "fix"?} in the order to print. width 0: lines are not broken. */
void doctor_print(FILE *f, const json_t *findings, int width);
int doctor_print_width(FILE *f); /* columns of the terminal, 0 when it is none */

#endif
