// AMX: the tile registers and the three products made with them.
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

// What the eight tiles look like. Tiles 0 to 5 are of 16 rows x 64 bytes in both shapes; 0 to 3 hold sums.
enum class TileShape {
  GEMM,      // 6 and 7 too
  ATTENTION  // 6: 16 rows x 16 weights; 7: 8 pairs of tokens x 16 columns of their values
};

inline void shape_tiles(TileShape shape) {
  alignas(64) uint8_t config[64] = {};
  config[0] = 1;
  for (int tile = 0; tile < 8; tile++) {
    config[16 + 2 * tile] = 64;
    config[48 + tile] = 16;
  }
  if (shape == TileShape::ATTENTION) {
    config[16 + 2 * 6] = 32;
    config[48 + 7] = 8;
  }
  __asm__ volatile("" ::"r"(config) : "memory");  // GCC's intrinsic declares too small an input
  _tile_loadconfig(config);
}

// Tiles for this thread while in scope; released after, so that other users of AMX find a clean state.
class TileScope {
 public:
  explicit TileScope(bool enabled) : enabled_(enabled) {
    if (enabled_) shape_tiles(TileShape::GEMM);
  }
  ~TileScope() {
    if (enabled_) _tile_release();
  }
  TileScope(const TileScope&) = delete;

 private:
  bool enabled_;
};

// 32 rows of 32 floats, `row` floats apart; 0 repeats one row.
template <class Float>
struct TileBlock {
  Float* data;
  long row;
};

// out = init + a * b; `init.data` null is zero. `a` are two runs of activation tiles, `b` is a weight panel: gemm.h.
// A is read past L1: B, which is used again, stays there. `between(step)` runs while the tiles compute: they leave the
// vector units idle.
template <class F>
TG_INLINE void tile_mm(const bf16* first, const bf16* second, const bf16* b, int steps, TileBlock<const float> init,
                       TileBlock<float> out, F&& between) {
  if (init.data) {
    _tile_loadd(0, init.data, init.row * 4);
    _tile_loadd(1, init.data + 16, init.row * 4);
    _tile_loadd(2, init.data + 16 * init.row, init.row * 4);
    _tile_loadd(3, init.data + 16 * init.row + 16, init.row * 4);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int s = 0; s < steps; s++) {
    _tile_stream_loadd(4, first + s * 512, 64);
    _tile_stream_loadd(5, second + s * 512, 64);
    _tile_loadd(6, b + s * 1024, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, b + s * 1024 + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
    between(s);
  }
  _tile_stored(0, out.data, out.row * 4);
  _tile_stored(1, out.data + 16, out.row * 4);
  _tile_stored(2, out.data + 16 * out.row, out.row * 4);
  _tile_stored(3, out.data + 16 * out.row + 16, out.row * 4);
}

// Scores of 16 queries over two groups of keys: out[16][32]. Tiles in the shape ATTENTION.
TG_INLINE void tile_scores(const bf16* q, long q_row_bytes, const bf16* first, const bf16* second, int steps,
                           float* out, long out_row) {
  _tile_zero(0);
  _tile_zero(1);
  for (int s = 0; s < steps; s++) {
    _tile_loadd(4, q + s * 32, q_row_bytes);
    _tile_loadd(5, first + s * 512, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, second + s * 512, 64);
    _tile_dpbf16ps(1, 4, 5);
  }
  _tile_stored(0, out, out_row * 4);
  _tile_stored(1, out + 16, out_row * 4);
}

// sums[16][16 * N] += weights * values over groups of tokens; `values(i)` is the first column of group i.
template <int N, class V>
TG_INLINE void tile_weighted(const bf16* weights, long row_bytes, V&& values, long pair_bytes, int groups, float* sums,
                             long sums_row) {
  static_assert(N == 2 || N == 4);
  _tile_loadd(0, sums, sums_row * 4);
  _tile_loadd(1, sums + 16, sums_row * 4);
  if constexpr (N == 4) {
    _tile_loadd(2, sums + 32, sums_row * 4);
    _tile_loadd(3, sums + 48, sums_row * 4);
  }
  for (int g = 0; g < groups; g++) {
    const bf16* v = values(g);
    _tile_loadd(6, weights + g * 16, row_bytes);
    _tile_loadd(7, v, pair_bytes);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, v + 32, pair_bytes);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (N == 4) {
      _tile_loadd(7, v + 64, pair_bytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, v + 96, pair_bytes);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_stored(0, sums, sums_row * 4);
  _tile_stored(1, sums + 16, sums_row * 4);
  if constexpr (N == 4) {
    _tile_stored(2, sums + 32, sums_row * 4);
    _tile_stored(3, sums + 48, sums_row * 4);
  }
}

#else

inline bool amx_allowed() { return false; }
struct TileScope {
  explicit TileScope(bool) {}
};

#endif

}  // namespace tg
