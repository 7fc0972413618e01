#include "links/library.h"

#include <dlfcn.h>

namespace ringar {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(RTLD_DEEPBIND)
constexpr int kSeesItselfFirst = 0;  // would see the C library before the sanitizer
#else
constexpr int kSeesItselfFirst = RTLD_DEEPBIND;
#endif

// A library that sees itself and its own libraries first has the C library's free(). With another
// allocator in the process (tcmalloc by LD_PRELOAD), strdup() would bring it memory of that one.
bool has_the_usual_allocator() {
  Dl_info allocator{}, libc{};
  void* const allocates = dlsym(RTLD_DEFAULT, "malloc");
  void* const of_libc = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
  return allocates && of_libc && dladdr(allocates, &allocator) != 0 &&
         dladdr(of_libc, &libc) != 0 && allocator.dli_fbase == libc.dli_fbase;
}

}  // namespace

// The scope in which a library looks for functions is that of its first opening.
Status Library::open(const std::string& file) {
  file_ = file;
  const bool is_new = !dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const int scope = has_the_usual_allocator() ? kSeesItselfFirst : 0;
  calls_itself_ = is_new && scope != 0;
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | scope);
  if (handle_) return {};
  return {RINGAR_UNSUPPORTED, "expected " + name_ + ", found none (" + dlerror() + "). " + remedy_};
}

void* Library::find(const char* function) {
  void* const symbol = dlsym(handle_, function);
  if (!symbol) missing_functions_.emplace_back(function);
  return symbol;
}

Status Library::complete() const {
  if (missing_functions_.empty()) return {};
  return {RINGAR_UNSUPPORTED, "expected " + name_ + " with " + missing_functions_.front() +
                                  ", received " + file_ + " without it. " + remedy_};
}

}  // namespace ringar
