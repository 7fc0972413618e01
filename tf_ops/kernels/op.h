// The common parts of the TensorFlow ops.
//
// Every op takes a `spec` (engine/spec.h) and comes in two forms. RingarAllreduce is done when its
// compute function returns; TensorFlow then goes on with what depends on it in the same thread.
// RingarAllreduceAsync hands a request to the engine and returns; the engine calls back when the
// collective is done, and TensorFlow schedules everything that depends on it anew, which costs more
// than a small collective. Its last input is the ticket that RingarTicket has drawn (ticket.cc), so
// that it may be issued as soon as its inputs are there. A collective is told apart from another by
// its definition and by one function, which prepares inputs and outputs.

#pragma once

#include <string>
#include <vector>

#include "kernels/op_request.h"

namespace ringar {

struct OpDefinition {
  const char* name;
  std::vector<const char*> attrs, inputs, outputs;
  bool outputs_shaped_as_inputs;
  bool (*prepare)(OpRequest& request);
};

// One per file of this folder.
const OpDefinition& allreduce_op();
const OpDefinition& reducescatter_op();
const OpDefinition& allgather_op();
const OpDefinition& broadcast_op();
const OpDefinition& alltoall_op();
const OpDefinition& barrier_op();
const OpDefinition& send_op();
const OpDefinition& recv_op();

void register_ticket();
void register_collectives();

// For registering ops. False if the op has no proper spec, and then its construction has failed.
bool read_spec(TF_OpKernelConstruction* construction, Spec* spec);
void define_op(const OpDefinition& op, const std::string& name, bool has_ticket);

}  // namespace ringar
