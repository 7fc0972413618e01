#include "engine/signature.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

namespace ringar {
namespace {

// FNV-1a over 64-bit words, whose high bits are folded into the low ones, or factors that are
// powers of two would differ in 16 bits only. Collisions between what programs really do are not a
// concern.
struct Hash {
  uint64_t value = 0xcbf29ce484222325u;
  void add(uint64_t word) {
    value = (value ^ word) * 0x100000001b3u;
    value ^= value >> 32;
  }
};

// In compiled code, whose spec has shapes, they may not: it has fixed the size of the output.
bool has_free_rows(const Request& request) {
  return rows_may_differ(request.spec.collective) && request.spec.shapes.empty();
}

uint64_t hash_shapes(const Request& request) {
  Hash hash;
  const bool free_rows = has_free_rows(request);
  for (const Tensor& tensor : request.tensors) {
    hash.add(static_cast<uint64_t>(tensor.shape.ndims));
    for (int i = free_rows ? 1 : 0; i < tensor.shape.ndims; ++i)
      hash.add(static_cast<uint64_t>(tensor.shape.dims[i]));
    if (tensor.shape.folded != 0) hash.add(tensor.shape.folded);
  }
  if (request.spec.collective == Collective::kReducescatter)
    for (int64_t split : request.splits) hash.add(static_cast<uint64_t>(split));
  return hash.value;
}

uint64_t hash_name(const std::string& name) {
  Hash hash;
  for (char c : name) hash.add(static_cast<unsigned char>(c));
  return hash.value;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// Ranks that have asked for the same.
struct Party {
  const Signature* signature;
  std::string text;
  std::vector<int> ranks;
};

// Parties in the order of their first ranks, but the majority, if there is one, first.
std::vector<Party> parties(const std::vector<Signature>& signatures,
                           const std::vector<int>& global) {
  std::vector<Party> parties;
  std::map<std::pair<uint64_t, std::string>, size_t> numbers;
  for (size_t i = 0; i < signatures.size(); ++i) {
    const Signature& s = signatures[i];
    std::string text = s.describe();
    if (s.rejected) text += ", refused: " + std::string(s.rejection);
    const auto [at, is_new] = numbers.try_emplace({s.digest(), text}, parties.size());
    if (is_new) parties.push_back({&s, std::move(text), {}});
    parties[at->second].ranks.push_back(global[i]);
  }
  const auto majority = std::find_if(parties.begin(), parties.end(), [&](const Party& party) {
    return 2 * party.ranks.size() > signatures.size();
  });
  if (majority != parties.end()) std::rotate(parties.begin(), majority, majority + 1);
  return parties;
}

// How parties differ whose descriptions read alike.
std::string difference(const std::vector<Party*>& alike, const Party& party) {
  const auto differs = [&](auto field) {
    return std::any_of(alike.begin(), alike.end(), [&](const Party* other) {
      return other->signature->*field != alike[0]->signature->*field;
    });
  };
  if (differs(&Signature::sequence))
    return "number " + std::to_string(party.signature->sequence + 1) + " of the set's collectives";
  return differs(&Signature::name_hash) ? "they differ in a part of the name that is not shown"
                                        : "they differ in shapes that are not shown";
}

void tell_apart(std::vector<Party>& parties) {
  std::map<std::string, std::vector<Party*>> by_text;
  for (Party& party : parties) by_text[party.text].push_back(&party);
  for (const auto& [text, alike] : by_text)
    if (alike.size() > 1)
      for (Party* party : alike) party->text += " (" + difference(alike, *party) + ")";
}

// A line for each party, not for each rank: there may be thousands.
std::string what_was_asked(const std::vector<Signature>& signatures,
                           const std::vector<int>& global) {
  constexpr size_t kMostParties = 8;
  std::vector<Party> all = parties(signatures, global);
  tell_apart(all);
  std::string lines;
  std::vector<int> other_ranks;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i >= kMostParties && all.size() > kMostParties + 1) {
      other_ranks.insert(other_ranks.end(), all[i].ranks.begin(), all[i].ranks.end());
      continue;
    }
    lines += "\n  " + ranks_in_short(all[i].ranks);
    if (2 * all[i].ranks.size() > signatures.size() && all.size() > 1)
      lines += " (" + std::to_string(all[i].ranks.size()) + " of " +
               std::to_string(signatures.size()) + ")";
    lines += ": " + all[i].text;
  }
  if (!other_ranks.empty())
    lines += "\n  " + ranks_in_short(other_ranks) + ": " +
             std::to_string(all.size() - kMostParties) + " other calls";
  return lines;
}

}  // namespace

void Signature::copy_to(Signature& other) const {
  std::memcpy(&other, this, rejected ? sizeof *this : offsetof(Signature, rejection));
}

