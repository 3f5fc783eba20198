# SPDX-License-Identifier: Apache-2.0
# The version, as the header has it, and which it stands in for: docs/c.md#versions.

set(PACKAGE_VERSION "")
foreach(part MAJOR MINOR PATCH)
  file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../include/partialcoll.h" line
       REGEX "#define PCOLL_VERSION_${part} ")
  string(REGEX REPLACE ".* " "" ${part} "${line}")
  list(APPEND PACKAGE_VERSION "${${part}}")
endforeach()
list(JOIN PACKAGE_VERSION . PACKAGE_VERSION)

set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION
   AND PACKAGE_FIND_VERSION_MAJOR EQUAL MAJOR
   AND (MAJOR GREATER 0 OR PACKAGE_FIND_VERSION_MINOR EQUAL MINOR))
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
