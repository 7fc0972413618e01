// What ranks are told when their signatures differ.

#include <numeric>

#include "check.h"
#include "engine/signature.h"
#include "requests.h"

namespace ringar::test {
namespace {

Signature signature_of(const std::string& name, const std::vector<int64_t>& rows = {4},
                       const std::string& rejection = "", uint64_t sequence = 0) {
  TestRequest request(allreduce_spec(name));
  for (int64_t count : rows) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    request.add(Bytes(bytes), {count}, Output::kApart, bytes);
  }
  return Signature::of(request, rejection, sequence);
}

std::vector<int> first_ranks(size_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string lines_of(const std::vector<Signature>& signatures) {
  const Status status = disagreement(signatures, first_ranks(signatures.size()), 0);
  EXPECT_EQ(status.code(), RINGAR_MISMATCH);
  const std::string& text = status.message();
  const size_t begin = text.find('\n'), end = text.find("\nEvery rank must");
  return text.substr(begin, end - begin);
}

TEST(signatures_name_ranks_in_short) {
  EXPECT_EQ(ranks_in_short({3}), std::string("rank 3"));
  EXPECT_EQ(ranks_in_short({1, 0}), std::string("ranks 0, 1"));
  EXPECT_EQ(ranks_in_short({7, 0, 1, 2, 3, 4, 5}), std::string("ranks 0-5, 7"));
  EXPECT_EQ(ranks_in_short({0, 1, 3, 4, 5, 9, 10}), std::string("ranks 0, 1, 3-5, 9, 10"));
  EXPECT_EQ(ranks_in_short({0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 19}),
            std::string("ranks 0, 2, 4, 6, 8, 10, 12, 14 and 3 others"));
}

TEST(signatures_of_two_ranks_have_a_line_each) {
  EXPECT_EQ(lines_of({signature_of("a"), signature_of("b")}),
            std::string("\n  rank 0: allreduce \"a\" of float32[4], op=sum"
                        "\n  rank 1: allreduce \"b\" of float32[4], op=sum"));
}

TEST(signatures_name_the_majority_first) {
  std::vector<Signature> signatures(10'000, signature_of("same"));
  signatures[0] = signature_of("odd");
  signatures[77] = signatures[78] = signature_of("same", {5});
  EXPECT_EQ(lines_of(signatures),
            std::string("\n  ranks 1-76, 79-9999 (9997 of 10000): allreduce \"same\" of "
                        "float32[4], op=sum"
                        "\n  rank 0: allreduce \"odd\" of float32[4], op=sum"
                        "\n  ranks 77, 78: allreduce \"same\" of float32[5], op=sum"));
}

TEST(signatures_without_a_majority_are_in_rank_order) {
  EXPECT_EQ(lines_of({signature_of("a"), signature_of("b"), signature_of("b"), signature_of("a")}),
            std::string("\n  ranks 0, 3: allreduce \"a\" of float32[4], op=sum"
                        "\n  ranks 1, 2: allreduce \"b\" of float32[4], op=sum"));
}

TEST(signatures_of_many_kinds_are_cut_short) {
  std::vector<Signature> signatures;
  for (int64_t rank = 0; rank < 100; ++rank) signatures.push_back(signature_of("a", {1 + rank}));
  const std::string lines = lines_of(signatures);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 9);
  EXPECT_CONTAINS(lines, "\n  rank 7: allreduce \"a\" of float32[8], op=sum\n");
  EXPECT_CONTAINS(lines, "\n  ranks 8-99: 92 other calls");
}

TEST(signatures_that_read_alike_are_told_apart) {
  const std::string text = "allreduce \"a\" of float32[4] and 1 more, op=sum";
  EXPECT_EQ(lines_of({signature_of("a", {4, 1}), signature_of("a", {4, 2})}),
            "\n  rank 0: " + text + " (they differ in shapes that are not shown)" +
                "\n  rank 1: " + text + " (they differ in shapes that are not shown)");
  const std::string name(200, 'n');
  const std::string lines = lines_of({signature_of(name + "1"), signature_of(name + "2")});
  EXPECT_CONTAINS(lines,
                  "n\" of float32[4], op=sum (they differ in a part of the name that is not");
  EXPECT_EQ(lines_of({signature_of("a"), signature_of("a", {4}, "", 6)}),
            std::string("\n  rank 0: allreduce \"a\" of float32[4], op=sum "
                        "(number 1 of the set's collectives)"
                        "\n  rank 1: allreduce \"a\" of float32[4], op=sum "
                        "(number 7 of the set's collectives)"));
}

TEST(signatures_of_ranks_that_refuse_say_why) {
  const Status status = disagreement(
      {signature_of("a"), signature_of("a", {4}, "too much"), signature_of("a")}, {5, 6, 9}, 2);
  EXPECT_EQ(status.message(),
            std::string("a rank of process set 2 was given an argument that it cannot use"
                        "\n  ranks 5, 9 (2 of 3): allreduce \"a\" of float32[4], op=sum"
                        "\n  rank 6: allreduce \"a\" of float32[4], op=sum, refused: too much"));
}

}  // namespace
}  // namespace ringar::test
