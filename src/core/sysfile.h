/* Small readers of the system's text files, below a root so that tests hand them folders that look like /proc and /sys.
 *
 * Files of these folders are a few lines each. An absent file means that there is nothing to tell: readers answer
 * with what stands for "unknown", never with an error. */
#ifndef CORE_SYSFILE_H
#define CORE_SYSFILE_H
#include <stddef.h>

/* Up to two numbers at the start of root/path; how many there are ("max" is none). */
int sysfile_numbers(const char *root, const char *path, double *a, double *b);
/* The first number behind the word that begins a line of root/path ("MemTotal:"), or -1. */
double sysfile_field(const char *root, const char *path, const char *word);
/* The first line of root/path that begins with word, without it and the blanks around, into out; 0 when there is none. */
int sysfile_line(const char *root, const char *path, const char *word, char *out, size_t n);

#endif
