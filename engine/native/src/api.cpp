// What Python calls through ctypes. Nothing throws across this border: failures are null or non-zero.
#include "llama.h"

namespace {

struct Handle {
  virtual ~Handle() = default;
  virtual void step(const tg::Batch& batch) = 0;
};

template <class T>
struct HandleOf final : Handle {
  tg::Llama<T> llama;
  HandleOf(const tg::Config& config, const tg::Layer* layers, bool amx) : llama(config, layers, amx) {}
  void step(const tg::Batch& batch) override { llama.step(batch); }
};

}  // namespace

#define TG_EXPORT __attribute__((visibility("default")))

extern "C" {

// What this build uses: 2 AMX tiles, 1 AVX-512 dot products of bfloat16, 0 plain float arithmetic.
TG_EXPORT int tg_level() {
  if (tg::amx_allowed()) return 2;
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

// `use_tiles` 0 keeps AMX out even where it is there.
TG_EXPORT void* tg_llama_new(const tg::Config* config, const tg::Layer* layers, int is_bfloat16, int use_tiles) {
  try {
    if (is_bfloat16) return new HandleOf<tg::bf16>(*config, layers, use_tiles && tg::amx_allowed());
    return new HandleOf<float>(*config, layers, false);
  } catch (...) {
    return nullptr;
  }
}

TG_EXPORT int tg_llama_step(void* handle, const tg::Batch* batch) {
  try {
    static_cast<Handle*>(handle)->step(*batch);
    return 0;
  } catch (...) {
    return 1;
  }
}

TG_EXPORT void tg_llama_delete(void* handle) { delete static_cast<Handle*>(handle); }

}  // extern "C"
