/* One finding of `paceline doctor`: what was looked at, one sentence, and the fix where there is one.
 *
 * Every part of doctor adds to one JSON array; printing is cmd_doctor.c's. */
#ifndef CLI_DOCTOR_FINDING_H
#define CLI_DOCTOR_FINDING_H
#include "core/err.h"
#include "io/json.h"

/* fix NULL or "": nothing to do. Bytes that are not UTF-8 become '?'. */
void doctor_finding_add(json_t *list, const char *item, const char *text, const char *fix);
/* The same with a made sentence, cut at 1 KiB. */
void doctor_finding_say(json_t *list, const char *item, const char *fix, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* A sentence of an error, "what is wrong; what to do": cut at its last "; " into finding and fix. */
void doctor_finding_error(json_t *list, const char *item, const char *text);

#endif
