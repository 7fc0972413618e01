#define RINGAR_LEVEL baseline
#include "scan/matrix_kernels.inc"
