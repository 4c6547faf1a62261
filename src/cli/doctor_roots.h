/* Where doctor looks at the system, so that tests hand it folders that look like /proc and /sys.
 *
 * Files of these folders are a few lines each. An absent file means that there is nothing to tell: readers answer
 * with what stands for "unknown", never with an error. */
#ifndef CLI_DOCTOR_ROOTS_H
#define CLI_DOCTOR_ROOTS_H
#include <stddef.h>

typedef struct doctor_roots {
    const char *proc;   /* "/proc" */
    const char *sys;    /* "/sys" */
    const char *cgroup; /* "/sys/fs/cgroup" */
    const char *shm;    /* "/dev/shm" */
} doctor_roots;
extern const doctor_roots doctor_roots_live;

/* Where mount point at of root/self/mounts has option ("size="), the text behind it; 0 when not. The last mount counts. */
int doctor_roots_mount(const char *proc, const char *at, const char *option, char *out, size_t n);

#endif
