// One layer's attention for a whole step: its tasks, spread over a team of threads.
#pragma once
#include <climits>
#include <vector>

#include "prefill.h"

namespace tg {

// The part of a sequence that a step computes; mirrors ctypes in library.py.
struct Sequence {
  int32_t row;     // its first row among the step's tokens
  int32_t num;     // tokens computed
  int32_t start;   // position of the first
  int32_t table;   // where its block table starts among all tables
};

struct Shape {
  int heads, kv_heads, head_dim, block_size;
  float scale_log2;
};

// One thread's.
struct AttentionScratch {
  Buffer<float> state;
#if TG_AMX
  PrefillScratch prefill;
#endif
  void reserve(const Shape& shape) {
    state.reserve(Partial::floats(shape.heads, shape.head_dim));
#if TG_AMX
    prefill.reserve(shape.heads / shape.kv_heads, shape.head_dim);
#endif
  }
};

template <class T>
class Attention {
 public:
  Attention(Shape shape, bool amx) : shape_(shape), amx_(amx && shape.head_dim % 32 == 0) {}

  // Cuts the step into tasks; called by one thread, once a step.
  void plan(const Sequence* sequences, int num_sequences, const int32_t* tables, int threads) {
    sequences_ = sequences;
    tables_ = tables;
    tasks_.clear();
    merges_.clear();
    long decode_tokens = 0;
    for (int s = 0; s < num_sequences; s++)
      if (sequences[s].num > 1) plan_prefill(s);
      else decode_tokens += sequences[s].start + 1;
    plan_decode(num_sequences, decode_tokens, threads);
    partials_.reserve(num_partials_ * Partial::floats(shape_.heads, shape_.head_dim) + 1);
  }

  // q is row-major [rows][heads * head_dim]; rows past the last may be read, not used. Called by the whole team, ends
  // with a barrier.
  void run(Team& team, const KvLayer<T>& kv, int window, const T* q, Activations<T> out, AttentionScratch& scratch) {
    if (window <= 0) window = INT_MAX / 2;
    auto compute = [&](int i) {
      const Task& task = tasks_[i];
      if (task.kind == DECODE) decode(kv, window, q, out, task, scratch.state.data());
      else if (task.kind == ROWS) prefill_rows(kv, window, q, out, task, scratch.state.data());
#if TG_AMX
      else if constexpr (sizeof(T) == 2) prefill_tiles(kv, window, q, out, task, scratch.prefill);
#endif
    };
#if TG_AMX
    if (amx_) shape_tiles(TileShape::ATTENTION);
#endif
    team.each((int)tasks_.size(), compute, true);
#if TG_AMX
    if (amx_) shape_tiles(TileShape::GEMM);
#endif
    if (!merges_.empty()) team.each((int)merges_.size(), [&](int i) { merge(merges_[i], out); });
  }

 private:
  static constexpr int TASKS_A_THREAD = 6;  // enough for threads to finish together

  enum Kind { DECODE, ROWS, TILES };
  struct Task {
    Kind kind;
    int sequence;
    int from, to;     // DECODE: tokens seen; else rows of the sequence
    int kv_head;      // TILES
    long partial;     // DECODE: where a split's state goes; -1 writes the result
  };
  struct Merge {
    int row;
    long first;
    int num;
  };

  void plan_prefill(int s) {
    const int num = sequences_[s].num, heads = amx_ ? shape_.kv_heads : 1, step = amx_ ? 16 : 8;
    for (int to = num; to > 0;) {  // from the end: the longest rows first
      const int from = (to - 1) / step * step;
      for (int h = 0; h < heads; h++) tasks_.push_back({amx_ ? TILES : ROWS, s, from, to, h, -1});
      to = from;
    }
  }

