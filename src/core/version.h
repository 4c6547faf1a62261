/* What the program calls itself: printed by --version and kept in the records of runs.
 *
 * Changed by hand at a release. Formats of files have numbers of their own. */
#ifndef CORE_VERSION_H
#define CORE_VERSION_H

#define VERSION_TEXT "0.1.0"

#endif
