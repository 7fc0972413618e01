// Specs, shapes, signatures and buffer lists: the plain data of the engine.

#include <cstring>
#include <random>
#include <set>

#include "check.h"
#include "engine/buffer_list.h"
#include "engine/signature.h"
#include "requests.h"

namespace ringar::test {
namespace {

Spec parsed(const std::string& text) {
  Spec spec;
  EXPECT_OK(Spec::parse(text, &spec));
  return spec;
}

TEST(spec_reads_every_field) {
  const Spec spec = parsed(
      "broadcast dtype=bfloat16 op=max root=3 set=7 prescale=0.1 postscale=-2.5e-3 "
      "shapes=2,3;;4;0,5 name=a layer = with words");
  EXPECT_EQ(spec.collective, Collective::kBroadcast);
  EXPECT_EQ(spec.dtype, DataType::kBfloat16);
  EXPECT_EQ(spec.op, ReduceOp::kMax);
  EXPECT_EQ(spec.root, 3);
  EXPECT_EQ(spec.process_set, 7);
  EXPECT_EQ(spec.prescale, 0.1);
  EXPECT_EQ(spec.postscale, -2.5e-3);
  EXPECT_EQ(spec.name, "a layer = with words");
  EXPECT(spec.shapes == (std::vector<std::vector<int64_t>>{{2, 3}, {}, {4}, {0, 5}}));
  EXPECT_EQ(spec.tag, 0);
  EXPECT_EQ(parsed("send tag=1023 name=").tag, 1023);
  EXPECT_EQ(parsed("recv tag=-4096 name=tag=3").tag, -4096);
}

TEST(spec_has_defaults) {
  const Spec spec = parsed("barrier name=");
  EXPECT_EQ(spec.collective, Collective::kBarrier);
  EXPECT_EQ(spec.process_set, 0);
  EXPECT_EQ(spec.prescale, 1.0);
  EXPECT_EQ(spec.name, "");
  EXPECT(spec.shapes.empty());
}

TEST(spec_of_one_scalar_has_one_empty_shape) {
  EXPECT_EQ(parsed("allreduce dtype=int8 shapes= name=x").shapes.size(), 1u);
  EXPECT(parsed("allreduce dtype=int8 shapes= name=x").shapes[0].empty());
  EXPECT_EQ(parsed("allreduce dtype=int8 shapes=; name=x").shapes.size(), 2u);
}

TEST(spec_refuses_what_it_does_not_know) {
  for (const char* text :
       {"", "allredoce dtype=float32 name=", "allreduce dtype=string name=",
        "allreduce op=average name=", "allreduce colour=red name=", "allreduce dtype name=",
        "allreduce root=one name=", "send tag=1024 name=", "send tag=-4097 name=",
        "send tag= name=", "allreduce set= name=", "allreduce prescale=0,5 name="}) {
    Spec spec;
    const Status status = Spec::parse(text, &spec);
    EXPECT_EQ(status.code(), RINGAR_MISMATCH);
    EXPECT_CONTAINS(status.message(), "received \"" + std::string(text) + "\"");
  }
}

TEST(names_of_types_have_inverses) {
  for (int i = 0; i < static_cast<int>(DataType::kCount); ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(data_type_named(name_of(type)), type);
    EXPECT(size_of(type) > 0);
  }
  for (int i = 0; i < static_cast<int>(ReduceOp::kCount); ++i)
    EXPECT_EQ(reduce_op_named(name_of(static_cast<ReduceOp>(i))), static_cast<ReduceOp>(i));
  for (int i = 0; i < static_cast<int>(Collective::kCount); ++i)
    EXPECT_EQ(collective_named(name_of(static_cast<Collective>(i))), static_cast<Collective>(i));
  EXPECT_EQ(data_type_named("float8"), DataType::kCount);
}

TEST(shape_folds_dimensions_beyond_the_eighth) {
  const int64_t dims[] = {2, 3, 1, 2, 1, 2, 1, 5, 7, 3};
  const Shape shape(10, [&](int i) { return dims[i]; });
  EXPECT_EQ(shape.ndims, 8);
  EXPECT_EQ(shape.dims[7], 5 * 7 * 3);
  EXPECT_EQ(shape.rows(), 2);
  EXPECT_EQ(shape.row_elements(), 3 * 2 * 2 * 5 * 7 * 3);
  EXPECT_EQ(shape.elements(), 2 * 3 * 2 * 2 * 5 * 7 * 3);
}

TEST(shape_of_scalars_and_of_nothing) {
  const Shape scalar;
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_EQ(scalar.rows(), 1);
  const int64_t dims[] = {4, 0, 3};
  const Shape empty(3, [&](int i) { return dims[i]; });
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_EQ(empty.rows(), 4);
}

// A signature of `spec` on arrays of `dims`.
Signature signature(const std::string& spec, const std::vector<std::vector<int64_t>>& dims,
                    uint64_t sequence = 0) {
  TestRequest request(spec);
  for (const auto& shape : dims) {
    size_t bytes = request.element_size();
    for (int64_t dim : shape) bytes *= static_cast<size_t>(dim);
    const bool allocates = rows_may_differ(request.spec.collective);
    request.add(Bytes(bytes), shape, allocates ? Output::kAllocated : Output::kApart, bytes);
  }
  return Signature::of(request, request.rejection(2), sequence);
}

bool agree(const Signature& left, const Signature& right) {
  return left.digest() == right.digest();
}

const char kSum[] = "allreduce dtype=float32 op=sum root=0 set=0 prescale=1 postscale=1 name=loss";

TEST(signatures_differ_in_every_field) {
  const Signature reference = signature(kSum, {{3, 4}});
  EXPECT(agree(reference, signature(kSum, {{3, 4}})));
  EXPECT(!agree(reference, signature(kSum, {{3, 4}}, 1)));
  EXPECT(!agree(reference, signature(kSum, {{4, 3}})));
  EXPECT(!agree(reference, signature(kSum, {{12}})));
  EXPECT(!agree(reference, signature(kSum, {{3, 4}, {1}})));
  const auto beyond_the_eighth = [](int64_t a, int64_t b) {
    return signature(kSum, {{1, 1, 1, 1, 1, 1, 1, 1, a, b}});
  };
  EXPECT(agree(beyond_the_eighth(2, 3), beyond_the_eighth(2, 3)));
  EXPECT(!agree(beyond_the_eighth(2, 3), beyond_the_eighth(3, 2)));
  EXPECT(!agree(beyond_the_eighth(6, 1), beyond_the_eighth(1, 6)));
  for (const char* other :
       {"broadcast dtype=float32 op=sum root=0 prescale=1 postscale=1 name=loss",
        "allreduce dtype=int32 op=sum root=0 prescale=1 postscale=1 name=loss",
        "allreduce dtype=float32 op=max root=0 prescale=1 postscale=1 name=loss",
        "allreduce dtype=float32 op=sum root=1 prescale=1 postscale=1 name=loss",
        "allreduce dtype=float32 op=sum root=0 prescale=0.5 postscale=1 name=loss",
        "allreduce dtype=float32 op=sum root=0 prescale=1 postscale=0.5 name=loss",
        "allreduce dtype=float32 op=sum root=0 prescale=1 postscale=1 name=lose"})
    EXPECT(!agree(reference, signature(other, {{3, 4}})));
}

TEST(signatures_differ_in_factors_that_are_powers_of_two) {
  std::set<uint64_t> digests;
  for (const char* before : {"0.125", "0.25", "0.5", "1", "2", "4", "8"})
    for (const char* after : {"0.125", "0.25", "0.5", "1", "2", "4", "8"}) {
      const std::string factors = std::string("prescale=") + before + " postscale=" + after;
      digests.insert(signature("allreduce dtype=float32 op=sum " + factors, {{3}}).digest());
    }
  EXPECT_EQ(digests.size(), 49u);
}

TEST(signatures_leave_rows_free_where_ranks_may_differ) {
  for (const std::string head : {"allgather", "alltoall"}) {
    const std::string spec = head + " dtype=int8 name=x";
    EXPECT(agree(signature(spec, {{3, 4}}), signature(spec, {{8, 4}})));
    EXPECT(!agree(signature(spec, {{3, 4}}), signature(spec, {{3, 5}})));
    EXPECT_CONTAINS(signature(spec, {{3, 4}}).describe(), "int8[?,4]");
  }
}

TEST(signatures_of_compiled_code_fix_the_rows) {
  const std::string spec = "allgather dtype=int8 shapes=3,4 name=x";
  EXPECT(agree(signature(spec, {{3, 4}}), signature(spec, {{3, 4}})));
  EXPECT(!agree(signature(spec, {{3, 4}}), signature(spec, {{8, 4}})));
  EXPECT_CONTAINS(signature(spec, {{3, 4}}).describe(), "int8[3,4] (compiled: needs equal rows");
}

TEST(signatures_say_what_is_done) {
  EXPECT_EQ(signature(kSum, {{32, 10}, {7}}).describe(),
            "allreduce \"loss\" of float32[32,10] and 1 more, op=sum");
  EXPECT_EQ(signature("broadcast dtype=bool root=1 name=", {{}}).describe(),
            "broadcast of bool[], root=1");
  EXPECT_EQ(signature("barrier name=", {}).describe(), "barrier");
}

TEST(signatures_survive_long_names) {
  const std::string name(5000, 'n');
  const Signature reference = signature("barrier name=" + name, {});
  EXPECT(agree(reference, signature("barrier name=" + name, {})));
  // Beyond what is kept for messages, but not beyond what is compared.
  EXPECT(!agree(reference, signature("barrier name=" + name + "m", {})));
}

TEST(signatures_cut_no_character_in_two) {
  for (const char* character : {"\u00e4", "\u20ac", "\U0001f600"})
    for (size_t shift = 0; shift < 4; ++shift) {
      std::string name(shift, 'x');
      for (int i = 0; i < 100; ++i) name += character;
      const std::string prefix = signature("barrier name=" + name, {}).name;
      EXPECT(prefix.size() < Signature::kNameBytes && prefix.size() > Signature::kNameBytes - 5);
      EXPECT_EQ((prefix.size() - shift) % std::strlen(character), 0u);
      EXPECT_EQ(name.compare(0, prefix.size(), prefix), 0);
    }
}

TEST(requests_reject_what_cannot_be_done) {
  const auto why = [](const std::string& spec, const std::vector<std::vector<int64_t>>& dims) {
    return std::string(signature(spec, dims).rejection);
  };
  EXPECT_CONTAINS(why("allreduce dtype=int16 name=", {{2}}), "received int16");
  EXPECT_CONTAINS(why("allreduce dtype=bool name=", {{2}}), "received bool");
  EXPECT_CONTAINS(why("reducescatter dtype=complex64 name=", {{2}}), "cast it first");
  EXPECT_CONTAINS(why("allreduce dtype=int32 postscale=0.5 name=", {{2}}), "op=Average");
  EXPECT_CONTAINS(why("broadcast dtype=int32 root=2 name=", {{2}}), "from 0 to 1, received 2");
  EXPECT_CONTAINS(why("broadcast dtype=int32 root=-1 name=", {{2}}), "received -1");
  for (const std::string collective : {"allgather", "alltoall", "reducescatter"})
    EXPECT_CONTAINS(why(collective + " dtype=int32 name=", {{}}), "received a scalar");
  EXPECT_EQ(why("allreduce dtype=int32 name=", {{}}), "");
}

TEST(requests_reject_outputs_without_memory) {
  for (const std::string collective : {"allreduce", "broadcast"}) {
    TestRequest request(collective + " dtype=float32 name=");
    request.add(Bytes(8), {2}, Output::kAllocated, 0);
    EXPECT_CONTAINS(request.rejection(2), "expected memory for every output");
  }
}

TEST(requests_reject_several_arrays_of_an_all_to_all) {
  const std::string spec = "alltoall dtype=int32 name=";
  EXPECT_EQ(std::string(signature(spec, {{2}}).rejection), "");
  EXPECT_CONTAINS(signature(spec, {{2}, {2}}).rejection, "expected one array, received 2");
  EXPECT_CONTAINS(signature(spec, {}).rejection, "expected one array, received 0");
}

TEST(requests_reject_splits_that_do_not_fit) {
  const auto why = [](const std::vector<int64_t>& splits) {
    TestRequest request("alltoall dtype=uint8 name=");
    request.add(Bytes(5), {5}, Output::kAllocated, 0);
    request.splits = splits;
    return request.rejection(2);
  };
  EXPECT_EQ(why({2, 3}), "");
  EXPECT_EQ(why({0, 5}), "");
  EXPECT_CONTAINS(why({2, 2}), "add up to the first dimension (5), received [2, 2]");
  EXPECT_CONTAINS(why({6, -1}), "splits of 0 or more");
  EXPECT_CONTAINS(why({5}), "one split per rank of the process set (2), received 1: [5]");
}

// A buffer list of random parts, empty ones among them, against the same bytes in one piece.
TEST(buffer_list_gathers_and_scatters_any_range) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t parts = random() % 6;
    std::vector<Bytes> inputs(parts), outputs(parts);
    Bytes expected;
    BufferList array;
    for (size_t i = 0; i < parts; ++i) {
      inputs[i] = random_bytes(DataType::kUint8, random() % 3 ? random() % 40 : 0, random());
      outputs[i].assign(inputs[i].size(), std::byte{0});
      array.append(inputs[i].data(), outputs[i].data(), inputs[i].size());
      expected.insert(expected.end(), inputs[i].begin(), inputs[i].end());
    }
    EXPECT_EQ(array.size(), expected.size());
    const size_t begin = random() % (expected.size() + 1);
    const size_t end = begin + random() % (expected.size() - begin + 1);
    Bytes part(end - begin);
    array.gather(begin, end, part.data());
    EXPECT(std::equal(part.begin(), part.end(),
                      expected.begin() + static_cast<std::ptrdiff_t>(begin)));

