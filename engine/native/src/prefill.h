// Attention of 32 positions over the cached prefix and the chunk itself, on AMX tiles, one KV head at a time.
#pragma once
#include "buffer.h"
#include "decode.h"
#include "gemm.h"

namespace tg {

#if TG_AMX

constexpr int QUERIES = 32;
constexpr int PREFILL_CHUNK = 256;  // tokens between two updates of the running maximum

// One thread's scratch: scores, weights and values of a chunk, the running state of a block of queries.
struct PrefillScratch {
  Buffer<float> scores, acc, max, sum;
  Buffer<bf16> weights, values;

  void reserve(int per_kv_head, int head_dim) {
    const size_t rows = (size_t)per_kv_head * QUERIES;
    scores.reserve(QUERIES * PREFILL_CHUNK);
    weights.reserve(QUERIES * PREFILL_CHUNK);
    values.reserve((size_t)PREFILL_CHUNK * head_dim);
    acc.reserve(rows * head_dim);
    max.reserve(rows);
    sum.reserve(rows * LANES);
  }
  void clear(int per_kv_head, int head_dim) {
    const size_t rows = (size_t)per_kv_head * QUERIES;
    std::fill_n(acc.data(), rows * head_dim, 0.f);
    std::fill_n(sum.data(), rows * LANES, 0.f);
    std::fill_n(max.data(), rows, MASKED);
  }
};

struct QueryBlock {
  const bf16* q;  // row of the first position, first head of the group; rows are `row` elements apart
  int row;
  int per_kv_head;
  int position, num;  // positions `position .. position + num - 1`
  int window;         // tokens a position sees at most, itself included
  float scale_log2;

  int sees_from(int r) const { return std::max(0, position + r + 1 - window); }
  int sees_to(int r) const { return position + std::min(r, num - 1) + 1; }
};

// Turns scores into weights, row by row, and rescales what was accumulated under the old maximum.
inline void soften(const QueryBlock& block, Span chunk, const float* scores, int width, bf16* weights, float* max_,
                   float* sum_, float* acc, int head_dim) {
  for (int r = 0; r < QUERIES; r++, scores += PREFILL_CHUNK, weights += PREFILL_CHUNK, acc += head_dim) {
    const int from = block.sees_from(r) - chunk.from, to = block.sees_to(r) - chunk.from;
    alignas(64) f32v x[PREFILL_CHUNK / LANES];
    f32v top = splat(MASKED);
    const bool whole = from <= 0 && to >= width;
    for (int i = 0; i < width / LANES; i++) {
      x[i] = load(scores + i * LANES);
      if (!whole) {
        const i32v at = lane_index() + i * LANES;
        x[i] = (at >= from) & (at < to) ? x[i] : splat(MASKED);
      }
      top = max(top, x[i]);
    }
    const float m = std::max(max_[r], hmax(top) * block.scale_log2);
    f32v sum{};
    for (int i = 0; i < width / LANES; i++) {
      const f32v e = exp2<bf16>(x[i] * block.scale_log2 - m);
      sum += e;
      store(weights + i * LANES, e);
    }
    const float shrink = exp2<float>(splat(max_[r] - m))[0];
    store(sum_ + r * LANES, load(sum_ + r * LANES) * shrink + sum);
    if (m != max_[r])
      for (int d = 0; d < head_dim; d += LANES) store(acc + d, load(acc + d) * shrink);
    max_[r] = m;
  }
}

inline void prefill_block(const KvLayer<bf16>& kv, const int32_t* table, int kv_head, const QueryBlock& block,
                          PrefillScratch& s, Activations<bf16> out, int out_row) {
  const int D = kv.head_dim, end = block.sees_to(QUERIES - 1), last = (end - 1) / GROUP;
  const bf16 *weights = s.weights.data(), *values = s.values.data();
  s.clear(block.per_kv_head, D);
  for (int from = block.sees_from(0) / GROUP * GROUP; from < end; from += PREFILL_CHUNK) {
    const Span chunk{from, std::min(from + PREFILL_CHUNK, end)};
    const int width = round_up(chunk.to - from, 2 * GROUP), first = from / GROUP;
    auto group = [&](int i) { return kv.group(table, kv_head, std::min(first + i, last)); };
    for (int i = 0; i < width / GROUP; i++)
      std::memcpy(s.values.data() + (size_t)i * GROUP * D, kv.values(group(i)), GROUP * D * sizeof(bf16));
    for (int g = 0; g < block.per_kv_head; g++) {
      const bf16* q = block.q + g * D;
      for (int i = 0; i < width / GROUP; i += 2)
        tile_mm<false>({q, q + 16 * block.row, block.row * 2L, 32}, {group(i), group(i + 1), 64, 512}, D / 32,
                       s.scores.data() + i * GROUP, PREFILL_CHUNK, false);
      float* acc = s.acc.data() + (size_t)g * QUERIES * D;
      soften(block, chunk, s.scores.data(), width, s.weights.data(), s.max.data() + g * QUERIES,
             s.sum.data() + g * QUERIES * LANES, acc, D);
      for (int d = 0; d < D; d += 32)
        tile_mm<false>({weights, weights + 16 * PREFILL_CHUNK, PREFILL_CHUNK * 2, 32},
                       {values + d * 2, values + d * 2 + 32, D * 4L, 32L * D}, width / 32, acc + d, D, true);
    }
  }
  for (int g = 0; g < block.per_kv_head; g++)
    for (int r = 0; r < block.num; r++) {
      const float inverse = 1.f / hsum(load(s.sum.data() + (g * QUERIES + r) * LANES));
      for (int d = 0; d < D; d += LANES)
        store(out.at(out_row + r, (kv_head * block.per_kv_head + g) * D + d),
              load(s.acc.data() + ((size_t)g * QUERIES + r) * D + d) * inverse);
    }
}

#endif

}  // namespace tg
