// Activations times packed weights, for one row or a thousand. Every function here is called by all threads of a team.
//
// Weights [n][k] lie in panels of 32 columns, [n/32][k/word][32][word], zero-padded in n and k.
// Activations lie in 16-row tiles, [rows/16][k/32][16][32], so that a tile is one contiguous KiB.
#pragma once
#include <algorithm>

#include "tiles.h"

namespace tg {

constexpr int PANEL = 32;  // columns of a weight panel, rows of a block, and the granule of k

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

template <class T>
struct Weight {
  const T* data;
  int n, k;
  const T* panel(int index) const { return data + (size_t)index * PANEL * round_up(k, PANEL); }
  int num_panels() const { return (n + PANEL - 1) / PANEL; }
};

template <class T>
struct Activations {
  T* data;
  int k;  // padded to a multiple of 32
  T* at(int row, int col) const {
    return data + ((size_t)(row / 16) * (k / 32) + col / 32) * 512 + (row % 16) * 32 + col % 32;
  }
};

// What becomes of a 32x32 block of sums.
template <class T>
struct Epilogue {
  enum Kind { STORE, ADD, SWIGLU } kind;
  float* out = nullptr;  // STORE, ADD: row-major, `n` columns
  int n = 0;
  const float* bias = nullptr;  // STORE: padded to a multiple of 32, or null
  Activations<T> act{};         // SWIGLU: the left half of a panel is the gate, the right half goes through

  void operator()(const float* c, int row, int rows, int col) const {
    if (kind == SWIGLU) return swiglu(c, row, rows, col / 2);
    for (int r = 0; r < rows; r++)
      for (int half = 0; half < PANEL && col + half < n; half += LANES) {
        f32v v = load(c + r * PANEL + half);
        float* to = out + (size_t)(row + r) * n + col + half;
        if (bias) v += load(bias + col + half);
        if (col + half + LANES > n) {
          for (int i = 0; i < n - col - half; i++) to[i] = kind == ADD ? to[i] + v[i] : v[i];
        } else {
          store(to, kind == ADD ? v + load(to) : v);
        }
      }
  }

 private:
  void swiglu(const float* c, int row, int rows, int col) const {
    for (int r = 0; r < rows; r++)
      store(act.at(row + r, col), silu<T>(load(c + r * PANEL)) * load(c + r * PANEL + LANES));
  }
};

#if defined(__AVX512F__)
constexpr int ROWS_AT_ONCE = 8;
#else
constexpr int ROWS_AT_ONCE = 2;
#endif

template <class T, int R>
inline void row_block(const Activations<T>& a, int row, const T* panel, float* c) {
  using Word = typename Packed<T>::Word;
  constexpr int PER_WORD = Packed<T>::PER_WORD;
  f32v sum[R][2] = {};
  for (int k0 = 0; k0 < a.k; k0 += 32) {
    const T* x = a.at(row, k0);
    for (int i = 0; i < 32 / PER_WORD; i++, panel += PANEL * PER_WORD) {
      prefetch_l2(panel + 4096 / sizeof(T));
      for (int r = 0; r < R; r++) {
        Word word;
        std::memcpy(&word, x + r * 32 + i * PER_WORD, sizeof word);
        sum[r][0] = mac(sum[r][0], panel, word);
        sum[r][1] = mac(sum[r][1], panel + LANES * PER_WORD, word);
      }
    }
  }
  for (int r = 0; r < R; r++) {
    store(c + r * PANEL, sum[r][0]);
    store(c + r * PANEL + LANES, sum[r][1]);
  }
}

// The same for every CPU and both types: rows of A in registers against one panel.
template <class T>
void panel_by_rows(const Activations<T>& a, int rows, const T* panel, int col, const Epilogue<T>& finish) {
  alignas(64) float c[PANEL * PANEL];
  for (int block = 0; block < rows; block += PANEL) {
    const int n = std::min(PANEL, rows - block);
    int r = 0;
    for (; r + ROWS_AT_ONCE <= n; r += ROWS_AT_ONCE) row_block<T, ROWS_AT_ONCE>(a, block + r, panel, c + r * PANEL);
    for (; r + 2 <= n; r += 2) row_block<T, 2>(a, block + r, panel, c + r * PANEL);
    for (; r < n; r++) row_block<T, 1>(a, block + r, panel, c + r * PANEL);
    finish(c, block, n, col);
  }
}

#if TG_AMX
constexpr int K_CHUNK = 640;  // 32 columns of it are 40 KiB: they stay in L1 while the rows go by

inline void panel_by_tiles(const Activations<bf16>& a, int rows, const Weight<bf16>& w, int index, float* c,
                           const Epilogue<bf16>& finish) {
  const int blocks = (rows + PANEL - 1) / PANEL, steps = a.k / 32;
  const int chunks = (a.k + K_CHUNK - 1) / K_CHUNK, chunk_steps = (steps + chunks - 1) / chunks;
  const bf16* panel = w.panel(index);
  for (int from = 0; from < steps; from += chunk_steps) {
    const int num = std::min(chunk_steps, steps - from);
    for (int block = 0; block < blocks; block++) {
      const bf16* b = panel + from * 1024;
      const bf16* tile = a.at(block * PANEL, from * 32);
      float* sums = c + (size_t)block * PANEL * PANEL;
      // With one block of rows the weights are read once: run 8 KiB ahead. Else fetch the next panel bit by bit.
      const int lines = blocks == 1 ? 32 : 32 / blocks + 1;
      const bf16* ahead = blocks == 1 ? b + 4096 : panel + (size_t)steps * 1024 + ((size_t)from * blocks + block * num) * lines * 32;
      tile_mm<true>({tile, tile + steps * 512, 64, 512}, {b, b + 32, 128, 1024}, num, sums, PANEL, from > 0,
                    {ahead, lines});
      if (from + num == steps) finish(sums, block * PANEL, std::min(PANEL, rows - block * PANEL), index * PANEL);
    }
  }
}
#endif

// `c` is this thread's scratch: 32 floats for each row, rounded up to blocks.
template <class T>
void gemm(const Activations<T>& a, int rows, const Weight<T>& w, float* c, bool amx, const Epilogue<T>& finish) {
#pragma omp for schedule(guided)
  for (int index = 0; index < w.num_panels(); index++) {
#if TG_AMX
    if constexpr (sizeof(T) == 2) {
      if (amx) {
        panel_by_tiles(a, rows, w, index, c, finish);
        continue;
      }
    }
#endif
    panel_by_rows<T>(a, rows, w.panel(index), index * PANEL, finish);
  }
}

}  // namespace tg
