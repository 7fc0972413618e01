#if defined(__x86_64__)
#define RINGAR_LEVEL avx512
#include "scan/matrix_kernels.inc"
#endif
