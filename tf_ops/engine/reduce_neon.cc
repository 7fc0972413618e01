#if defined(__aarch64__)
#define RINGAR_REDUCE reduce_neon
#define RINGAR_CONVERT convert_neon
#define RINGAR_NEON
#include "engine/reduce_kernels.inc"
#endif
