/* The CUDA packages that a Python environment records as installed, and the files each claims.
 *
 * Read from NAME.dist-info/METADATA and RECORD of nvidia-*, torch and triton. Only what the records say:
 * no file of a package is looked at here. */
#ifndef CLI_DOCTOR_RECORD_H
#define CLI_DOCTOR_RECORD_H
#include "core/err.h"
#include <stddef.h>

typedef struct record_package {
    char name[96], version[64]; /* as METADATA says; '_' of the name as '-' */
    char *text;                 /* RECORD, cut into lines; NULL when there is none */
} record_package;
typedef struct record_file {
    const char *path; /* relative to the environment's folder of packages */
    long long size;   /* -1: not recorded */
    int package;
    int library; /* a shared library by its name */
} record_file;
typedef struct doctor_record {
    char dir[512]; /* site-packages */
    record_package *packages;
    record_file *files; /* in the order of packages */
    size_t n_packages, n_files, cap_packages, cap_files;
} doctor_record;

/* The folders of packages of an environment: dir itself, or its lib/python*\/site-packages.
 * ERR_IO when there is none. */
MUST_CHECK err doctor_record_sites(const char *dir, char (*sites)[512], int cap, int *n);
MUST_CHECK err doctor_record_read(doctor_record *r, const char *site);
void doctor_record_free(doctor_record *r);

#endif
