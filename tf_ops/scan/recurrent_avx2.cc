#if defined(__x86_64__)
#define RINGAR_RECURRENT recurrent_avx2
#include "scan/recurrent_kernels.inc"
#endif
