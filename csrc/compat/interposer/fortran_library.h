/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding what MPI's Fortran library has. It is among the files that all of a program can
 * see; but where what uses it was loaded for itself alone, as Python loads an extension, it
 * is so as well. Then it is one of those that the caller's own file needs.
 */
#ifndef PCOLL_COMPAT_INTERPOSER_FORTRAN_LIBRARY_H
#define PCOLL_COMPAT_INTERPOSER_FORTRAN_LIBRARY_H

/* Its function of this name, which the interposer has replaced. */
void *fortran_next(const char *name, const void *caller);

/* MPI_IN_PLACE and MPI_BOTTOM of Open MPI's Fortran are variables; a buffer that is one of
 * them becomes C's. */
void *fortran_buffer(void *address, const void *caller);

#endif
