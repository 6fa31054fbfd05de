// Attention of 16 positions over the cached prefix and the chunk itself, on AMX tiles, one KV head at a time.
#pragma once
#include "buffer.h"
#include "decode.h"
#include "gemm.h"

namespace tg {

#if TG_AMX

constexpr int QUERIES = 16;
constexpr int PREFILL_CHUNK = 64;  // tokens: three units of scores, their keys and values stay in L1

// Weights may grow to 2^SLACK before what was accumulated is rescaled: they are exact to the same number of bits.
constexpr float SLACK = 8;

// One thread's scratch: scores (then weights, in place) and values of a chunk, the running state of a block of queries.
struct PrefillScratch {
  Buffer<float> scores, acc, max, sum;
  alignas(64) float shrink[QUERIES];

  void reserve(int per_kv_head, int head_dim) {
    const size_t rows = (size_t)per_kv_head * QUERIES;
    scores.reserve(3 * QUERIES * PREFILL_CHUNK);
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

// Folds 16 vectors, one a lane: pairwise, so that it takes 15 folds and not 16 times 4.
template <class F>
TG_INLINE f32v fold_rows(const f32v* rows, F&& fold) {
  __m512 v[8];
  for (int i = 0; i < 8; i++) {
    const __m512 a = (__m512)rows[i], b = (__m512)rows[i + 8];
    v[i] = fold(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  }
  for (int i = 0; i < 4; i++)
    v[i] = fold(_mm512_shuffle_f32x4(v[i], v[i + 4], 0x88), _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd));
  for (int i = 0; i < 2; i++)
    v[i] = fold(_mm512_shuffle_ps(v[i], v[i + 2], 0x44), _mm512_shuffle_ps(v[i], v[i + 2], 0xee));
  v[0] = fold(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return (f32v)_mm512_permutexvar_ps(order, v[0]);
}

// One block of queries against one KV head. A unit of work is one head against one chunk. The three stages of a unit
// are two units apart: a tile load waits for stores that are still on their way to the cache.
class PrefillBlock {
 public:
  PrefillBlock(const KvLayer<bf16>& kv, const int32_t* table, int kv_head, const QueryBlock& block, PrefillScratch& s)
      : kv_(kv), table_(table), kv_head_(kv_head), D(kv.head_dim), block_(block), s_(s),
        start_(block.sees_from(0) / GROUP * GROUP), end_(block.sees_to(QUERIES - 1)) {}

  void run(Activations<bf16> out, int out_row) {
    s_.clear(block_.per_kv_head, D);
    Unit before{}, now{}, next = first();
    score(next);
    for (bool more = true; more;) {
      before = now;
      now = next;
      more = advance(next);
      find_maxima(now);
      if (more) score(next);
      for (int r = 0; r < QUERIES; r++) weigh(now, r);
      if (before.scores) accumulate(before);
      rescale(now);
    }
    accumulate(now);
    for (int g = 0; g < block_.per_kv_head; g++) finish(g, out, out_row);
  }

 private:
  struct Unit {
    int head, from, width;
    float* scores;
    const bf16* keys[PREFILL_CHUNK / GROUP];
  };

  Unit first() const {
    Unit u{0, start_, 0, s_.scores.data(), {}};
    open_chunk(u);
    return u;
  }

  bool advance(Unit& u) const {
    u.scores += QUERIES * PREFILL_CHUNK;
    if (u.scores == s_.scores.data() + 3 * QUERIES * PREFILL_CHUNK) u.scores = s_.scores.data();
    if (++u.head < block_.per_kv_head) return true;
    u.head = 0;
    u.from += PREFILL_CHUNK;
    if (u.from >= end_) return false;
    open_chunk(u);
    return true;
  }

  void open_chunk(Unit& u) const {
    u.width = std::min(PREFILL_CHUNK, round_up(end_ - u.from, 2 * GROUP));
    for (int i = 0; i < u.width / GROUP; i++) {
      const int group = std::min(u.from / GROUP + i, (end_ - 1) / GROUP);
      u.keys[i] = kv_.keys(table_, kv_head_, group);
    }
  }

  float* acc(int head) const { return s_.acc.data() + (size_t)head * QUERIES * D; }
  float* max_of(int head) const { return s_.max.data() + head * QUERIES; }
  float* sum_of(int head) const { return s_.sum.data() + head * QUERIES * LANES; }

  void score(const Unit& u) const {
    for (int i = 0; i < u.width / GROUP; i += 2)
      tile_scores(block_.q + u.head * D, block_.row * 2L, u.keys[i], u.keys[i + 1], D / 32, u.scores + i * GROUP,
                  PREFILL_CHUNK);
  }

  void accumulate(const Unit& u) const {
    const bf16* weights = reinterpret_cast<const bf16*>(u.scores);
    for (int d = 0; d < D; d += 64) {
      auto values = [&](int group) { return kv_.values(u.keys[group]) + d * 2; };
      float* sums = acc(u.head) + d;
      if (d + 64 <= D) tile_weighted<4>(weights, PREFILL_CHUNK * 4, values, D * 4L, u.width / GROUP, sums, D);
      else tile_weighted<2>(weights, PREFILL_CHUNK * 4, values, D * 4L, u.width / GROUP, sums, D);
    }
  }

  void find_maxima(const Unit& u) const {
    f32v top[QUERIES];
    for (int r = 0; r < QUERIES; r++) top[r] = row_maximum(u, r);
    const f32v before = load(max_of(u.head));
    const f32v found = block_.scale_log2 * fold_rows(top, [](auto a, auto b) { return _mm512_max_ps(a, b); });
    const f32v now = found > before + SLACK ? found : before;
    store(s_.shrink, exp2<float>(before - now));
    store(max_of(u.head), now);
  }

  TG_INLINE f32v row_maximum(const Unit& u, int r) const {
    float* row = u.scores + r * PREFILL_CHUNK;
    const int from = block_.sees_from(r) - u.from, to = block_.sees_to(r) - u.from;
    if (from > 0 || to < u.width)
      for (int i = 0; i < u.width; i += LANES) {
        const i32v at = lane_index() + i;
        store(row + i, (at >= from) & (at < to) ? load(row + i) : splat(MASKED));
      }
    f32v a = load(row), b = load(row + LANES);
    for (int i = 2 * LANES; i < u.width; i += 2 * LANES) {
      a = max(a, load(row + i));
      b = max(b, load(row + i + LANES));
    }
    return max(a, b);
  }

  // Weights take the place of a row's scores, its first half.
  TG_INLINE void weigh(const Unit& u, int r) const {
    const float* row = u.scores + r * PREFILL_CHUNK;
    bf16* weights = (bf16*)row;
    const float m = max_of(u.head)[r];
    f32v sum0{}, sum1{};
    for (int i = 0; i < u.width; i += 2 * LANES) {
      const f32v e0 = exp2<bf16>(load(row + i) * block_.scale_log2 - m);
      const f32v e1 = exp2<bf16>(load(row + i + LANES) * block_.scale_log2 - m);
      sum0 += e0;
      sum1 += e1;
      _mm512_storeu_si512(weights + i, (__m512i)_mm512_cvtne2ps_pbh((__m512)e1, (__m512)e0));
    }
    float* sum = sum_of(u.head) + r * LANES;
    store(sum, load(sum) * s_.shrink[r] + (sum0 + sum1));
  }

  void rescale(const Unit& u) const {
    float* sums = acc(u.head);
    if (u.from == start_ || _mm512_cmp_ps_mask((__m512)load(s_.shrink), _mm512_set1_ps(1.f), _CMP_NEQ_OQ) == 0) return;
    for (int r = 0; r < QUERIES; r++)
      for (int d = 0; d < D; d += LANES) store(sums + r * D + d, load(sums + r * D + d) * s_.shrink[r]);
  }

  void finish(int head, Activations<bf16> out, int out_row) const {
    f32v sums[QUERIES];
    for (int r = 0; r < QUERIES; r++) sums[r] = load(sum_of(head) + r * LANES);
    alignas(64) float inverse[QUERIES];
    store(inverse, 1.f / fold_rows(sums, [](auto a, auto b) { return _mm512_add_ps(a, b); }));
    for (int r = 0; r < block_.num; r++)
      for (int d = 0; d < D; d += 2 * LANES) {
        const float* sum = acc(head) + r * D + d;
        bf16* to = out.at(out_row + r, (kv_head_ * block_.per_kv_head + head) * D + d);
        store(to, load(sum) * inverse[r]);
        store(to + LANES, load(sum + LANES) * inverse[r]);
      }
  }

  const KvLayer<bf16>& kv_;
  const int32_t* table_;
  const int kv_head_, D;
  const QueryBlock& block_;
  PrefillScratch& s_;
  const int start_, end_;
};

#endif

}  // namespace tg
