/* Findings as JSON objects {"item", "finding", "fix"}: see doctor_finding.h.
 *
 * Names of files and packages come from outside, so text that is no UTF-8 is made printable instead of
 * being lost. */
#include "cli/doctor_finding.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static json_t *text_value(const char *text) {
    json_t *v = json_string(text);
    if (v) return v;
    char plain[1024];
    snprintf(plain, sizeof plain, "%s", text);
    for (char *c = plain; *c; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    return json_string(plain);
}

void doctor_finding_add(json_t *list, const char *item, const char *text, const char *fix) {
    json_t *f = json_object();
    json_object_set_new(f, "item", text_value(item));
    json_object_set_new(f, "finding", text_value(text));
    if (fix && *fix) json_object_set_new(f, "fix", text_value(fix));
    json_array_append_new(list, f);
}

void doctor_finding_say(json_t *list, const char *item, const char *fix, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    doctor_finding_add(list, item, text, fix);
}

void doctor_finding_error(json_t *list, const char *item, const char *text) {
    const char *cut = NULL;
    for (const char *c = strstr(text, "; "); c; c = strstr(c + 1, "; ")) cut = c;
    if (cut)
        doctor_finding_say(list, item, cut + 2, "%.*s", (int)(cut - text), text);
    else
        doctor_finding_add(list, item, text, "mend what it says");
}
