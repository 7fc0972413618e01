#define RINGAR_REDUCE reduce_baseline
#define RINGAR_STREAM stream_baseline
#include "engine/reduce_kernels.inc"
