/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file of a build for other machines (make wheel). For functions that
 * have a newer version since glibc 2.28 it selects the version that glibc keeps for older
 * programs.
 */
#pragma once

#include <features.h>

#ifdef __GLIBC__
#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif
#define OLD(name) __asm__(".symver " #name "," #name "@" FIRST);

/* glibc 2.34 moved these into libc. */
OLD(dladdr)
OLD(dlclose)
OLD(dlerror)
OLD(dlopen)
OLD(dlsym)
OLD(pthread_create)
OLD(pthread_join)
OLD(pthread_mutex_timedlock)
OLD(pthread_mutex_trylock)
OLD(pthread_once)
OLD(pthread_sigmask)

#ifdef __x86_64__
__asm__(".symver pthread_condattr_setclock,pthread_condattr_setclock@GLIBC_2.3.3");
#else
OLD(pthread_condattr_setclock)
#endif

/* glibc 2.29 has faster versions of these. */
OLD(exp)
OLD(log)

#undef FIRST
#undef OLD
#endif
