/* Memory that is left: see limits.h.
 *
 * A group's path is what /proc/self/cgroup says; inside a container that path may not exist below the mount, and then only
 * its root answers. Version 1 says "no limit" by a number near 2^63. */
#include "core/limits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 1024 };

/* Up to two numbers of a small file of the system; returns how many ("max" is none). */
static int numbers(const char *path, double *a, double *b) {
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    const int n = fscanf(f, "%lf %lf", a, b);
    fclose(f);
    return n > 0 ? n : 0;
}

/* The number behind a word at the beginning of a line, or -1. */
static double named(const char *path, const char *name) {
    char line[256];
    double v = -1;
    const size_t n = strlen(name);
    FILE *f = fopen(path, "r");
    while (f && v < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, name, n) && (line[n] == ' ' || line[n] == ':'))
            v = strtod(line + n + 1, NULL);
    if (f) fclose(f);
    return v;
}

/* Path of this process's group for a controller of version 1, or of version 2 for "". */
static void group_of(const char *root, const char *controller, char *out, size_t n) {
    char line[1024], at[PATH];
    snprintf(at, sizeof at, "%s/proc/self/cgroup", root);
    FILE *f = fopen(at, "r");
    out[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        char list[256], word[64];
        snprintf(list, sizeof list, ",%.250s,", names + 1);
        snprintf(word, sizeof word, ",%s,", controller);
        if (strstr(list, word)) snprintf(out, n, "%s", strcmp(path, "/") ? path : "");
    }
    if (f) fclose(f);
}

/* Calls see with the folder of each group from the process's own to the root of the mount. */
static void walk(const char *root, const char *mount, const char *controller,
                 void (*see)(const char *dir, double *least), double *least) {
    char group[512], dir[PATH];
    group_of(root, controller, group, sizeof group);
    for (;;) {
        snprintf(dir, sizeof dir, "%s%s%s", root, mount, group);
        see(dir, least);
        char *slash = strrchr(group, '/');
        if (!slash) return;
        *slash = 0;
    }
}

static void keep_least(double v, double *least) {
    if (v >= 0 && v < 1e15 && (*least < 0 || v < *least)) *least = v;
}

static void see_room(const char *dir, double *least) {
    static const char *const limit[] = {"memory.max", "memory.limit_in_bytes"};
    static const char *const use[] = {"memory.current", "memory.usage_in_bytes"};
    static const char *const droppable[] = {"inactive_file", "total_inactive_file"};
    char path[PATH + 32];
    double most, used, w;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, limit[i]);
        if (!numbers(path, &most, &w) || most >= 1e15) continue;
        snprintf(path, sizeof path, "%s/%s", dir, use[i]);
        if (!numbers(path, &used, &w)) used = 0;
        snprintf(path, sizeof path, "%s/memory.stat", dir);
        const double files = named(path, droppable[i]);
        if (files > 0) used = files < used ? used - files : 0;
        keep_least(used < most ? most - used : 0, least);
    }
}

void limits_get_memory(const char *root, limits_memory *out) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    const double kib = named(path, "MemAvailable");
    *out = (limits_memory){.available = kib < 0 ? -1 : kib * 1024, .group_room = -1};
    walk(root, "/sys/fs/cgroup", "", see_room, &out->group_room);
    walk(root, "/sys/fs/cgroup/memory", "memory", see_room, &out->group_room);
    out->room = out->available;
    if (out->group_room >= 0 && (out->room < 0 || out->group_room < out->room))
        out->room = out->group_room;
}
