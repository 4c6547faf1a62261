/* Stands for another PCRE2 that a search path puts in front: the right name and no function at all.
 *
 * Its symbols carry no versions, so the loader itself has nothing to object to at start. */
enum { bare };

int stub_of_pcre2(void);
int stub_of_pcre2(void) { return STUB_VERSION; }
