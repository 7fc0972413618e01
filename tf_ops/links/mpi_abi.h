// The part of MPI that the link uses, as its two binary interfaces have it.
//
// Which MPI a job uses is known when it runs. A binary that was compiled against one of them cannot
// call the other: handles are pointers in Open MPI (libmpi.so.40) and numbers in MPICH and what
// keeps to its ABI, as Intel MPI, MVAPICH and Cray MPICH do (libmpi.so.12). The few declarations
// that matter are therefore repeated here, so that both links are built wherever ringar is, without
// any MPI. tests/test_mpi_abi.py compiles them against the headers of both.
//
// RINGAR_MPI_OPENMPI or RINGAR_MPI_MPICH chooses.

#pragma once

#include <cstddef>

namespace ringar::mpi {

#if defined(RINGAR_MPI_OPENMPI)

constexpr const char* kName = "Open MPI";
constexpr const char* kLibrary = "libmpi.so.40";

using Comm = struct ompi_communicator_t*;
using Datatype = struct ompi_datatype_t*;
using Request = struct ompi_request_t*;
using Errhandler = struct ompi_errhandler_t*;

struct Status {
  int MPI_SOURCE, MPI_TAG, MPI_ERROR;
  int _cancelled;
  size_t _ucount;
};

constexpr int kAnySource = -1;
// Constants are the addresses of variables of the library.
constexpr const char* kByte = "ompi_mpi_byte";
constexpr const char* kRequestNull = "ompi_request_null";
constexpr const char* kErrorsReturn = "ompi_mpi_errors_return";

#elif defined(RINGAR_MPI_MPICH)

constexpr const char* kName = "MPICH";
constexpr const char* kLibrary = "libmpi.so.12";

using Comm = int;
using Datatype = int;
using Request = int;
using Errhandler = int;

struct Status {
  int count_lo, count_hi_and_cancelled;
  int MPI_SOURCE, MPI_TAG, MPI_ERROR;
};

constexpr int kAnySource = -2;
constexpr Datatype kByte = 0x4c00010d;
constexpr Request kRequestNull = 0x2c000000;
constexpr Errhandler kErrorsReturn = 0x54000001;

#endif

constexpr int kSuccess = 0;
constexpr int kUndefined = -32766;
constexpr int kMaxErrorString = 512;  // no less than either's

}  // namespace ringar::mpi
