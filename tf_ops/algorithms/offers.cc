#include "algorithms/offers.h"

#include <algorithm>

namespace ringar {

void offer_inputs(const IntraNodeCommunicator& host, const Request& request, uint64_t* offers,
                  size_t count) {
  const bool worth_it = request.input_bytes() >= OutputPool::kLeastBytes;
  for (size_t i = 0; i < count; ++i)
    offers[i] = worth_it ? host.offer_of(request.tensors[i].input) : 0;
}

template <typename Visit>
void Offers::for_each(const Table& table, Visit visit) const {
  for (size_t i = 0; i < request_.tensors.size(); ++i) {
    const Tensor& tensor = request_.tensors[i];
    const size_t bytes = static_cast<size_t>(tensor.shape.elements()) * request_.element_size();
    visit(tensor, bytes, i < table.count ? table.offers[i] : Offer{});
  }
}

Offers::Offers(IntraNodeCommunicator& host, const Request& request, const BufferList& array,
               size_t slice)
    : host_(host), request_(request), unpooled_(&array), slice_(slice) {
  write();
  const Table& entries = table(host.rank());
  if (entries.count == 0) return;
  BufferList& unpooled = host.workspace().array_of(host.rank());
  unpooled.clear();
  for_each(entries, [&](const Tensor& tensor, size_t bytes, const Offer& offer) {
    unpooled.append(offer.input ? nullptr : tensor.input, offer.output ? nullptr : tensor.output,
                    bytes);
  });
  unpooled_ = &unpooled;
}

void Offers::write() {
  Table& entries = table(host_.rank());
  size_t count = 0;
  if (host_.outputs()) {
    const size_t room = (slice_ - offsetof(Table, offers)) / sizeof(Offer);
    for (size_t i = 0; i < std::min(room, request_.tensors.size()); ++i) {
      const Tensor& tensor = request_.tensors[i];
      entries.offers[i] = {host_.offer_of(tensor.input), host_.offer_of(tensor.output)};
      if (entries.offers[i].input || entries.offers[i].output) count = i + 1;
    }
  }
  entries.count = count;
}

void Offers::read() {
  for (int r = 0; r < host_.size(); ++r) {
    for_each(table(r), [&](const Tensor&, size_t bytes, const Offer& offer) {
      complete_ &= bytes == 0 || (offer.input && offer.output);
    });
    if (r == host_.rank()) continue;
    BufferList& array = host_.workspace().array_of(r);
    array.clear();
    const Table& offered = table(r);
    if (offered.count == 0) continue;
    for_each(offered, [&](const Tensor&, size_t bytes, const Offer& offer) {
      array.append(host_.offered(r, offer.input), host_.offered(r, offer.output), bytes);
    });
  }
}

}  // namespace ringar
