/* Processes by identity: a process id alone says little, since it is used again; with its start time, the boot of its machine, its
 * namespace and its host it means one process and no other.
 *
 * A process that cannot be seen from here (another host, another container, a hidden /proc) is told apart from one that is gone. Signals go
 * through a descriptor of the very process that was looked at, where the kernel has them, so that none can reach a later one. */
#ifndef CORE_PROCESS_H
#define CORE_PROCESS_H
#include "core/err.h"
#include <stdint.h>

typedef struct process_id {
    int64_t pid;    /* 0: nobody */
    uint64_t start; /* clock ticks after boot */
    char boot[40];  /* of the machine, "" where it is not told */
    char space[40]; /* process namespace */
    char host[256];
} process_id;

/* Of a process that is visible here; ERR_REFUSED when there is none. */
MUST_CHECK err process_identify(int64_t pid, process_id *out);
MUST_CHECK err process_self(process_id *out);
/* Start time of a visible process in clock ticks after boot, 0 when there is none. */
uint64_t process_start(int64_t pid);

typedef enum process_state { PROCESS_GONE, PROCESS_RUNS, PROCESS_UNSEEN } process_state;
/* UNSEEN: it belongs to another host or namespace, or this one hides it. A zombie is gone. */
process_state process_look(const process_id *p);

typedef struct process_handle {
    process_id id;
    int fd; /* -1: this kernel has no descriptors of processes */
} process_handle;
/* ERR_REFUSED unless it runs and can be signalled from here. */
MUST_CHECK err process_open(process_handle *out, const process_id *p);
void process_close(process_handle *h);
/* 1: sent, 0: it is gone already. */
MUST_CHECK err process_signal(const process_handle *h, int sig, int *sent);
/* Whether it ended within so many seconds (0: only looks). */
int process_wait(const process_handle *h, double seconds);
/* Memory that it holds now, 0 when it is gone. */
uint64_t process_resident(int64_t pid);

#endif
