#if defined(__x86_64__)
#define RINGAR_LEVEL avx2
#include "sparse/sparse_kernels.inc"
#endif
