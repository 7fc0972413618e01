#define RINGAR_RECURRENT recurrent_baseline
#include "scan/recurrent_kernels.inc"
