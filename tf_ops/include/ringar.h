// The C interface of libringar.so: all that Python (ringar/job/native.py) and C programs call.
//
// Every function that can fail returns 0 or a ringar_code; ringar_last_error() then tells, for the
// calling thread, which rank failed in which collective, what was expected, what was received and
// what to do. Times are seconds, sizes are bytes or elements as named.

#ifndef RINGAR_H_
#define RINGAR_H_

#include <stdint.h>

#define RINGAR_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// The numbers are TensorFlow's TF_Code where one fits, so that an error needs no translation there.
typedef enum ringar_code {
  RINGAR_OK = 0,
  RINGAR_MISMATCH = 3,         // the ranks disagree, or a rank was given a bad argument
  RINGAR_DEADLINE = 4,         // a rank did not come in time
  RINGAR_NOT_INITIALIZED = 9,  // no ringar_init before, or after ringar_shutdown
  RINGAR_PEER_LOST = 10,       // a rank died, left or gave up
  RINGAR_OUT_OF_MEMORY = 8,    // an output or shared memory could not be allocated
  RINGAR_UNSUPPORTED = 12,     // this build or machine cannot do it
  RINGAR_DEVICE = 13,          // CUDA or NCCL has reported an error
} ringar_code;

typedef struct ringar_config {
  int32_t rank, size;
  int32_t local_rank, local_size;
  int32_t cross_rank, cross_size;
  int32_t segment_fd;    // memory shared by the ranks of this host; -1 for a job of one rank
  double start_timeout;  // how long ringar_init waits for the other ranks
  double deadline;       // how long a collective waits for a rank before it fails
  double stall_warning;  // how long it waits before it says whom it waits for

  // For a job on several hosts, or one that MPI has started; all null or empty otherwise.
  const int32_t* hosts;      // of each rank of the job, the number of its host
  const char* link_library;  // which carries messages between ranks (links/link.h)
  void* link_communicator;   // what it is opened with; must stay until ringar_shutdown
  const char* algorithm;     // of allreduces that leave the choice; null: the best
  // Up to how many bytes recursive doubling takes less time than a ring, by number of participants
  // from 0 to recursive_doubling_count - 1.
  const int64_t* recursive_doubling_bytes;
  int32_t recursive_doubling_count;
  // Up to how many bytes halving and doubling take less time than a ring, by as many numbers of
  // participants; null: not known.
  const int64_t* halving_doubling_bytes;
  // The size of buckets of gradients for this network; 0: not known.
  int64_t bucket_bytes;
  // Which ringar_init of the job this is, the same number on all ranks: what is still under way of
  // another one is ignored.
  int32_t generation;

  // The link of a job on several hosts without MPI is TCP: a socket that listens, which stays the
  // caller's; where each rank listens, in order ("10.0.0.1:4000 [fe80::1%eth0]:4000 ..."); and what
  // only ranks of this job know. -1 or null otherwise.
  int32_t link_listener;
  const char* link_addresses;
  const char* link_secret;

  // What is opened for collectives on GPUs, when the first one comes; null: libcuda.so.1 and
  // libnccl.so.2, wherever the system's loader finds them.
  const char* cuda_library;
  const char* nccl_library;

  // From how many bytes on an allreduce stores its results past the caches: what a calibration of
  // this machine has found. 0: no size; RINGAR_CALIBRATE: the ranks find out now. The one of a
  // host's first rank counts; in a job on several hosts it is 0.
  int64_t past_caches_bytes;

  // A descriptor that becomes readable when a rank of an elastic job is lost before ringar_init has
  // ended: the others do not wait for it there. 0: none.
  int32_t news_fd;
} ringar_config;

#define RINGAR_CALIBRATE (-1)

// One array of a collective. The `output` of an allgather or alltoall may be null: it is then asked
// for through `allocate`.
typedef struct ringar_array {
  const void* input;
  void* output;
  int32_t ndims;
  const int64_t* dims;
} ringar_array;

// Returns memory for output `index`, which has `rows` as its first dimension, or null.
typedef void* (*ringar_allocate)(void* context, int32_t index, int64_t rows);

RINGAR_EXPORT const char* ringar_version(void);
RINGAR_EXPORT const char* ringar_cpu_level(void);  // "avx512", "avx2", "neon" or "baseline"

// Takes warnings of a job that goes on, such as the names of ranks that are late. Any thread that
// waits may call it. Null, as at first: warnings go to standard error.
typedef void (*ringar_warning_handler)(const char* text);
RINGAR_EXPORT void ringar_on_warning(ringar_warning_handler handler);

