/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/interposer/fortran_library.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

enum { NAMES = 4 };

/* The loaded file that this address lies in, to be closed again. */
static void *fortran_file_of(const void *address)
{
    Dl_info info;
    return dladdr(address, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
                                  : NULL;
}

void *fortran_next(const char *name, const void *caller)
{
    void *found = dlsym(RTLD_NEXT, name);
    void *file = found ? NULL : fortran_file_of(caller);
    if (file) {
        found = dlsym(file, name);
        dlclose(file);
    }
    return found;
}

enum fortran_found { NONE, ANOTHER, THIS };

/* Is it one of these variables, as far as there are any? Which there are depends on the
 * compiler. */
static enum fortran_found fortran_look(void *where, const void *address, const char *const names[NAMES])
{
    enum fortran_found found = NONE;
    for (int i = 0; i < NAMES && found != THIS; i++) {
        const void *variable = dlsym(where, names[i]);
        if (variable)
            found = variable == address ? THIS : ANOTHER;
    }
    return found;
}

static bool fortran_is_one_of(const void *address, const char *const names[NAMES],
                      const void *caller)
{
    enum fortran_found found = fortran_look(RTLD_DEFAULT, address, names);
    void *file = found == NONE ? fortran_file_of(caller) : NULL;
    if (file) {
        found = fortran_look(file, address, names);
        dlclose(file);
    }
    return found == THIS;
}

void *fortran_buffer(void *address, const void *caller)
{
    static const char *const in_place[NAMES] = {
        "mpi_fortran_in_place_", "mpi_fortran_in_place", "mpi_fortran_in_place__",
        "MPI_FORTRAN_IN_PLACE"};
    static const char *const bottom[NAMES] = {
        "mpi_fortran_bottom_", "mpi_fortran_bottom", "mpi_fortran_bottom__",
        "MPI_FORTRAN_BOTTOM"};
    if (fortran_is_one_of(address, in_place, caller))
        return MPI_IN_PLACE;
    return fortran_is_one_of(address, bottom, caller) ? MPI_BOTTOM : address;
}
