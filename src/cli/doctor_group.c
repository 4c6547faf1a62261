/* Limits of control groups: see doctor_group.h.
 *
 * Version 1 mounts one tree per controller, version 2 one for all, at the root or under "unified" beside version 1.
 * Both are read and the lesser limit counts: a hybrid machine may have either. */
#include "cli/doctor_group.h"
#include <stdio.h>
#include <string.h>

enum { PATHS = 1024 };
#define NO_LIMIT 1e15 /* version 1 writes a number near 2^63 for none */

/* Path of this process's group for a controller of version 1, or of version 2 for "". */
static void group_of(const doctor_roots *roots, const char *controller, char *out, size_t n) {
    char line[1024], path[PATHS];
    snprintf(path, sizeof path, "%s/self/cgroup", roots->proc);
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

/* A tree of groups and the level looked at: mount + group, cut by one name per step until "". */
typedef struct level {
    char mount[PATHS], group[PATHS];
    int last;
} level;

static level begin(const doctor_roots *roots, const char *mount, const char *controller) {
    level l;
    memset(&l, 0, sizeof l);
    snprintf(l.mount, sizeof l.mount, "%s%s%s", roots->cgroup, *mount ? "/" : "", mount);
    group_of(roots, controller, l.group, sizeof l.group);
    return l;
}

/* One level up; 0 at the root of the mount. */
static int climb(level *l) {
    char *slash = strrchr(l->group, '/');
    if (!l->group[0]) return 0;
    if (slash)
        *slash = 0;
    else
        l->group[0] = 0;
    return 1;
}

static int numbers(const level *l, const char *file, double *a, double *b) {
    char path[PATHS + 64];
    snprintf(path, sizeof path, "%s/%s", l->group, file);
    return doctor_roots_numbers(l->mount, path, a, b);
}

static double field(const level *l, const char *file, const char *word) {
    char path[PATHS + 64];
    snprintf(path, sizeof path, "%s/%s", l->group, file);
    return doctor_roots_field(l->mount, path, word);
}

static double number(const level *l, const char *file) {
    double v, w;
    return numbers(l, file, &v, &w) && v >= 0 && v < NO_LIMIT ? v : -1;
}

static int less(double v, double than) { return v >= 0 && (than < 0 || v < than); }

static void read_cpu(doctor_group *out, const level *l, double quota, double period) {
    if (quota <= 0 || period <= 0 || !less(quota / period, out->cpus)) return;
    double periods = field(l, "cpu.stat", "nr_periods"),
           slowed = field(l, "cpu.stat", "nr_throttled");
    out->cpus = quota / period;
    out->throttled = periods > 0 && slowed >= 0 ? slowed / periods : -1;
}

static void read_memory(doctor_group *out, const level *l, const char *limit, const char *used,
                        const char *cache) {
    double v = number(l, limit), taken = number(l, used), back = field(l, "memory.stat", cache);
    if (!less(v, out->memory)) return;
    out->memory = v;
    out->memory_used = taken < 0 ? -1 : taken - (back > 0 && back < taken ? back : 0);
}

static void read_pids(doctor_group *out, const level *l) {
    double v = number(l, "pids.max");
    if (!less(v, out->pids)) return;
    out->pids = v;
    out->pids_used = number(l, "pids.current");
}

static void read_version_2(const doctor_roots *roots, const char *mount, doctor_group *out) {
    level l = begin(roots, mount, "");
    do {
        double quota = -1, period = -1, v = number(&l, "memory.swap.max");
        if (numbers(&l, "cpu.max", &quota, &period) == 2) read_cpu(out, &l, quota, period);
        read_memory(out, &l, "memory.max", "memory.current", "inactive_file");
        read_memory(out, &l, "memory.high", "memory.current", "inactive_file");
        read_pids(out, &l);
        if (less(v, out->swap)) out->swap = v;
        v = field(&l, "memory.events", "oom_kill ");
        if (v > out->killed) out->killed = v;
    } while (climb(&l));
}

static void read_version_1(const doctor_roots *roots, doctor_group *out) {
    static const char *const cpu_mounts[] = {"cpu", "cpu,cpuacct"};
    for (int i = 0; i < 2; i++) {
        level l = begin(roots, cpu_mounts[i], "cpu");
        do read_cpu(out, &l, number(&l, "cpu.cfs_quota_us"), number(&l, "cpu.cfs_period_us"));
        while (climb(&l));
    }
    level m = begin(roots, "memory", "memory");
    do {
        double both = number(&m, "memory.memsw.limit_in_bytes"), v;
        read_memory(out, &m, "memory.limit_in_bytes", "memory.usage_in_bytes",
                    "total_inactive_file");
        v = number(&m, "memory.limit_in_bytes");
        if (both >= 0 && v >= 0 && both >= v && less(both - v, out->swap)) out->swap = both - v;
        v = field(&m, "memory.oom_control", "oom_kill ");
        if (v > out->killed) out->killed = v;
    } while (climb(&m));
    level p = begin(roots, "pids", "pids");
    do read_pids(out, &p);
    while (climb(&p));
}

void doctor_group_read(const doctor_roots *roots, doctor_group *out) {
    *out = (doctor_group){-1, -1, -1, -1, -1, -1, -1, -1};
    read_version_2(roots, "", out);
    read_version_2(roots, "unified", out);
    read_version_1(roots, out);
}
