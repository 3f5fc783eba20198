/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file of a build that is to run on other machines (make wheel):
 * of functions that glibc has given a newer version since 2.28, the version that it
 * keeps for older programs.
 */
#ifndef PCOLL_BASE_GLIBC_H
#define PCOLL_BASE_GLIBC_H

#include <features.h>

#ifdef __GLIBC__
#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif
#define OLD(name) __asm__(".symver " #name "," #name "@" FIRST);

/* 2.34 moved these into libc. */
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

/* 2.29 made these faster. */
OLD(exp)
OLD(log)

#undef FIRST
#undef OLD
#endif

#endif
