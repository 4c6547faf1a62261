/* Which libraries a rank computes with, as plain bytes that ranks can exchange, and whether they agree.
 *
 * Two builds of one library may round differently or speak different protocols, so ranks compare before the first
 * collective. Where a library lies may differ between hosts; its version and its build may not. */
#ifndef DEV_LIBRARY_RECORD_H
#define DEV_LIBRARY_RECORD_H
#include "dev/shared_lib.h"

enum { LIBRARY_RECORD_MAX = 16, LIBRARY_RECORD_PATH = 512 };

typedef struct library_record {
    char name[32];
    char path[LIBRARY_RECORD_PATH]; /* cut from the left when longer */
    char version[SHARED_LIB_VERSION];
    char build[SHARED_LIB_BUILD]; /* "" when unknown: then only versions are compared */
} library_record;

/* Holds no pointers: may be sent as bytes between equal machines. Zeroed is empty. */
typedef struct library_record_list {
    int n;
    library_record items[LIBRARY_RECORD_MAX];
} library_record_list;

/* ERR_RANGE beyond LIBRARY_RECORD_MAX. */
MUST_CHECK err library_record_add(library_record_list *list, const char *name, const char *path,
                                  const char *version, const char *build);
MUST_CHECK err library_record_add_lib(library_record_list *list, const shared_lib *l);
/* lists[rank] against rank 0. ERR_REFUSED names the first rank and library that differ, both paths and versions. */
MUST_CHECK err library_record_agree(const library_record_list *lists, int ranks);

#endif
