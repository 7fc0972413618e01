// RingarTicket: the place of an asynchronous collective in the order of the program
// (engine/tickets.h).
//
// TensorFlow holds the output until the collective is done. If the step ends before, since another
// op has failed, it frees the output, and so tells that nobody will come.

#include <memory>

#include "engine/engine_instance.h"
#include "kernels/op.h"

namespace ringar {
namespace {

struct Ticket {
  alignas(64) uint64_t number;  // TensorFlow copies what is aligned to less
  int line;
  std::weak_ptr<Engine> engine;
};

void let_go(void*, size_t, void* raw) {
  const std::unique_ptr<Ticket> ticket(static_cast<Ticket*>(raw));
  if (const auto running = ticket->engine.lock()) running->let_go(ticket->number, ticket->line);
}

void* create(TF_OpKernelConstruction* construction) {
  auto spec = std::make_unique<Spec>();
  return read_spec(construction, spec.get()) ? spec.release() : nullptr;
}

void draw(void* raw, TF_OpKernelContext* context) {
  const auto& tf = tensorflow();
  const auto& spec = *static_cast<const Spec*>(raw);
  const TfStatus status = new_status();
  const auto running = engine();
  if (running) {
    const int line = Engine::line_of(spec);
    const uint64_t number = running->draw_ticket(tf.TF_StepId(context), line);
    auto* const ticket = new Ticket{number, line, running};
    const TfTensor tensor(tf.TF_NewTensor(TF_INT64, nullptr, 0, &ticket->number,
                                          sizeof ticket->number, let_go, ticket));
    tf.TF_SetOutput(context, 0, tensor.get(), status.get());
  } else {
    tf.TF_SetStatus(status.get(), static_cast<TF_Code>(RINGAR_NOT_INITIALIZED),
                    "ringar is not initialized: call ringar.init() before a collective");
  }
  if (!is_ok(status)) tf.TF_OpKernelContext_Failure(context, status.get());
}

void destroy(void* raw) {
  delete static_cast<Spec*>(raw);
}

}  // namespace

void register_ticket() {
  static const OpDefinition op{"RingarTicket", {"spec: string"}, {}, {"ticket: int64"},
                               false,          nullptr};
  define_op(op, op.name, false);
  add_kernel(op.name, tensorflow().TF_NewKernelBuilder(op.name, "CPU", create, draw, destroy));
}

}  // namespace ringar
