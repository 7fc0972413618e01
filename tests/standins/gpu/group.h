// Calls that are collected until their group ends.

#pragma once

#include <memory>

#include "communicator.h"

namespace standin {

bool in_group();  // this thread

// The communicator, if it can take a call now; else null and why.
std::shared_ptr<Communicator> find_ready(ringar::nccl::Comm comm, const char* call,
                                         ringar::nccl::Result* error);

}  // namespace standin
