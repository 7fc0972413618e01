#include "algorithms/recursive_doubling.h"

#include <cstring>

namespace ringar {

Status RecursiveDoubling::run() {
  int power = 1;
  while (2 * power <= group_.size()) power *= 2;
  const int extra = group_.size() - power, rank = group_.rank();
  const bool paired = rank < 2 * extra;
  if (paired && rank % 2 == 0) return hand_over(rank + 1);
  if (paired) {
    RINGAR_RETURN_IF_ERROR(transfer(rank - 1, false, true));
    absorb(rank - 1);
  }
  const int place = paired ? rank / 2 : rank - extra;
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = place ^ distance;
    RINGAR_RETURN_IF_ERROR(exchange(partner < extra ? 2 * partner + 1 : partner + extra));
  }
  return paired ? transfer(rank - 1, true, false) : Status();
}

Status RecursiveDoubling::exchange(int partner) {
  RINGAR_RETURN_IF_ERROR(transfer(partner, true, true));
  absorb(partner);
  return {};
}

Status RecursiveDoubling::hand_over(int partner) {
  RINGAR_RETURN_IF_ERROR(transfer(partner, true, false));
  RINGAR_RETURN_IF_ERROR(transfer(partner, false, true));
  std::memcpy(message_.memory(), partner_message_.memory(), bytes());
  return {};
}

Status RecursiveDoubling::transfer(int partner, bool send, bool receive) {
  int handles[] = {-1, -1};
  if (receive)
    RINGAR_RETURN_IF_ERROR(group_.receive(
        partner, kChannel, partner_message_.memory(), Message::kMaxBytes, &handles[0],
        Link::Length::kAtMost));  // a rank in another collective sends less
  if (send)
    RINGAR_RETURN_IF_ERROR(group_.send(partner, kChannel, message_.memory(), bytes(), &handles[1]));
  return group_.finish(policy_, handles, 2);
}

void RecursiveDoubling::absorb(int partner) {
  message_.check().hear(partner_message_.check());
  if (!result_ || message_.check().disagree) return;  // the partner may be in another collective
  const bool lower = partner < group_.rank();
  group_.timed(Span::kReduce, [&] {
    result_->combine(lower ? partner_message_.partial() : message_.partial(),
                     lower ? message_.partial() : partner_message_.partial(), message_.partial());
  });
}

}  // namespace ringar
