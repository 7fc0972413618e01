// A collective without arrays, whose name carries what the ranks must agree on.

#pragma once

#include <functional>
#include <string>
#include <utility>

#include "engine/request.h"

namespace ringar {

// `preparation` is called when its turn has come, and returns why this rank does not agree, or "".
class Agreement : public InternalRequest {
 public:
  using Preparation = std::function<std::string()>;
  using Conclusion = std::function<Status()>;

  Agreement(
      Collective collective, std::string name, Preparation preparation = [] { return ""; },
      Conclusion conclusion = [] { return Status(); }, int process_set = 0)
      : preparation_(std::move(preparation)), conclusion_(std::move(conclusion)) {
    spec_.collective = collective;
    spec_.process_set = process_set;
    spec_.name = std::move(name);
  }
  std::string rejection(int) const override { return preparation_(); }
  Status conclude() override { return conclusion_(); }

 private:
  const Preparation preparation_;
  const Conclusion conclusion_;
};

}  // namespace ringar
