/* SPDX-License-Identifier: Apache-2.0 */
/* A place is the name of the program or library and the offset in it: addresses differ
 * between ranks, since each loads its objects elsewhere. */
#include "compat/mpi_shaped/call_site.h"

#include <dlfcn.h>
#include <string.h>

#include "base/random.h"

uint64_t call_site_hash(const void *return_address)
{
    Dl_info object;
    if (!dladdr(return_address, &object) || !object.dli_fname)
        return 1; /* code made at run time: all of it is one place */
    const char *slash = strrchr(object.dli_fname, '/');
    uint64_t name = splitmix_text(0, slash ? slash + 1 : object.dli_fname);
    uint64_t offset =
        (uint64_t)((const char *)return_address - (const char *)object.dli_fbase);
    return splitmix_mix(name ^ offset) | 1;
}
