#define RINGAR_REDUCE reduce_baseline
#define RINGAR_CONVERT convert_baseline
#include "engine/reduce_kernels.inc"
