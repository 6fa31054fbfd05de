// Activations times packed weights, for one row or a thousand.
//
// Weights [n][k] lie in panels of 32 columns, [n/32][k/word][32][word], zero-padded in n and k.
// Activations lie in 16-row tiles, [rows/16][k/32][16][32], so that a tile is one contiguous KiB.
#pragma once
#include <algorithm>

#include "team.h"
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
    const unsigned r = row, c = col;
    return data + ((size_t)(r / 16) * (k / 32) + c / 32) * 512 + r % 16 * 32 + c % 32;
  }
};

// What becomes of the sums of a row in a panel.
template <class T>
struct Epilogue {
  enum Kind { STORE, ADD, SWIGLU } kind;
  float* out = nullptr;  // STORE, ADD: row-major, `n` columns, from `first_row` on
  int n = 0;
  int first_row = 0;
  const float* bias = nullptr;  // STORE: padded to a multiple of 32, or null
  bool padded = true;           // STORE, ADD: whether there is room for 32 rows at a time
  Activations<T> act{};         // SWIGLU: the left half of a panel is the gate, the right half goes through

  TG_INLINE void operator()(const float* sums, int row, int col) const {
    if (kind == SWIGLU) return store(act.at(row, col / 2), silu<T>(load(sums)) * load(sums + LANES));
    float* to = at(row, col);
    for (int i = 0; i < PANEL && col + i < n; i += LANES) {
      f32v v = load(sums + i);
      if (bias) v += load(bias + col + i);
      if (col + i + LANES > n) return tail(to + i, v, n - col - i);
      store(to + i, kind == ADD ? v + load(to + i) : v);
    }
  }

  float* at(int row, int col) const { return out + (size_t)(row - first_row) * n + col; }

  // Whether the sums of this panel can be made in place: no step of their own is left then.
  bool in_place(int col) const { return kind != SWIGLU && padded && col + PANEL <= n; }

 private:
  void tail(float* to, f32v v, int num) const {
    for (int i = 0; i < num; i++) to[i] = kind == ADD ? to[i] + v[i] : v[i];
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

struct Rows {
  int from, to;
};

// The same for every CPU and both types: rows of A in registers against one panel.
template <class T>
void panel_by_rows(const Activations<T>& a, Rows rows, const Weight<T>& w, int index, const Epilogue<T>& finish) {
  alignas(64) float c[PANEL * PANEL];
  const T* panel = w.panel(index);
  for (int block = rows.from; block < rows.to; block += PANEL) {
    const int n = std::min(PANEL, rows.to - block);
    int r = 0;
    for (; r + ROWS_AT_ONCE <= n; r += ROWS_AT_ONCE) row_block<T, ROWS_AT_ONCE>(a, block + r, panel, c + r * PANEL);
    for (; r + 2 <= n; r += 2) row_block<T, 2>(a, block + r, panel, c + r * PANEL);
    for (; r < n; r++) row_block<T, 1>(a, block + r, panel, c + r * PANEL);
    for (r = 0; r < n; r++) finish(c + r * PANEL, block + r, index * PANEL);
  }
}

// The sums of two panels: one is finished while the other is computed.
inline size_t num_sums(int rows) { return (size_t)round_up(rows, PANEL) * PANEL * 2; }

#if TG_AMX
constexpr int K_CHUNK = 640;  // 32 columns of it are 40 KiB: they stay in L1 while the rows go by

// Panels of one thread on tiles. Sums that are not made in place go to scratch, and a block of them is finished while
// the next block is computed.
class TileGemm {
 public:
  // `sums` is scratch of `num_sums(rows)` floats.
  TileGemm(const Activations<bf16>& a, Rows rows, const Weight<bf16>& w, float* sums, const Epilogue<bf16>& finish)
      : a_(a), rows_(rows), w_(w), sums_(sums), finish_(finish), blocks_((rows.to - rows.from + PANEL - 1) / PANEL) {}

  void panel(int index) {
    const int steps = a_.k / 32, chunks = (a_.k + K_CHUNK - 1) / K_CHUNK, chunk = (steps + chunks - 1) / chunks;
    for (int from = 0; from < steps; from += chunk)
      for (int block = 0; block < blocks_; block++) {
        const Part part{index, block, from, std::min(chunk, steps - from)};
        if (finish_.in_place(index * PANEL)) in_place(part);
        else aside(part, from + part.steps == steps);
      }
    turn_ ^= 1;
  }

  void flush() {
    for (int r = 0; r < pending_.num; r++) finish_row(r);
    pending_.num = 0;
  }

 private:
  struct Part {
    int panel, block, from, steps;  // of 32 summed values each
  };
  struct Block {
    float* sums;
    int row, num, col;
  };

  void in_place(Part p) {
    const int row = rows_.from + p.block * PANEL, col = p.panel * PANEL;
    float* out = finish_.at(row, col);
    TileBlock<const float> init{out, finish_.n};
    if (p.from == 0 && finish_.kind == Epilogue<bf16>::STORE) init = {finish_.bias ? finish_.bias + col : nullptr, 0};
    multiply(p, init, {out, finish_.n}, [](int) {});
  }

  void aside(Part p, bool last) {
    const int row = rows_.from + p.block * PANEL;
    const Block now{sums_ + (size_t)(turn_ * blocks_ + p.block) * PANEL * PANEL, row, std::min(PANEL, rows_.to - row),
                    p.panel * PANEL};
    multiply(p, {p.from ? now.sums : nullptr, PANEL}, {now.sums, PANEL}, [&](int step) {
      for (int r = 2 * step; r < std::min(2 * step + 2, pending_.num); r++) finish_row(r);
    });
    for (int r = 2 * p.steps; r < pending_.num; r++) finish_row(r);
    pending_ = now;
    if (!last) pending_.num = 0;
  }

  template <class F>
  TG_INLINE void multiply(Part p, TileBlock<const float> init, TileBlock<float> out, F&& between) {
    const int all_steps = a_.k / 32;
    const bf16* a = a_.at(rows_.from + p.block * PANEL, p.from * 32);
    const bf16* b = w_.panel(p.panel) + p.from * 1024;
    // With one block of rows the weights are read once: run 8 KiB ahead. Else fetch the next panel bit by bit.
    const bool once = blocks_ == 1;
    const int lines = once ? 32 : 32 / blocks_ + 1;
    const size_t step_of_panel = (size_t)p.from * blocks_ + p.block * p.steps;
    const bf16* ahead = once ? b + 4096 : w_.panel(p.panel + 1) + step_of_panel * lines * 32;
    tile_mm(a, a + all_steps * 512, b, p.steps, init, out, [&](int step) {
      for (int line = 0; line < lines; line++) prefetch_l2(ahead + (step * lines + line) * 32);
      between(step);
    });
  }

  TG_INLINE void finish_row(int r) const { finish_(pending_.sums + r * PANEL, pending_.row + r, pending_.col); }

  const Activations<bf16> a_;
  const Rows rows_;
  const Weight<bf16> w_;
  float* const sums_;
  const Epilogue<bf16> finish_;
  const int blocks_;
  int turn_ = 0;
  Block pending_{nullptr, 0, 0, 0};
};
#endif

}  // namespace tg
