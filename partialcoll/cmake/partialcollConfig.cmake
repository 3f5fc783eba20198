# SPDX-License-Identifier: Apache-2.0
# find_package(partialcoll): the target partialcoll::partialcoll, the library for the MPI that CMake
# finds. The folder to look in is what `partialcoll config --cmakedir` prints.

include(CMakeFindDependencyMacro)
find_dependency(MPI COMPONENTS C)

include(CheckSymbolExists)
set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
check_symbol_exists(MPI_ABI_VERSION mpi.h PARTIALCOLL_MPI_OWN_ABI)
check_symbol_exists(OPEN_MPI mpi.h PARTIALCOLL_MPI_OPENMPI)
unset(CMAKE_REQUIRED_LIBRARIES)
if(PARTIALCOLL_MPI_OWN_ABI)
  set(partialcoll_ABI mpiabi)
elseif(PARTIALCOLL_MPI_OPENMPI)
  set(partialcoll_ABI openmpi)
else()
  set(partialcoll_ABI mpich)
endif()

get_filename_component(partialcoll_ROOT "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
set(partialcoll_LIBRARY "${partialcoll_ROOT}/lib/libpartialcoll_${partialcoll_ABI}.so")
if(NOT EXISTS "${partialcoll_LIBRARY}")
  set(partialcoll_FOUND FALSE)
  set(partialcoll_NOT_FOUND_MESSAGE
      "${partialcoll_LIBRARY} does not exist: partialcoll was not built for the MPI that CMake finds")
elseif(NOT TARGET partialcoll::partialcoll)
  add_library(partialcoll::partialcoll SHARED IMPORTED)
  set_target_properties(
    partialcoll::partialcoll
    PROPERTIES IMPORTED_LOCATION "${partialcoll_LIBRARY}"
               INTERFACE_INCLUDE_DIRECTORIES "${partialcoll_ROOT}/include"
               INTERFACE_LINK_LIBRARIES MPI::MPI_C)
endif()
