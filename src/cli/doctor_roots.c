/* The live roots, and options of mount points: see doctor_roots.h.
 *
 * Lines are cut at 4 KiB, which no mount needs. Plain fields and numbers are read by core/sysfile. */
#include "cli/doctor_roots.h"
#include <stdio.h>
#include <string.h>

const doctor_roots doctor_roots_live = {"/proc", "/sys", "/sys/fs/cgroup", "/dev/shm"};

int doctor_roots_mount(const char *proc, const char *at, const char *option, char *out, size_t n) {
    char line[4096], point[1024], options[1024], list[1100], word[64];
    char path[2048];
    snprintf(path, sizeof path, "%s/self/mounts", proc);
    FILE *f = fopen(path, "re");
    int found = 0;
    out[0] = 0;
    snprintf(word, sizeof word, ",%s", option);
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%*s %1023s %*s %1023s", point, options) != 2 || strcmp(point, at))
            continue;
        snprintf(list, sizeof list, ",%s", options);
        const char *hit = strstr(list, word);
        found = hit != NULL;
        if (hit) {
            hit += strlen(word);
            snprintf(out, n, "%.*s", (int)strcspn(hit, ","), hit);
        }
    }
    if (f) fclose(f);
    return found;
}
