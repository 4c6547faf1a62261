/* Small readers of /proc and /sys: see sysfile.h.
 *
 * Lines are cut at 4 KiB, which no file read here needs. Numbers are doubles: byte counts of any machine fit. */
#include "core/sysfile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_at(const char *root, const char *path) {
    char whole[2048];
    int n = snprintf(whole, sizeof whole, "%s/%s", root, path);
    return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "re") : NULL;
}

int sysfile_numbers(const char *root, const char *path, double *a, double *b) {
    FILE *f = open_at(root, path);
    if (!f) return 0;
    int n = fscanf(f, "%lf %lf", a, b);
    fclose(f);
    return n > 0 ? n : 0;
}

int sysfile_line(const char *root, const char *path, const char *word, char *out, size_t n) {
    char line[4096];
    FILE *f = open_at(root, path);
    size_t length = strlen(word);
    int found = 0;
    out[0] = 0;
    while (f && !found && fgets(line, sizeof line, f)) {
        if (strncmp(line, word, length)) continue;
        const char *text = line + length + strspn(line + length, " \t:");
        int end = (int)strcspn(text, "\n");
        while (end && (text[end - 1] == ' ' || text[end - 1] == '\t')) end--;
        snprintf(out, n, "%.*s", end, text);
        found = 1;
    }
    if (f) fclose(f);
    return found;
}

double sysfile_field(const char *root, const char *path, const char *word) {
    char text[256], *end;
    if (!sysfile_line(root, path, word, text, sizeof text)) return -1;
    double v = strtod(text, &end);
    return end == text ? -1 : v;
}
