// Attention of one position over its KV: what decode does for a sequence, and prefill does where there are no tiles.
#pragma once
#include <algorithm>

#include "kv.h"

namespace tg {

constexpr float MASKED = -1e30f;  // finite, so that a wholly masked chunk is undone by the next maximum
constexpr int CHUNK = 64;         // tokens between two updates of the running maximum

// Running softmax of every query head over the tokens seen so far; maxima are in units of log2.
struct Partial {
  float* max;  // [heads]
  float* sum;  // [heads]
  float* acc;  // [heads][head_dim]

  static size_t floats(int heads, int head_dim) { return (size_t)heads * (head_dim + 2); }
  Partial(float* at, int heads) : max(at), sum(at + heads), acc(at + 2 * heads) {}
  void clear(int heads, int head_dim) const {
    std::fill(max, max + heads, MASKED);
    std::fill(sum, sum + (size_t)heads * (head_dim + 1), 0.f);
  }
};

template <class T, int R>
inline void scores(const KvLayer<T>& kv, const T* q, const T* keys, const T* ahead, f32v* out) {
  using Word = typename Packed<T>::Word;
  constexpr int W = Packed<T>::PER_WORD;
  f32v sum[R][2] = {};
  for (int i = 0; i < kv.head_dim / W; i += 2) {
    prefetch_l1(ahead + i * GROUP * W);
    prefetch_l1(ahead + (i + 1) * GROUP * W);
    for (int r = 0; r < R; r++) {
      Word word[2];
      std::memcpy(word, q + r * kv.head_dim + i * W, sizeof word);
      sum[r][0] = mac(sum[r][0], keys + i * GROUP * W, word[0]);
      sum[r][1] = mac(sum[r][1], keys + (i + 1) * GROUP * W, word[1]);
    }
  }
  for (int r = 0; r < R; r++) out[r] = sum[r][0] + sum[r][1];
}

// acc[r][columns] += weights[r][16 tokens] * values, 16 * V columns at a time.
template <class T, int R, int V>
inline void weigh(int head_dim, const T* weights, const T* values, const T* ahead, float* acc) {
  using Word = typename Packed<T>::Word;
  constexpr int W = Packed<T>::PER_WORD;
  f32v sum[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sum[r][v] = load(acc + r * head_dim + v * LANES);
  for (int i = 0; i < GROUP / W; i++) {
    const T* row = values + i * head_dim * W;
    for (int v = 0; v < V; v++) prefetch_l1(ahead + i * head_dim * W + v * LANES * W);
    for (int r = 0; r < R; r++) {
      Word word;
      std::memcpy(&word, weights + r * CHUNK + i * W, sizeof word);
      for (int v = 0; v < V; v++) sum[r][v] = mac(sum[r][v], row + v * LANES * W, word);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(acc + r * head_dim + v * LANES, sum[r][v]);
}

struct Span {
  int from, to;  // token positions, `to` excluded
};

// Keys of a chunk's groups, of the first KV head.
template <class T>
struct ChunkKeys {
  const T* group[CHUNK / GROUP];

  // Past the last token the last group stands in.
  ChunkKeys(const KvLayer<T>& kv, const int32_t* table, int from, int end) {
    for (int g = 0; g < CHUNK / GROUP; g++) group[g] = kv.keys(table, 0, std::min(from + g * GROUP, end - 1) / GROUP);
  }
};

// R query heads that share a KV head, over one chunk of tokens; `next` is fetched meanwhile. `head` is the KV head's
// distance from the first.
template <class T, int R>
void attend_chunk(const KvLayer<T>& kv, size_t head, const ChunkKeys<T>& keys, const ChunkKeys<T>& next, const T* q,
                  float scale_log2, Span chunk, Span seen, float* max_, float* sum_, float* acc) {
  constexpr int W = Packed<T>::PER_WORD;
  const int groups = (chunk.to - chunk.from + GROUP - 1) / GROUP;
  alignas(64) float score[R][CHUNK];
  alignas(64) T weight[R][CHUNK];
  f32v top[R];
  for (int r = 0; r < R; r++) top[r] = splat(max_[r]);
  for (int g = 0; g < groups; g++) {
    f32v s[R];
    scores<T, R>(kv, q, keys.group[g] + head, next.group[g] + head, s);
    const int position = chunk.from + g * GROUP;
    const bool edge = position < seen.from || position + GROUP > seen.to;
    for (int r = 0; r < R; r++) {
      s[r] *= scale_log2;
      if (edge) {
        const i32v at = lane_index() + position;
        s[r] = (at >= seen.from) & (at < seen.to) ? s[r] : splat(MASKED);
      }
      top[r] = max(top[r], s[r]);
      store(&score[r][g * GROUP], s[r]);
    }
  }
  for (int r = 0; r < R; r++) {
    const float m = hmax(top[r]);
    const float shrink = exp2<float>(splat(max_[r] - m))[0];
    f32v sum{};
    for (int g = 0; g < groups; g++) {
      const f32v e = exp2<T>(load(&score[r][g * GROUP]) - m);
      sum += e;
      store(&weight[r][g * GROUP], e);
    }
    max_[r] = m;
    sum_[r] = sum_[r] * shrink + hsum(sum);
    for (int d = 0; d < kv.head_dim; d += LANES)
      store(acc + r * kv.head_dim + d, load(acc + r * kv.head_dim + d) * shrink);
  }
  for (int g = 0; g < groups; g++) {
    const T *values = kv.values(keys.group[g] + head), *ahead = kv.values(next.group[g] + head);
    int d = 0;
    for (; d + 4 * LANES <= kv.head_dim; d += 4 * LANES)
      weigh<T, R, 4>(kv.head_dim, &weight[0][g * GROUP], values + d * W, ahead + d * W, acc + d);
    for (; d < kv.head_dim; d += LANES)
      weigh<T, R, 1>(kv.head_dim, &weight[0][g * GROUP], values + d * W, ahead + d * W, acc + d);
  }
}

// All query heads of one position over the tokens `seen`; q is [heads][head_dim].
template <class T>
void attend(const KvLayer<T>& kv, const int32_t* table, int heads, const T* q, float scale_log2, Span seen,
            const Partial& state) {
  const int per_kv_head = heads / kv.heads, D = kv.head_dim, start = seen.from / GROUP * GROUP;
  ChunkKeys<T> keys(kv, table, start, seen.to);
  for (int from = start; from < seen.to; from += CHUNK) {
    const ChunkKeys<T> next(kv, table, from + CHUNK, seen.to);
    const Span chunk{from, std::min(from + CHUNK, seen.to)};
    for (int kv_head = 0; kv_head < kv.heads; kv_head++)
      for (int g = 0; g < per_kv_head;) {
        const int h = kv_head * per_kv_head + g, left = per_kv_head - g;
        auto run = [&](auto rows) {
          attend_chunk<T, decltype(rows)::value>(kv, kv_head * kv.head_stride(), keys, next, q + h * D, scale_log2,
                                                 chunk, seen, state.max + h, state.sum + h, state.acc + h * D);
          g += decltype(rows)::value;
        };
        if (left >= 4) run(std::integral_constant<int, 4>{});
        else if (left == 3) run(std::integral_constant<int, 3>{});
        else if (left == 2) run(std::integral_constant<int, 2>{});
        else run(std::integral_constant<int, 1>{});
      }
    keys = next;
  }
}

}  // namespace tg
