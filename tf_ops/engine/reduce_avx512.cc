#if defined(__x86_64__)
#define RINGAR_LEVEL reduce_avx512
#include "engine/reduce_kernels.inc"
#endif
