! SPDX-License-Identifier: Apache-2.0
! Allreduces of a Fortran program, with mpif.h: in place and not, two sums in a loop.
program sums
    implicit none
    include 'mpif.h'
    integer :: ierr, rank, ranks, i, total(3)
    double precision :: x(4), y(4), sx(4), sy(4)
    real :: r
    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    do i = 1, 10
        x = rank + i
        y = 1000 * i
        call MPI_Allreduce(x, sx, 4, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
        if (ierr /= MPI_SUCCESS .or. sx(4) /= ranks * (ranks - 1) / 2 + ranks * i) stop 1
        call MPI_Allreduce(y, sy, 4, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, ierr)
        if (ierr /= MPI_SUCCESS .or. sy(1) /= 1000 * i) stop 2
        total = rank
        call MPI_Allreduce(MPI_IN_PLACE, total, 3, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierr)
        if (ierr /= MPI_SUCCESS .or. total(3) /= ranks * (ranks - 1) / 2) stop 3
        r = 2
        call MPI_Allreduce(MPI_IN_PLACE, r, 1, MPI_REAL, MPI_PROD, MPI_COMM_WORLD, ierr)
        if (ierr /= MPI_SUCCESS .or. r /= 2.0**ranks) stop 4
    end do
    if (rank == 0) print '(a)', 'sums'
    call MPI_Finalize(ierr)
end program
