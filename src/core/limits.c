/* Memory that is left: see limits.h.
 *
 * Each level of this process's groups is asked for what it still gives; core/cgroup walks them. A mount holds the files of one
 * version only, so both names of a file are tried. */
#include "core/limits.h"
#include "core/cgroup.h"
#include "core/sysfile.h"
#include <stdio.h>

static void see_room(const cgroup_level *l, double *least) {
    static const char *const limit[] = {"memory.max", "memory.limit_in_bytes"};
    static const char *const use[] = {"memory.current", "memory.usage_in_bytes"};
    static const char *const droppable[] = {"inactive_file", "total_inactive_file"};
    for (int i = 0; i < 2; i++) {
        const double most = cgroup_number(l, limit[i]);
        if (most < 0) continue;
        double used = cgroup_number(l, use[i]);
        if (used < 0) used = 0;
        const double files = cgroup_field(l, "memory.stat", droppable[i]);
        if (files > 0) used = files < used ? used - files : 0;
        const double room = used < most ? most - used : 0;
        if (*least < 0 || room < *least) *least = room;
    }
}

static void see_groups(const char *root, const char *mount, const char *controller, double *least) {
    char proc[CGROUP_PATH], path[CGROUP_PATH];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(path, sizeof path, "%s%s", root, mount);
    cgroup_level l = cgroup_begin(proc, path, controller);
    do see_room(&l, least);
    while (cgroup_climb(&l));
}

void limits_get_memory(const char *root, limits_memory *out) {
    const double kib = sysfile_field(root, "proc/meminfo", "MemAvailable:");
    *out = (limits_memory){.available = kib < 0 ? -1 : kib * 1024, .group_room = -1};
    see_groups(root, "/sys/fs/cgroup", "", &out->group_room);
    see_groups(root, "/sys/fs/cgroup/memory", "memory", &out->group_room);
    out->room = out->available;
    if (out->group_room >= 0 && (out->room < 0 || out->group_room < out->room))
        out->room = out->group_room;
}
