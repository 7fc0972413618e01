// A library that is opened when it is first needed, and its functions.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/status.h"

namespace ringar {

class Library {
 public:
  // `name`: as errors name it. `remedy`: what to do where it is missing.
  Library(std::string name, std::string remedy)
      : name_(std::move(name)), remedy_(std::move(remedy)) {}

  // Never closed: it may have threads of its own. `file`: a path, or a name that the loader finds.
  Status open(const std::string& file);
  // Whether it surely calls its own functions where libraries for all (RTLD_GLOBAL) export others
  // of the same names, as TensorFlow's wheels export NCCL's.
  bool calls_itself() const { return calls_itself_; }
  // Null if it has none of this name; complete() then tells.
  void* find(const char* function);
  Status complete() const;

 private:
  const std::string name_, remedy_;
  std::string file_;
  void* handle_ = nullptr;
  bool calls_itself_ = false;
  std::vector<std::string> missing_functions_;
};

}  // namespace ringar
