// Warnings of a job that goes on: to the handler of ringar_on_warning, else to standard error.

#pragma once

#include <string>

namespace ringar {

// `text` begins with its rank and has no newline at its end. Any thread may warn.
void warn(const std::string& text);

}  // namespace ringar
