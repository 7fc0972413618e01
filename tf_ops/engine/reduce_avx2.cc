#if defined(__x86_64__)
#define RINGAR_REDUCE reduce_avx2
#define RINGAR_CONVERT convert_avx2
#include "engine/reduce_kernels.inc"
#endif
