/* Walking this process's control groups, versions 1 and 2, from its own group up to the root of a mount.
 *
 * A limit holds for every group below it, so a reader looks at each level and keeps the least. Absent files mean
 * nothing to tell. It knows no limits by name: what a file means is its reader's business. */
#ifndef CORE_CGROUP_H
#define CORE_CGROUP_H

enum { CGROUP_PATH = 1024 };
/* The level looked at: mount + group, cut by one name per step until "". */
typedef struct cgroup_level {
    char mount[CGROUP_PATH], group[CGROUP_PATH];
} cgroup_level;

/* This process's group by PROC/self/cgroup in the tree at mount; controller of version 1, or "" for version 2. */
cgroup_level cgroup_begin(const char *proc, const char *mount, const char *controller);
int cgroup_climb(cgroup_level *l); /* one level up; 0 at the root of the mount */
/* Files of the level: up to two numbers (how many there are; "max" is none); one number, -1 where there is none or no limit;
 * the number behind the word that begins a line, or -1. */
int cgroup_numbers(const cgroup_level *l, const char *file, double *a, double *b);
double cgroup_number(const cgroup_level *l, const char *file);
double cgroup_field(const cgroup_level *l, const char *file, const char *word);

#endif
