/* Control groups: see cgroup.h.
 *
 * A group's path is what /proc/self/cgroup says; inside a container that path may not exist below the mount, and then only
 * its root answers. */
#include "core/cgroup.h"
#include "core/sysfile.h"
#include <stdio.h>
#include <string.h>

#define NO_LIMIT 1e15 /* version 1 writes a number near 2^63 for none */

/* Path of this process's group for a controller of version 1, or of version 2 for "". */
static void group_of(const char *proc, const char *controller, char *out, size_t n) {
    char line[1024], path[CGROUP_PATH];
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    FILE *f = fopen(path, "re");
    out[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        char list[256], word[64];
        snprintf(list, sizeof list, ",%.250s,", names + 1);
        snprintf(word, sizeof word, ",%s,", controller);
        if (strstr(list, word)) snprintf(out, n, "%s", strcmp(group, "/") ? group : "");
    }
    if (f) fclose(f);
}

cgroup_level cgroup_begin(const char *proc, const char *mount, const char *controller) {
    cgroup_level l;
    memset(&l, 0, sizeof l);
    snprintf(l.mount, sizeof l.mount, "%s", mount);
    group_of(proc, controller, l.group, sizeof l.group);
    return l;
}

int cgroup_climb(cgroup_level *l) {
    char *slash = strrchr(l->group, '/');
    if (!l->group[0]) return 0;
    if (slash)
        *slash = 0;
    else
        l->group[0] = 0;
    return 1;
}

int cgroup_numbers(const cgroup_level *l, const char *file, double *a, double *b) {
    char path[CGROUP_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", l->group, file);
    return sysfile_numbers(l->mount, path, a, b);
}

double cgroup_number(const cgroup_level *l, const char *file) {
    double v, w;
    return cgroup_numbers(l, file, &v, &w) && v >= 0 && v < NO_LIMIT ? v : -1;
}

double cgroup_field(const cgroup_level *l, const char *file, const char *word) {
    char path[CGROUP_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", l->group, file);
    return sysfile_field(l->mount, path, word);
}
