/* Options of the sanitizers that the tests need, wherever they are run.
 *
 * Tests ask for impossible amounts of memory on purpose and check the error; the sanitizers' allocators would
 * end the process instead of answering NULL. What ASAN_OPTIONS and the like say still comes on top. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);

const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }
const char *__tsan_default_options(void) { return "allocator_may_return_null=1"; }
