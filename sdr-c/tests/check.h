/* CHECK: a test program ends where something does not hold. */
#ifndef CHECK_H
#define CHECK_H

#include "longhaul-sdr.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, sdr_last_error());    \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

#endif
