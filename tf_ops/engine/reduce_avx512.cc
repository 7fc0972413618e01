#if defined(__x86_64__)
#define RINGAR_REDUCE reduce_avx512
#define RINGAR_CONVERT convert_avx512
#include "engine/reduce_kernels.inc"
#endif
