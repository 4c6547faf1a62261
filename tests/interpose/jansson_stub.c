/* Stands for another jansson that a search path puts in front: an old one, and one that lacks what is called.
 *
 * STUB_VERSION: old says 2.3.1; bare says a good version. Neither has any other function, as a library of the right
 * name and wrong content. */
enum { old, bare };

const char *jansson_version_str(void);
const char *jansson_version_str(void) { return STUB_VERSION == old ? "2.3.1" : "2.99"; }