RINGAR_EXPORT int ringar_init(const ringar_config* config);
RINGAR_EXPORT void ringar_shutdown(void);
RINGAR_EXPORT int ringar_is_initialized(void);
// 1 if a collective of this rank has failed in a way that its process set does not survive.
RINGAR_EXPORT int ringar_has_failed(void);

// Collective over all ranks; every rank passes the same ranks in the same order.
RINGAR_EXPORT int ringar_add_process_set(const int32_t* ranks, int32_t count, int32_t* id);
RINGAR_EXPORT int ringar_remove_process_set(int32_t id);

// Runs one collective to its end. `spec` is the text that engine/spec.h describes. `splits` holds
// `split_count` row counts for alltoall and reducescatter, or is null. `received` takes, for
// allgather, arrays x ranks row counts and, for alltoall, one per rank; it may be null. A message
// that is received has no input, but an output of known shape, or `allocate` for arrays of which
// the first dimension is -1.
RINGAR_EXPORT int ringar_run(const char* spec, const ringar_array* arrays, int32_t count,
                             const int64_t* splits, int32_t split_count, int64_t* received,
                             ringar_allocate allocate, void* context);

// Frees messages from `rank` of the job with this tag, now and later: no call on this rank will
// receive them. Does nothing before ringar_init.
RINGAR_EXPORT void ringar_forget(int32_t rank, int32_t tag);

// The same on arrays in the memory of CUDA device `device`, in the order of `stream` (a CUstream;
// null is the default stream). It returns when the collective is enqueued: outputs are there for
// what is enqueued on `stream` afterwards. `allocate` gives memory of that device. A later failure
// fills the outputs with bytes of 0xFF; ringar_synchronize_gpu and the next collective of that
// process set report it.
RINGAR_EXPORT int ringar_run_on_gpu(const char* spec, const ringar_array* arrays, int32_t count,
                                    const int64_t* splits, int32_t split_count, int64_t* received,
                                    ringar_allocate allocate, void* context, int32_t device,
                                    void* stream);
// Waits until all that this rank has enqueued on GPUs has come to its end.
RINGAR_EXPORT int ringar_synchronize_gpu(void);

// The same as ringar_run for a collective that is run again and again on the same arrays (as
// MPI_Allreduce_init does), with all outputs given: ringar_prepare does the work that is needed
// only once. Several threads may run a call. Null with an error if the spec cannot be read.
typedef struct ringar_call ringar_call;
RINGAR_EXPORT ringar_call* ringar_prepare(const char* spec, const ringar_array* arrays,
                                          int32_t count);
RINGAR_EXPORT int ringar_run_prepared(ringar_call* call);
// The same for a call of one array, on another array of the same shape. `input` and `output` are
// where the addresses of the arrays are. If only the exchange tells the rows of the output,
// `output` has `rows` of them, and `allocate` is for other numbers; else `rows` is -1.
RINGAR_EXPORT int ringar_run_again(ringar_call* call, int64_t rows, ringar_allocate allocate,
                                   const void* const* input, void* const* output, void* context);
RINGAR_EXPORT void ringar_release(ringar_call* call);

// Memory that the other ranks of this host may write results of collectives to; null where there is
// none, or for so few bytes that it does not pay. It may be freed at any time, by any thread.
typedef struct ringar_memory ringar_memory;
RINGAR_EXPORT ringar_memory* ringar_take_memory(int64_t bytes, void** address);
RINGAR_EXPORT void ringar_free_memory(ringar_memory* memory);

// A window: memory that the ranks of a process set open together, and read and write without each
// other's doing (engine/window.h). Opening is collective: `spec` has collective open_window, the
// dtype, process set and name. Each rank brings a part of `length` elements, zero at first, which
// is guarded in chunks of `chunk_bytes`; ranks are numbered as in the process set.
typedef struct ringar_window ringar_window;
RINGAR_EXPORT int ringar_open_window(const char* spec, int64_t length, int64_t chunk_bytes,
                                     ringar_window** window);
// This rank's part, until ringar_release_window.
RINGAR_EXPORT void* ringar_window_local(const ringar_window* window);
RINGAR_EXPORT int64_t ringar_window_length(const ringar_window* window, int32_t rank);

