/* Limits of control groups: see doctor_group.h.
 *
 * Version 1 mounts one tree per controller, version 2 one for all, at the root or under "unified" beside version 1.
 * Both are read and the lesser limit counts: a hybrid machine may have either. */
#include "cli/doctor_group.h"
#include "core/cgroup.h"
#include <stdio.h>

static cgroup_level begin(const doctor_roots *roots, const char *mount, const char *controller) {
    char path[CGROUP_PATH];
    snprintf(path, sizeof path, "%s%s%s", roots->cgroup, *mount ? "/" : "", mount);
    return cgroup_begin(roots->proc, path, controller);
}

static int less(double v, double than) { return v >= 0 && (than < 0 || v < than); }

static void read_cpu(doctor_group *out, const cgroup_level *l, double quota, double period) {
    if (quota <= 0 || period <= 0 || !less(quota / period, out->cpus)) return;
    double periods = cgroup_field(l, "cpu.stat", "nr_periods"),
           slowed = cgroup_field(l, "cpu.stat", "nr_throttled");
    out->cpus = quota / period;
    out->throttled = periods > 0 && slowed >= 0 ? slowed / periods : -1;
}

static void read_memory(doctor_group *out, const cgroup_level *l, const char *limit,
                        const char *used, const char *cache) {
    double v = cgroup_number(l, limit), taken = cgroup_number(l, used),
           back = cgroup_field(l, "memory.stat", cache);
    if (!less(v, out->memory)) return;
    out->memory = v;
    out->memory_used = taken < 0 ? -1 : taken - (back > 0 && back < taken ? back : 0);
}

static void read_pids(doctor_group *out, const cgroup_level *l) {
    double v = cgroup_number(l, "pids.max");
    if (!less(v, out->pids)) return;
    out->pids = v;
    out->pids_used = cgroup_number(l, "pids.current");
}

static void read_version_2(const doctor_roots *roots, const char *mount, doctor_group *out) {
    cgroup_level l = begin(roots, mount, "");
    do {
        double quota = -1, period = -1, v = cgroup_number(&l, "memory.swap.max");
        if (cgroup_numbers(&l, "cpu.max", &quota, &period) == 2) read_cpu(out, &l, quota, period);
        read_memory(out, &l, "memory.max", "memory.current", "inactive_file");
        read_memory(out, &l, "memory.high", "memory.current", "inactive_file");
        read_pids(out, &l);
        if (less(v, out->swap)) out->swap = v;
        v = cgroup_field(&l, "memory.events", "oom_kill ");
        if (v > out->killed) out->killed = v;
    } while (cgroup_climb(&l));
}

static void read_version_1(const doctor_roots *roots, doctor_group *out) {
    static const char *const cpu_mounts[] = {"cpu", "cpu,cpuacct"};
    for (int i = 0; i < 2; i++) {
        cgroup_level l = begin(roots, cpu_mounts[i], "cpu");
        do
            read_cpu(out, &l, cgroup_number(&l, "cpu.cfs_quota_us"),
                     cgroup_number(&l, "cpu.cfs_period_us"));
        while (cgroup_climb(&l));
    }
    cgroup_level m = begin(roots, "memory", "memory");
    do {
        double both = cgroup_number(&m, "memory.memsw.limit_in_bytes"), v;
        read_memory(out, &m, "memory.limit_in_bytes", "memory.usage_in_bytes",
                    "total_inactive_file");
        v = cgroup_number(&m, "memory.limit_in_bytes");
        if (both >= 0 && v >= 0 && both >= v && less(both - v, out->swap)) out->swap = both - v;
        v = cgroup_field(&m, "memory.oom_control", "oom_kill ");
        if (v > out->killed) out->killed = v;
    } while (cgroup_climb(&m));
    cgroup_level p = begin(roots, "pids", "pids");
    do read_pids(out, &p);
    while (cgroup_climb(&p));
}

void doctor_group_read(const doctor_roots *roots, doctor_group *out) {
    *out = (doctor_group){-1, -1, -1, -1, -1, -1, -1, -1};
    read_version_2(roots, "", out);
    read_version_2(roots, "unified", out);
    read_version_1(roots, out);
}
