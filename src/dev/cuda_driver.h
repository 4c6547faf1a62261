/* The CUDA driver's calls as a table of functions, resolved at run time; for the CUDA files of this folder.
 *
 * Types and numbers are declared here as the driver's ABI has them (cuda.h), so no header of CUDA is needed to build, and
 * the same program runs with and without a driver. Names end as the symbols do (cuMemAlloc_v2 is mem_alloc). */
#ifndef DEV_CUDA_DRIVER_H
#define DEV_CUDA_DRIVER_H
#include "dev/shared_lib.h"
#include <stddef.h>
#include <stdint.h>

typedef struct cuda_driver__context *cuda_context;
typedef struct cuda_driver__module *cuda_module;
typedef struct cuda_driver__function *cuda_function;
typedef struct cuda_driver__stream *cuda_stream;
typedef struct cuda_driver__event *cuda_event;

enum { /* results */
       CUDA_OUT_OF_MEMORY = 2,
       CUDA_NO_DEVICE = 100,
};

enum { /* attributes of devices */
       CUDA_MAX_THREADS = 1,
       CUDA_PROCESSORS = 16,
       CUDA_L2_BYTES = 38,
       CUDA_CAPABILITY_MAJOR = 75,
       CUDA_CAPABILITY_MINOR = 76,
       CUDA_SHARED_PROCESSOR = 81,
       CUDA_SHARED_BLOCK_OPTIN = 97,
};

enum { /* attributes of functions */
       CUDA_FUNCTION_MAX_THREADS = 0,
       CUDA_FUNCTION_SHARED = 1,
       CUDA_FUNCTION_LOCAL = 3,
       CUDA_FUNCTION_REGISTERS = 4,
       CUDA_FUNCTION_MAX_DYNAMIC_SHARED = 8,
};

typedef struct cuda_driver {
    shared_lib lib;
    int (*error_name)(int, const char **), (*error_string)(int, const char **);
    int (*init)(unsigned);
    int (*device_count)(int *), (*device_get)(int *, int), (*device_name)(char *, int, int);
    int (*device_attribute)(int *, int, int), (*device_total_mem)(size_t *, int);
    int (*context_retain)(cuda_context *, int), (*context_release)(int);
    int (*context_set)(cuda_context), (*context_get)(cuda_context *);
    int (*mem_info)(size_t *, size_t *);
    int (*mem_alloc)(uint64_t *, size_t), (*mem_free)(uint64_t);
    int (*host_alloc)(void **, size_t, unsigned), (*host_free)(void *);
    int (*copy_in)(uint64_t, const void *, size_t, cuda_stream);
    int (*copy_out)(void *, uint64_t, size_t, cuda_stream);
    int (*copy_within)(uint64_t, uint64_t, size_t, cuda_stream);
    int (*set_bytes)(uint64_t, unsigned char, size_t, cuda_stream);
    int (*stream_create)(cuda_stream *, unsigned), (*stream_destroy)(cuda_stream);
    int (*stream_wait)(cuda_stream), (*stream_hold)(cuda_stream, cuda_event, unsigned);
    int (*event_create)(cuda_event *, unsigned), (*event_destroy)(cuda_event);
    int (*event_record)(cuda_event, cuda_stream), (*event_wait)(cuda_event);
    int (*event_ms)(float *, cuda_event, cuda_event);
    int (*module_load)(cuda_module *, const void *), (*module_unload)(cuda_module);
    int (*module_function)(cuda_function *, cuda_module, const char *);
    int (*function_get)(int *, int, cuda_function), (*function_set)(cuda_function, int, int);
    int (*launch)(cuda_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, cuda_stream, void **, void **);
} cuda_driver;

/* Opened and initialised. ERR_IO: no driver here; ERR_REFUSED: too old, or it fails; each in one sentence. */
MUST_CHECK err cuda_driver_open(cuda_driver *out);
void cuda_driver_close(cuda_driver *d); /* zeroed is fine */
/* "out of memory (CUDA_ERROR_OUT_OF_MEMORY)" into buf, returned. */
const char *cuda_driver_text(const cuda_driver *d, int rc, char buf[160]);

#endif
