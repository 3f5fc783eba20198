/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file of the core that is compiled for the interposer (clibs.py), and
 * before none of the interposer's own files, which define some of these names: what the core
 * calls goes to MPI, not back into the interposer or to a profiler.
 *
 * Two calls are replaced. The core dup's the communicators and datatypes it works on; a
 * dup runs the copy callbacks of the user's attributes, which an MPI_Allreduce must not
 * do. A split does not, nor does a datatype of one element.
 */
#pragma once

#include <mpi.h>

#define MPI_Accumulate PMPI_Accumulate
#define MPI_Cancel PMPI_Cancel
#define MPI_Comm_create_keyval PMPI_Comm_create_keyval
#define MPI_Comm_delete_attr PMPI_Comm_delete_attr
#define MPI_Comm_dup PMPI_Comm_dup
#define MPI_Comm_free PMPI_Comm_free
#define MPI_Comm_get_attr PMPI_Comm_get_attr
#define MPI_Comm_get_errhandler PMPI_Comm_get_errhandler
#define MPI_Comm_group PMPI_Comm_group
#define MPI_Comm_idup pmpi_private_idup
#define MPI_Comm_rank PMPI_Comm_rank
#define MPI_Comm_set_attr PMPI_Comm_set_attr
#define MPI_Comm_set_errhandler PMPI_Comm_set_errhandler
#define MPI_Comm_size PMPI_Comm_size
#define MPI_Comm_split_type PMPI_Comm_split_type
#define MPI_Comm_test_inter PMPI_Comm_test_inter
#define MPI_Compare_and_swap PMPI_Compare_and_swap
#define MPI_Errhandler_free PMPI_Errhandler_free
#define MPI_Error_class PMPI_Error_class
#define MPI_Error_string PMPI_Error_string
#define MPI_Fetch_and_op PMPI_Fetch_and_op
#define MPI_Finalized PMPI_Finalized
#define MPI_Get PMPI_Get
#define MPI_Get_accumulate PMPI_Get_accumulate
#define MPI_Get_count PMPI_Get_count
#define MPI_Get_elements_x PMPI_Get_elements_x
#define MPI_Get_library_version PMPI_Get_library_version
#define MPI_Group_free PMPI_Group_free
#define MPI_Group_size PMPI_Group_size
#define MPI_Group_translate_ranks PMPI_Group_translate_ranks
#define MPI_Iallgather PMPI_Iallgather
#define MPI_Iallreduce PMPI_Iallreduce
#define MPI_Initialized PMPI_Initialized
#define MPI_Iprobe PMPI_Iprobe
#define MPI_Irecv PMPI_Irecv
#define MPI_Isend PMPI_Isend
#define MPI_Issend PMPI_Issend
#define MPI_Op_commutative PMPI_Op_commutative
#define MPI_Put PMPI_Put
#define MPI_Query_thread PMPI_Query_thread
#define MPI_Raccumulate PMPI_Raccumulate
#define MPI_Recv_init PMPI_Recv_init
#define MPI_Reduce_local PMPI_Reduce_local
#define MPI_Request_free PMPI_Request_free
#define MPI_Request_get_status PMPI_Request_get_status
#define MPI_Rget PMPI_Rget
#define MPI_Rget_accumulate PMPI_Rget_accumulate
#define MPI_Rput PMPI_Rput
#define MPI_Start PMPI_Start
#define MPI_Test PMPI_Test
#define MPI_Testall PMPI_Testall
#define MPI_Testsome PMPI_Testsome
#define MPI_Type_commit PMPI_Type_commit
#define MPI_Type_contiguous PMPI_Type_contiguous
#define MPI_Type_create_struct PMPI_Type_create_struct
#define MPI_Type_dup pmpi_private_type_dup
#define MPI_Type_free PMPI_Type_free
#define MPI_Type_get_envelope PMPI_Type_get_envelope
#define MPI_Type_get_envelope_c PMPI_Type_get_envelope_c
#define MPI_Type_get_extent PMPI_Type_get_extent
#define MPI_Type_get_extent_x PMPI_Type_get_extent_x
#define MPI_Type_get_true_extent_x PMPI_Type_get_true_extent_x
#define MPI_Type_size PMPI_Type_size
#define MPI_Type_size_x PMPI_Type_size_x
#define MPI_Win_allocate PMPI_Win_allocate
#define MPI_Win_flush PMPI_Win_flush
#define MPI_Win_flush_local PMPI_Win_flush_local
#define MPI_Win_free PMPI_Win_free
#define MPI_Win_get_attr PMPI_Win_get_attr
#define MPI_Win_get_name PMPI_Win_get_name
#define MPI_Win_lock_all PMPI_Win_lock_all
#define MPI_Win_set_errhandler PMPI_Win_set_errhandler
#define MPI_Win_sync PMPI_Win_sync
#define MPI_Win_unlock_all PMPI_Win_unlock_all

int pmpi_private_idup(MPI_Comm comm, MPI_Comm *copy, MPI_Request *request);
int pmpi_private_type_dup(MPI_Datatype type, MPI_Datatype *copy);
