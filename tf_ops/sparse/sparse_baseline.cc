#define RINGAR_LEVEL baseline
#include "sparse/sparse_kernels.inc"
