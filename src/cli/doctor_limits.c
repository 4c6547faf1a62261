/* Limits of containers and sanity of the clock: see doctor_limits.h.
 *
 * A group is looked for where /proc/self/cgroup says and at the root of the mount, which is what a container
 * sees; the smaller limit holds. Groups between the two are not walked. */
#include "cli/doctor_limits.h"
#include "cli/doctor_finding.h"
#include "core/clock.h"
#include "core/pool.h"
#include "core/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* Number of the first process namespace of a Linux kernel (PROC_PID_INIT_INO). */
#define FIRST_PID_NAMESPACE "pid:[4026531836]"

/* Up to two numbers of a small file of the system; returns how many ("max" is none). */
static int numbers(const char *path, double *a, double *b) {
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    int n = fscanf(f, "%lf %lf", a, b);
    fclose(f);
    return n > 0 ? n : 0;
}

/* Path of this process's group for a controller of version 1, or of version 2 for "". */
static void group_of(const char *controller, char *out, size_t n) {
    char line[1024];
    FILE *f = fopen("/proc/self/cgroup", "r");
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

/* The least of a limit of one number at the group and at the root of a controller's mount, or -1. */
static double least(const char *mount, const char *controller, const char *file) {
    char group[512], path[800];
    double least_of = -1, v, w;
    group_of(controller, group, sizeof group);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s/%s", mount, i ? "" : group, file);
        if (numbers(path, &v, &w) && v >= 0 && v < 1e15 && (least_of < 0 || v < least_of))
            least_of = v;
    }
    return least_of;
}

double doctor_limits_memory(void) {
    double v2 = least("/sys/fs/cgroup", "", "memory.max");
    double v1 = least("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes");
    return v2 < 0 || (v1 >= 0 && v1 < v2) ? v1 : v2;
}

/* CPUs that the quota is worth, or -1. */
static double cpu_quota(void) {
    char group[512], path[800];
    double cpus = -1, quota, period;
    group_of("", group, sizeof group);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", i ? "" : group);
        if (numbers(path, &quota, &period) == 2 && period > 0 &&
            (cpus < 0 || quota / period < cpus))
            cpus = quota / period;
    }
    quota = least("/sys/fs/cgroup/cpu", "cpu", "cpu.cfs_quota_us");
    period = least("/sys/fs/cgroup/cpu", "cpu", "cpu.cfs_period_us");
    if (quota > 0 && period > 0 && (cpus < 0 || quota / period < cpus)) cpus = quota / period;
    return cpus;
}

static void look_quota(json_t *list) {
    double cpus = cpu_quota();
    char fix[128] = "";
    if (cpus < 0) {
        doctor_finding_add(list, "quota", "no CPU quota", NULL);
        return;
    }
    if (cpus < pool_cpus())
        snprintf(fix, sizeof fix, "give PACELINE_THREADS=%d, or raise the container's CPU quota",
                 cpus < 1 ? 1 : (int)cpus);
    doctor_finding_say(list, "quota", fix, "the CPU quota is worth %.1f CPUs, %d are usable", cpus,
                       pool_cpus());
}

static void look_shared_memory(json_t *list) {
    struct statvfs s;
    char a[24], b[24];
    if (statvfs("/dev/shm", &s)) {
        doctor_finding_add(list, "shared memory", "there is no /dev/shm",
                           "mount one (docker: --shm-size=1g): NCCL needs it for several GPUs");
        return;
    }
    double size = (double)s.f_blocks * (double)s.f_frsize;
    double unused = (double)s.f_bavail * (double)s.f_frsize;
    doctor_finding_say(list, "shared memory",
                       unused < 256e6 ? "less than 256 MB: NCCL may fail on several GPUs; raise it "
                                        "(docker: --shm-size=1g) or free it"
                                      : NULL,
                       "/dev/shm has %s, %s free", str_bytes(size, a), str_bytes(unused, b));
}

static void look_processes(json_t *list) {
    char space[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (n > 0 && strcmp(space, FIRST_PID_NAMESPACE))
        doctor_finding_add(
            list, "processes",
            "this is a process namespace of its own: processes outside it are hidden, "
            "also those that hold a GPU's memory",
            "when memory is held by nobody you can see, look from the host");
    else if (access("/proc/1/stat", R_OK))
        doctor_finding_add(list, "processes", "processes of other users are hidden (hidepid)",
                           "when memory is held by nobody you can see, ask the administrator");
    else
        doctor_finding_add(list, "processes", "all processes of this machine can be seen", NULL);
}

/* A clock behind the program's own file is wrong, or the file came from the future: both spoil time stamps. */
static void look_clock(json_t *list) {
    struct stat s;
    char now[21];
    clock_utc(now);
    int behind = !stat("/proc/self/exe", &s) && time(NULL) < s.st_mtime;
    doctor_finding_say(list, "clock",
                       behind ? "set the clock (NTP), or touch the program's file" : NULL, "%s%s",
                       now, behind ? ", earlier than the time of the program's own file" : "");
}

void doctor_limits_look(json_t *list) {
    look_quota(list);
    look_shared_memory(list);
    look_processes(list);
    look_clock(list);
}
