// A library that has an NCCL of another version among its exports, as TensorFlow's for GPUs has.

extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 22501;
  return 0;
}
