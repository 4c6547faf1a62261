/* Limits of containers and sanity of the clock: see doctor_limits.h.
 *
 * Numbers of control groups come from core/limits; here they become findings, beside shared memory, process namespaces
 * and the clock. It changes nothing. */
#include "cli/doctor_limits.h"
#include "cli/doctor_finding.h"
#include "core/clock.h"
#include "core/limits.h"
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

static void look_quota(json_t *list) {
    const double cpus = limits_group_cpus("");
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
