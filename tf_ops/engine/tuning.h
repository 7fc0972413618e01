// The sizes at which the engine changes its algorithm, as measured.
//
// One of them differs from machine to machine, and is measured where a job runs (calibration.h):
// from which size on an allreduce stores its results past the caches. The others are constants. A
// slice of 128 KiB is within 3% of the best on the processors that were tried, and on some there is
// no difference. Whether 8 to 256 KiB are reduced in one exchange or in blocks changes 4%, and
// steps of training take the same time with any limit of inline requests above 64 KiB.
//
// The constants come from tuning_table.inc, which `python -m benchmarks.collectives.crossover`
// writes. RINGAR_TUNING=slice=131072,small=65536,inline=65536,chunk=65536,lanes=24,past=16777216
// overrides some or all of them; that is how the benchmark tries them. All ranks must have the
// same, since slices lay out the memory that they share, and chunks are messages:
// SharedSegment::join sees to it on a host, Engine::meet and ringar/job/mpi.py between hosts.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ringar {

struct Tuning {
  // The bytes that a rank reduces, or puts into a buffer for another one, at a time.
  size_t slice_bytes;
  // Up to here every rank reads all inputs of an allreduce and reduces everything by itself: one
  // exchange instead of two. Above it, each rank reduces its slice.
  size_t small_allreduce_bytes;
  // Up to here a request is run by the thread that issues it, and wakes no other.
  size_t inline_bytes;
};

Tuning tuning_for(size_t ranks);

// A limit that no array reaches.
constexpr size_t kNever = SIZE_MAX;
// From here on an allreduce stores its results past the caches: `fallback`, what a calibration has
// found, unless `past` of RINGAR_TUNING says otherwise.
size_t past_caches_bytes(size_t fallback);

// The data that travel through a link at a time: chunks of at most so many bytes, and their number.
struct LinkTuning {
  size_t chunk_bytes;
  int lanes;
};

// Whether collectives over TCP take several streams to a rank: `fallback`, what a calibration has
// found, unless `streams` of RINGAR_TUNING says otherwise (0: one, 1: several).
bool has_streams(bool fallback);

// For an array of so many bytes on the wire, of which each of `ranks` ranks gets a segment.
LinkTuning link_tuning(size_t bytes, int ranks);
// The same for halving and doubling, which take an array in blocks of one chunk per rank.
LinkTuning halving_tuning(size_t bytes, int ranks);

// The unit in which shared memory is mapped: 4 KiB, or up to 64 KiB on some aarch64 kernels. All
// ranks of a host have the same. `page=65536` in RINGAR_TUNING asks for larger ones.
size_t page_bytes();
size_t page_up(size_t bytes);  // the next multiple of it

// The text in RINGAR_TUNING, and a number that stands for it; "" and 0: none.
std::string tuning_overrides();
uint64_t tuning_override();

}  // namespace ringar
