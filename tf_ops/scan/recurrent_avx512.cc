#if defined(__x86_64__)
#define RINGAR_RECURRENT recurrent_avx512
#include "scan/recurrent_kernels.inc"
#endif