Signature Signature::of(const Request& request, const std::string& rejection, uint64_t sequence) {
  const Spec& spec = request.spec;
  Signature s;
  s.sequence = sequence;
  s.collective = spec.collective;
  s.dtype = spec.dtype;
  s.op = spec.op;
  s.wire = spec.wire;
  s.algorithm = spec.algorithm;
  s.on_gpu = request.gpu.has_value();
  s.root = spec.root;
  s.tag = spec.tag;
  s.tensors = static_cast<int32_t>(request.tensors.size());
  s.prescale = spec.prescale;
  s.postscale = spec.postscale;
  if (!request.tensors.empty()) {
    const Shape& shape = request.tensors[0].shape;
    s.ndims = shape.ndims;
    std::copy_n(shape.dims, Shape::kMaxDims, s.dims);
    if (has_free_rows(request)) s.dims[0] = -1;
    s.fixed_rows = rows_may_differ(spec.collective) && !has_free_rows(request);
  }
  s.shapes_hash = hash_shapes(request);
  s.name_hash = spec.name.empty() ? 0 : hash_name(spec.name);
  copy_text(s.name, spec.name);
  s.rejected = rejection.empty() ? 0 : 1;
  if (s.rejected) copy_text(s.rejection, rejection);
  return s;
}

uint64_t Signature::digest() const {
  if (rejected) return 0;
  Hash hash;
  const auto bits = [](double value) {
    uint64_t word;
    std::memcpy(&word, &value, sizeof word);
    return word;
  };
  for (uint64_t word :
       {sequence, static_cast<uint64_t>(collective), static_cast<uint64_t>(dtype),
        static_cast<uint64_t>(op), static_cast<uint64_t>(wire), static_cast<uint64_t>(algorithm),
        static_cast<uint64_t>(root), static_cast<uint64_t>(tensors), bits(prescale),
        bits(postscale), shapes_hash, name_hash, static_cast<uint64_t>(on_gpu)})
    hash.add(word);
  return hash.value;
}

std::string Signature::title() const {
  std::string s(name_of(collective));
  if (name[0] != '\0') s += " \"" + std::string(name) + "\"";
  if (is_message(collective))
    s += (collective == Collective::kSend ? " to rank " : " from rank ") + std::to_string(root);
  if (tag > 0) s += " with tag " + std::to_string(tag);
  if (tag < 0) s += " of pipeline " + std::to_string(-tag);
  return s;
}

std::string Signature::describe() const {
  std::string s = title();
  if (tensors > 0 && collective != Collective::kOpenWindow) {
    s += " of " + std::string(name_of(dtype)) + "[";
    for (int i = 0; i < ndims; ++i)
      s += (i ? "," : "") + (dims[i] < 0 ? std::string("?") : std::to_string(dims[i]));
    s += "]";
  }
  if (on_gpu) s += " on a GPU";
  if (tensors > 1) s += " and " + std::to_string(tensors - 1) + " more";
  if (reduces(collective)) s += ", op=" + std::string(name_of(op));
  if (wire != DataType::kCount) s += ", compressed to " + std::string(name_of(wire));
  if (algorithm != Algorithm::kAuto) s += ", algorithm=" + std::string(name_of(algorithm));
  if (prescale != 1.0) s += ", prescale=" + number(prescale);
  if (postscale != 1.0) s += ", postscale=" + number(postscale);
  if (collective == Collective::kBroadcast) s += ", root=" + std::to_string(root);
  if (fixed_rows) s += " (compiled: needs equal rows on all ranks, or leave it out of jit_compile)";
  return s;
}

std::string ranks_in_short(std::vector<int> ranks) {
  constexpr size_t kMostRuns = 8;
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  size_t runs = 0;
  for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    if (runs++ == kMostRuns)
      return text + " and " + std::to_string(ranks.size() - begin) + " others";
    end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) end = begin + 1;  // "0, 1", not "0-1"
    text += (begin ? ", " : "") + std::to_string(ranks[begin]);
    if (end - begin > 1) text += "-" + std::to_string(ranks[end - 1]);
  }
  return text;
}

Status disagreement(const std::vector<Signature>& signatures, const std::vector<int>& global,
                    int process_set) {
  const bool rejected = std::any_of(signatures.begin(), signatures.end(),
                                    [](const Signature& s) { return s.rejected != 0; });
  const std::string received = what_was_asked(signatures, global);
  const std::string set = process_set ? " of process set " + std::to_string(process_set) : "";
  if (rejected)
    return {RINGAR_MISMATCH,
            "a rank" + set + " was given an argument that it cannot use" + received};
  return {RINGAR_MISMATCH,
          "expected the same collective, shapes, dtype, op and name on every rank" + set +
              ", received" + received +
              "\nEvery rank must issue the same collectives in the same order: look for a branch, "
              "a loop or a shape that depends on the rank or on its data."};
}

}  // namespace ringar
