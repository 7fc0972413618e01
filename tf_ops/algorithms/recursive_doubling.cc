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
  std::memcpy(mine_.memory(), theirs_.memory(), bytes());
  return {};
}

Status RecursiveDoubling::transfer(int partner, bool send, bool receive) {
  int handles[] = {-1, -1};
  if (receive)
    RINGAR_RETURN_IF_ERROR(
        group_.receive(partner, kChannel, theirs_.memory(), Message::kMaxBytes, &handles[0],
                       Link::Length::kAtMost));  // who does something else has less to say
  if (send)
    RINGAR_RETURN_IF_ERROR(group_.send(partner, kChannel, mine_.memory(), bytes(), &handles[1]));
  return group_.finish(policy_, handles, 2);
}

void RecursiveDoubling::absorb(int partner) {
  mine_.check().hear(theirs_.check());
  if (!result_ || mine_.check().disagree) return;  // then theirs may be of something else
  const bool lower = partner < group_.rank();
  group_.timed(Span::kReduce, [&] {
    result_->combine(lower ? theirs_.partial() : mine_.partial(),
                     lower ? mine_.partial() : theirs_.partial(), mine_.partial());
  });
}

}  // namespace ringar