    array.scatter(begin, end, part.data());
    Bytes back;
    for (const Bytes& output : outputs) back.insert(back.end(), output.begin(), output.end());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT(back[i] == (i >= begin && i < end ? expected[i] : std::byte{0}));
  }
}

TEST(buffer_list_passes_on_what_is_missing) {
  std::byte memory[8];
  BufferList array;
  array.append(memory, nullptr, 4);
  array.append(nullptr, memory, 4);
  int pieces = 0;
  array.for_each(2, 6, [&](const std::byte* in, std::byte* out, size_t bytes, size_t offset) {
    EXPECT_EQ(bytes, 2u);
    EXPECT_EQ(offset, pieces == 0 ? 0u : 2u);
    EXPECT(pieces == 0 ? in == memory + 2 && !out : !in && out == memory);
    ++pieces;
  });
  EXPECT_EQ(pieces, 2);
  array.for_each(6, 2, [&](const std::byte*, std::byte*, size_t, size_t) { EXPECT(false); });
}

TEST(even_shares_add_up) {
  for (int64_t rows = 0; rows < 20; ++rows)
    for (int ranks = 1; ranks < 9; ++ranks) {
      int64_t sum = 0;
      for (int r = 0; r < ranks; ++r) {
        sum += even_share(rows, ranks, r);
        EXPECT(r == 0 || even_share(rows, ranks, r) <= even_share(rows, ranks, r - 1));
      }
      EXPECT_EQ(sum, rows);
    }
}

}  // namespace
}  // namespace ringar::test
