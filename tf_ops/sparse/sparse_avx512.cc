#if defined(__x86_64__)
#define RINGAR_LEVEL avx512
#include "sparse/sparse_kernels.inc"
#endif
