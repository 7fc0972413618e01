// Ranks that are threads map the shared segment at one address.
//
// Left alone each would get an address of its own for the same memory, and ThreadSanitizer, which
// goes by addresses, would see neither the races nor the flags that prevent them. The test program
// is linked with --wrap=mmap,--wrap=munmap (tf_ops/CMakeLists.txt): while a SharedMappings lives, a
// second mapping of the same part of the same file is the first one. And mmap refuses what a kernel
// with pages of ringar::page_bytes() would refuse, so that tests can pretend larger ones.

#pragma once

namespace ringar::test {

class SharedMappings {
 public:
  SharedMappings();
  ~SharedMappings();  // fails the program if a mapping was left
  SharedMappings(const SharedMappings&) = delete;
  SharedMappings& operator=(const SharedMappings&) = delete;
};

}  // namespace ringar::test