  // Splits are equal runs of tokens, the same runs in every sequence and taken run by run: sequences that share a
  // prefix then read its blocks one after the other, while they are in cache.
  void plan_decode(int num_sequences, long tokens, int threads) {
    num_partials_ = 0;
    const long share = std::min<long>(tokens / (threads * TASKS_A_THREAD) + 1, 1 << 20);
    const int run = std::max(2 * CHUNK, round_up((int)share, CHUNK));
    int longest = 0;
    for (int s = 0; s < num_sequences; s++) {
      if (sequences_[s].num != 1) continue;
      const int splits = (sequences_[s].start + run) / run;
      longest = std::max(longest, splits);
      if (splits > 1) merges_.push_back({sequences_[s].row, 0, splits});
    }
    size_t merge = 0;
    std::vector<long> first(num_sequences, -1);
    for (int s = 0; s < num_sequences; s++) {
      if (sequences_[s].num != 1 || sequences_[s].start + 1 <= run) continue;
      first[s] = merges_[merge].first = num_partials_;
      num_partials_ += merges_[merge++].num;
    }
    for (int i = 0; i < longest; i++)
      for (int s = 0; s < num_sequences; s++) {
        const int end = sequences_[s].start + 1;
        if (sequences_[s].num != 1 || i * run >= end) continue;
        tasks_.push_back({DECODE, s, i * run, std::min(end, (i + 1) * run), 0, first[s] < 0 ? -1 : first[s] + i});
      }
  }

  Partial partial(long index) const {
    return Partial(partials_.data() + index * Partial::floats(shape_.heads, shape_.head_dim), shape_.heads);
  }

  void decode(const KvLayer<T>& kv, int window, const T* q, Activations<T> out, const Task& task, float* state) {
    const Sequence& s = sequences_[task.sequence];
    const Partial to = task.partial < 0 ? Partial(state, shape_.heads) : partial(task.partial);
    to.clear(shape_.heads, shape_.head_dim);
    const Span seen{std::max(task.from, s.start + 1 - window), task.to};
    if (seen.from < seen.to)
      attend(kv, tables_ + s.table, shape_.heads, q + (size_t)s.row * shape_.heads * shape_.head_dim,
             shape_.scale_log2, seen, to);
    if (task.partial < 0) finish(to, s.row, out);
  }

  void prefill_rows(const KvLayer<T>& kv, int window, const T* q, Activations<T> out, const Task& task, float* state) {
    const Sequence& s = sequences_[task.sequence];
    const Partial to(state, shape_.heads);
    for (int r = task.from; r < task.to; r++) {
      const int end = s.start + r + 1;
      to.clear(shape_.heads, shape_.head_dim);
      attend(kv, tables_ + s.table, shape_.heads, q + (size_t)(s.row + r) * shape_.heads * shape_.head_dim,
             shape_.scale_log2, {std::max(0, end - window), end}, to);
      finish(to, s.row + r, out);
    }
  }

#if TG_AMX
  void prefill_tiles(const KvLayer<bf16>& kv, int window, const bf16* q, Activations<bf16> out, const Task& task,
                     PrefillScratch& scratch) {
    const Sequence& s = sequences_[task.sequence];
    const int width = shape_.heads * shape_.head_dim, group = shape_.heads / shape_.kv_heads;
    const int row = s.row + task.from;
    const QueryBlock block{q + (size_t)row * width + task.kv_head * group * shape_.head_dim,
                           width, group, s.start + task.from, task.to - task.from, window, shape_.scale_log2};
    PrefillBlock(kv, tables_ + s.table, task.kv_head, block, scratch).run(out, row);
  }
#endif

  void finish(const Partial& state, int row, Activations<T> out) const {
    for (int h = 0; h < shape_.heads; h++) {
      const float inverse = 1.f / state.sum[h];
      for (int d = 0; d < shape_.head_dim; d += LANES)
        store(out.at(row, h * shape_.head_dim + d), load(state.acc + (size_t)h * shape_.head_dim + d) * inverse);
    }
  }

  // Flash-decoding's merge (Dao et al. 2023): partial softmaxes weighted by their own maxima; left in the first one.
  void merge(const Merge& m, Activations<T> out) const {
    const Partial total = partial(m.first);
    const int D = shape_.head_dim;
    for (int i = 1; i < m.num; i++) {
      const Partial part = partial(m.first + i);
      for (int h = 0; h < shape_.heads; h++) {
        const float top = std::max(total.max[h], part.max[h]);
        const float a = std::exp2(total.max[h] - top), b = std::exp2(part.max[h] - top);
        total.max[h] = top;
        total.sum[h] = total.sum[h] * a + part.sum[h] * b;
        for (int d = h * D; d < (h + 1) * D; d += LANES)
          store(total.acc + d, load(total.acc + d) * a + load(part.acc + d) * b);
      }
    }
    finish(total, m.row, out);
  }

  Shape shape_;
  bool amx_;
  const Sequence* sequences_ = nullptr;
  const int32_t* tables_ = nullptr;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  long num_partials_ = 0;
  Buffer<float> partials_;
};

}  // namespace tg