typedef enum ringar_access {
  RINGAR_GET,
  RINGAR_PUT,
  RINGAR_ADD,         // one writer of a chunk at a time
  RINGAR_ATOMIC_ADD,  // elements of 4 and 8 bytes, each on its own
  RINGAR_RACY_ADD,    // additions at the same time may be lost
  RINGAR_FETCH_ADD,   // one element; the old value takes the place of the summand
  RINGAR_VERSIONS,    // without `array`
} ringar_access;
// Reads or writes `count` elements of the part of `rank` from `start` on, by any thread.
// `versions`, of RINGAR_GET and RINGAR_VERSIONS, takes the number of writes of each chunk; it may
// be null.
RINGAR_EXPORT int ringar_access_window(ringar_window* window, int32_t rank, int32_t access,
                                       int64_t start, int64_t count, void* array,
                                       int64_t* versions);
// The same for rows of the part, which is a matrix of rows of `width` elements: reads or adds to
// `count` of them, whose numbers `rows` has. `access` is RINGAR_GET, RINGAR_ADD, RINGAR_ATOMIC_ADD
// or RINGAR_RACY_ADD. With `before`, elements that are still as there become those of `array`, and
// to others the difference is added; `array` gets the new values. Accesses without a lock do not
// count as writes of a chunk.
RINGAR_EXPORT int ringar_access_rows(ringar_window* window, int32_t rank, int32_t access,
                                     const int64_t* rows, int64_t count, int64_t width, void* array,
                                     const void* before);
// Collective. The memory stays until ringar_release_window.
RINGAR_EXPORT int ringar_close_window(ringar_window* window);
RINGAR_EXPORT void ringar_release_window(ringar_window* window);

// Writes what this rank's collectives do from now on to a file (engine/timeline.h).
RINGAR_EXPORT int ringar_start_timeline(const char* path, int32_t rank);
RINGAR_EXPORT void ringar_stop_timeline(void);

RINGAR_EXPORT const char* ringar_last_error(void);

// The traffic of this rank since the library was opened or ringar_reset_stats was called: a line
// per collective and name, "allreduce 10 4096 loss", then a zero byte; the number of bytes of all
// lines is stored in `size`. The bytes are those that this rank must send by the best algorithm.
// Valid until the calling thread calls it again.
RINGAR_EXPORT const char* ringar_stats(int64_t* size);
RINGAR_EXPORT void ringar_reset_stats(void);

// Processors' worth of time that the control groups of this process grant; infinity without a
// quota.
RINGAR_EXPORT double ringar_processor_quota(void);

// Up to how many bytes a collective takes less time than waking another thread for it; 0 before
// ringar_init.
RINGAR_EXPORT int64_t ringar_inline_bytes(void);

// From how many bytes on an allreduce stores its results past the caches, as all ranks of the host
// do; 0 for no size, and before ringar_init.
RINGAR_EXPORT int64_t ringar_past_caches_bytes(void);
// The size of buckets of gradients: that of the config, or what the ranks have measured in
// ringar_init; 0 where nothing is known, and before ringar_init.
RINGAR_EXPORT int64_t ringar_bucket_bytes(void);
// 1 if the ranks have measured the size for results past the caches in ringar_init.
RINGAR_EXPORT int ringar_has_calibrated(void);

// The data that ranks exchange beside their gradients (engine/shares.h). These do nothing before
// ringar_init. Whether this rank asks all ranks to stop, from its next weighted average on.
RINGAR_EXPORT void ringar_ask_to_stop(int asks);
// 1 if a rank was seen to ask since ringar_begin_training.
RINGAR_EXPORT int ringar_stop_was_seen(void);
// The training steps of this rank, those without data included.
RINGAR_EXPORT int64_t ringar_steps(void);
// Forgets what ranks asked, and what a full batch is. All ranks call it at the same place.
RINGAR_EXPORT void ringar_begin_training(void);

// Registers the ops and the XLA targets with the TensorFlow of this process, once.
// libringar_tensorflow.so calls it when TensorFlow opens that.
RINGAR_EXPORT void ringar_register_ops(void);
// 1 if TensorFlow had all that it takes; before it was imported, nobody may ask.
RINGAR_EXPORT int ringar_has_tensorflow_ops(void);
RINGAR_EXPORT int ringar_has_xla_target(void);

// Calls a function that compiled code names by a number. It reads inputs and writes outputs; if it
// fails, it returns 1 and writes a text that ends with a zero.
#define RINGAR_MESSAGE_BYTES 4096
typedef int (*ringar_host_function)(int64_t number, const void** inputs, void** outputs,
                                    char* message);
RINGAR_EXPORT void ringar_on_host_call(ringar_host_function function);

#ifdef __cplusplus
}
#endif

#endif  // RINGAR_H_
