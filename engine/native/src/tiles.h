// The one AMX micro-kernel: a 32x32 float block += bf16 A (two tiles of 16 rows) times bf16 B (two tiles of 16 columns).
#pragma once
#include "vec.h"
#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#define TG_AMX 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tg {

#if TG_AMX

// Linux hands out the tile registers on request, once for a process.
inline bool amx_allowed() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  static const bool allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
  return allowed;
}

// Eight tiles of 16 rows x 64 bytes while in scope; released after, so that other users of AMX find a clean state.
class TileScope {
 public:
  explicit TileScope(bool enabled) : enabled_(enabled) {
    if (!enabled_) return;
    alignas(64) uint8_t config[64] = {};
    config[0] = 1;
    for (int tile = 0; tile < 8; tile++) {
      config[16 + 2 * tile] = 64;
      config[48 + tile] = 16;
    }
    __asm__ volatile("" ::"r"(config) : "memory");  // GCC's intrinsic declares too small an input
    _tile_loadconfig(config);
  }
  ~TileScope() {
    if (enabled_) _tile_release();
  }
  TileScope(const TileScope&) = delete;

 private:
  bool enabled_;
};

struct TileOperand {
  const bf16* first;
  const bf16* second;
  long row_bytes;
  long step;  // elements from one group of 32 summed values to the next
};

// What to bring into L2 while the tiles compute: `lines` cache lines a step, from `from` on.
struct Ahead {
  const bf16* from = nullptr;
  int lines = 0;
};

// `c` is row-major with `ldc` floats a row. A is read past L1 when `stream_a`: B, which is used again, stays there.
template <bool stream_a>
inline void tile_mm(TileOperand a, TileOperand b, int steps, float* c, long ldc, bool accumulate, Ahead ahead = {}) {
  if (accumulate) {
    _tile_loadd(0, c, ldc * 4);
    _tile_loadd(1, c + 16, ldc * 4);
    _tile_loadd(2, c + 16 * ldc, ldc * 4);
    _tile_loadd(3, c + 16 * ldc + 16, ldc * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int s = 0; s < steps; s++) {
    if constexpr (stream_a) {
      _tile_stream_loadd(4, a.first + s * a.step, a.row_bytes);
      _tile_stream_loadd(5, a.second + s * a.step, a.row_bytes);
    } else {
      _tile_loadd(4, a.first + s * a.step, a.row_bytes);
      _tile_loadd(5, a.second + s * a.step, a.row_bytes);
    }
    _tile_loadd(6, b.first + s * b.step, b.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, b.second + s * b.step, b.row_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    for (int line = 0; line < ahead.lines; line++) prefetch_l2(ahead.from + (s * ahead.lines + line) * 32);
  }
  _tile_stored(0, c, ldc * 4);
  _tile_stored(1, c + 16, ldc * 4);
  _tile_stored(2, c + 16 * ldc, ldc * 4);
  _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
}

#else

inline bool amx_allowed() { return false; }
struct TileScope {
  explicit TileScope(bool) {}
};

#endif

}  // namespace tg
