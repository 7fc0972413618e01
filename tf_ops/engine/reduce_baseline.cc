#define RINGAR_LEVEL reduce_baseline
#include "engine/reduce_kernels.inc"
