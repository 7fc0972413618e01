// Lets a library that is linked on a new system run on an old one, with glibc 2.27.
//
// The linker binds a function to the newest version that the build machine's glibc has. Where an
// older glibc lacks that version, this file defines the function for the library alone (hidden),
// for our own code and for the static libstdc++ in it. `make check-wheels` tells what is missing
// here.

#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))

#include <dlfcn.h>

#include "compatibility/clock_wait.h"

// glibc 2.34 moved these from libpthread and libdl to libc, under a new version. Here they jump to
// the version that every glibc has; a jump, so that dlopen still sees who calls it.
#if defined(__x86_64__)
#define RINGAR_JUMP "endbr64\n jmp "
#define RINGAR_PLT "@PLT"
#define RINGAR_VERSION_OF(x86_64) "GLIBC_" x86_64
#else
#define RINGAR_JUMP "hint 34\n b "
#define RINGAR_PLT ""
#define RINGAR_VERSION_OF(x86_64) "GLIBC_2.17"
#endif

#define RINGAR_FORWARD(name, x86_64) \
  asm(".symver old_" #name ", " #name "@" RINGAR_VERSION_OF(x86_64) "\n"      \
      ".pushsection .text\n"                                                  \
      ".globl " #name "\n"                                                    \
      ".hidden " #name "\n"                                                   \
      ".type " #name ", %function\n" #name ":\n"                              \
      ".cfi_startproc\n" RINGAR_JUMP "old_" #name RINGAR_PLT "\n.cfi_endproc\n" \
      ".size " #name ", . - " #name "\n"                                      \
      ".popsection\n")

RINGAR_FORWARD(dladdr, "2.2.5");
RINGAR_FORWARD(dlerror, "2.2.5");
RINGAR_FORWARD(dlopen, "2.2.5");
RINGAR_FORWARD(dlsym, "2.2.5");
RINGAR_FORWARD(pthread_create, "2.2.5");
RINGAR_FORWARD(pthread_detach, "2.2.5");
RINGAR_FORWARD(pthread_join, "2.2.5");
RINGAR_FORWARD(pthread_mutex_trylock, "2.2.5");
RINGAR_FORWARD(pthread_once, "2.2.5");
RINGAR_FORWARD(pthread_rwlock_rdlock, "2.2.5");
RINGAR_FORWARD(pthread_rwlock_unlock, "2.2.5");
RINGAR_FORWARD(pthread_rwlock_wrlock, "2.2.5");
RINGAR_FORWARD(pthread_setname_np, "2.12");

extern "C" {

// glibc 2.32: libstdc++ leaves atomic operations out while there is one thread. There are more.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// glibc 2.30.
__attribute__((visibility("hidden"))) int pthread_cond_clockwait(pthread_cond_t* condition,
                                                                 pthread_mutex_t* mutex,
                                                                 clockid_t clock,
                                                                 const timespec* until) {
  static void* const function = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  return function ? reinterpret_cast<decltype(&pthread_cond_clockwait)>(function)(condition, mutex,
                                                                                  clock, until)
                  : ringar::wait_by_wall_clock(condition, mutex, clock, until);
}

}  // extern "C"

#endif
