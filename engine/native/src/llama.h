// A whole step of a Llama-shaped model in one call, by one team of threads.
#pragma once
#include <omp.h>

#include <deque>

#include "attention.h"
#include "rows.h"

namespace tg {

// These three mirror ctypes in library.py.
struct Config {
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, block_size;
  float norm_eps, softmax_scale, rope_scale;  // rope_scale multiplies cos and sin
  const float* inv_freq;                      // [head_dim / 2]
  const void* embedding;                      // row-major [vocab][hidden]; null: read from `head`, the two are tied
  const void* head;
  const float* final_norm;
};

struct Layer {
  const void *qkv, *o, *gate_up, *down;
  const float *qkv_bias, *o_bias;                       // padded to 32, or null
  const float *attn_norm, *mlp_norm, *q_norm, *k_norm;  // the last two null but for Qwen3
  void* kv;
  int64_t window;  // tokens a position sees; 0 is no bound
};

struct Batch {
  const int32_t* token_ids;  // [num_tokens]
  const Sequence* sequences;
  const int32_t* tables;  // block tables, one after the other
  const int32_t* rows;    // the rows whose logits are asked for, ascending
  float* logits;          // [num_rows][vocab]
  int32_t num_tokens, num_sequences, num_rows, threads;
};

template <class T>
class Llama {
 public:
  Llama(const Config& config, const Layer* layers, bool amx)
      : c_(config),
        layers_(layers, layers + config.layers),
        inv_freq_(config.inv_freq, config.inv_freq + config.head_dim / 2),
        amx_(amx && sizeof(T) == 2),
        shape_{config.heads, config.kv_heads, config.head_dim, config.block_size, config.softmax_scale * 1.44269504f},
        attention_(shape_, amx_) {}

  void step(const Batch& batch) {
    reserve(batch);
    attention_.plan(batch.sequences, batch.num_sequences, batch.tables, batch.threads);
    Team team;
#pragma omp parallel num_threads(batch.threads)
    {
#pragma omp single
      team.set_size(omp_get_num_threads());  // may be fewer than asked for
      TileScope tiles(amx_);
      const int index = omp_get_thread_num();
      Worker worker{team, scratch_[index], index};
      run(batch, worker);
    }
  }

 private:
  using Out = Epilogue<T>;

  // Rows of its own from which a thread keeps to them.
  static constexpr int OWN_ROWS = 64;
  // Of these it takes so many at a time from attention to attention, and so many of them through the fused projection:
  // what lies between then fits its L2 cache.
  static constexpr int PART_ROWS = 256, QKV_ROWS = 64;

  struct Scratch {
    Buffer<float> sums;
    Buffer<T> head;
    AttentionScratch attention;
  };

  struct Worker {
    Team& team;
    Scratch& scratch;
    int index;
    bool own_rows = false;
    Rows rows{};
  };

  struct Place {
    int position, table;
  };

  int q_width() const { return c_.heads * c_.head_dim; }
  int qkv_width() const { return q_width() + 2 * c_.kv_heads * c_.head_dim; }
  float* residual(int row) const { return residual_.data() + (size_t)row * c_.hidden; }
  KvLayer<T> kv(int l) const { return {static_cast<T*>(layers_[l].kv), c_.kv_heads, c_.head_dim, c_.block_size}; }
  Weight<T> weight(const void* data, int n, int k) const { return {static_cast<const T*>(data), n, k}; }

  void reserve(const Batch& b) {
    const int rows = round_up(b.num_tokens, PANEL);
    residual_.reserve((size_t)rows * c_.hidden);
    qkv_.reserve((size_t)(OWN_ROWS + PANEL) * b.threads * qkv_width());
    q_.reserve((size_t)(rows + PANEL) * q_width());
    angles_.reserve((size_t)rows * c_.head_dim);
    normed_ = activations(normed_data_, rows, c_.hidden);
    attended_ = activations(attended_data_, rows, q_width());
    gated_ = activations(gated_data_, rows, c_.intermediate);
    while ((int)scratch_.size() < b.threads) scratch_.emplace_back();
    for (Scratch& s : scratch_) {
      s.sums.reserve(num_sums(rows));
      s.head.reserve(2 * c_.head_dim);
      s.attention.reserve(shape_);
    }
    places_.resize(b.num_tokens);
    for (int s = 0; s < b.num_sequences; s++)
      for (int i = 0; i < b.sequences[s].num; i++)
        places_[b.sequences[s].row + i] = {b.sequences[s].start + i, b.sequences[s].table};
  }

  static Activations<T> activations(Buffer<T>& data, int rows, int k) {
    data.reserve((size_t)rows * round_up(k, PANEL));
    return {data.data(), round_up(k, PANEL)};
  }

  void run(const Batch& b, Worker& w) {
    share(w, b.num_tokens);
    each_row(w, [&](int row) { begin(b, row); });
    each_part(w, [&] { before_attention(0, b, w); });
    for (int l = 0; l < c_.layers; l++) {
      const bool last = l + 1 == c_.layers;
      if (w.own_rows) w.team.barrier();
      if (last && b.num_rows == 0) return;  // only its KV was wanted
      attention_.run(w.team, kv(l), (int)layers_[l].window, q_.data(), attended_, w.scratch.attention);
      if (last && b.num_rows < b.num_tokens) keep(b, w);
      each_part(w, [&] {
        after_attention(l, w);
        if (!last) before_attention(l + 1, b, w);
      });
    }
    each_row(w, [&](int row) { normalise(residual(row), c_.final_norm, c_.hidden, c_.norm_eps, normed_, row); });
    multiply(w, normed_, c_.head, c_.vocab, {.kind = Out::STORE, .out = b.logits, .n = c_.vocab, .padded = false});
  }

  void begin(const Batch& b, int row) {
    const Weight<T> head = weight(c_.head, c_.vocab, c_.hidden);
    embed<T>(static_cast<const T*>(c_.embedding), head, b.token_ids[row], residual(row));
    rotary_angles(places_[row].position, inv_freq_.data(), c_.head_dim / 2, c_.rope_scale,
                  angles_.data() + (size_t)row * c_.head_dim);
  }

  // Queries to q_, keys and values to the pool.
  void before_attention(int l, const Batch& b, Worker& w) {
    const Layer& layer = layers_[l];
    const Rows all = w.rows;
    const int at_once = w.own_rows ? QKV_ROWS : all.to;
    float* qkv = qkv_.data() + (w.own_rows ? (size_t)w.index * QKV_ROWS * qkv_width() : 0);
    for (int from = all.from; from < all.to; from += at_once) {
      w.rows = {from, std::min(from + at_once, all.to)};
      each_row(w, [&](int row) { normalise(residual(row), layer.attn_norm, c_.hidden, c_.norm_eps, normed_, row); });
      multiply(w, normed_, layer.qkv, qkv_width(),
               {.kind = Out::STORE, .out = qkv, .n = qkv_width(), .first_row = from, .bias = layer.qkv_bias});
      each_row(w, [&](int row) {
        rotate(layer, kv(l), b.tables, row, qkv + (size_t)(row - from) * qkv_width(), w.scratch.head.data());
        if (layer.o_bias) add_to(residual(row), layer.o_bias, c_.hidden);
      });
    }
    w.rows = all;
  }

  // Splits a row of the fused projection: rotated queries to q_, rotated keys and the values to the pool.
  void rotate(const Layer& layer, const KvLayer<T>& kv, const int32_t* tables, int row, float* x, T* scratch) {
    const int D = c_.head_dim;
    const float* angles = angles_.data() + (size_t)row * D;
    for (int h = 0; h < c_.heads; h++, x += D)
      rotate_head(x, D, layer.q_norm, c_.norm_eps, angles, q_.data() + (size_t)row * q_width() + h * D);
    for (int h = 0; h < c_.kv_heads; h++, x += D) {
      const float* value = x + c_.kv_heads * D;
      rotate_head(x, D, layer.k_norm, c_.norm_eps, angles, scratch);
      for (int d = 0; d < D; d += LANES) store(scratch + D + d, load(value + d));
      kv.write(tables + places_[row].table, places_[row].position, h, scratch, scratch + D);
    }
  }

  void after_attention(int l, Worker& w) {
    const Layer& layer = layers_[l];
    const Out to_residual{.kind = Out::ADD, .out = residual_.data(), .n = c_.hidden};
    multiply(w, attended_, layer.o, c_.hidden, to_residual);
    each_row(w, [&](int row) { normalise(residual(row), layer.mlp_norm, c_.hidden, c_.norm_eps, normed_, row); });
    multiply(w, normed_, layer.gate_up, 2 * c_.intermediate, {.kind = Out::SWIGLU, .act = gated_});
    multiply(w, gated_, layer.down, c_.hidden, to_residual);
  }

  // In the last layer only the rows whose logits are asked for go on; they move to the front.
  void keep(const Batch& b, Worker& w) {
    w.team.each(1, [&](int) {
      for (int i = 0; i < b.num_rows; i++) {
        const int row = b.rows[i];
        for (int k = 0; k < attended_.k; k += 32)
          std::memmove(attended_.at(i, k), attended_.at(row, k), 32 * sizeof(T));
        std::memmove(residual(i), residual(row), c_.hidden * sizeof(float));
      }
    });
    share(w, b.num_rows);
  }

  // With many rows each thread takes its own through everything but attention: what it reads, it wrote itself. With few
  // the threads share the weights instead, so that each is read once.
  void share(Worker& w, int rows) {
    const int blocks = (rows + PANEL - 1) / PANEL, size = w.team.size();
    w.own_rows = rows >= OWN_ROWS * size;
    w.rows = w.own_rows ? cut(rows, blocks, w.index, size) : Rows{0, rows};
  }

  // The i-th of `parts` equal runs of whole blocks.
  static Rows cut(int rows, int blocks, int i, int parts) {
    return {blocks * i / parts * PANEL, std::min(rows, blocks * (i + 1) / parts * PANEL)};
  }

  template <class F>
  void each_part(Worker& w, F&& f) {
    const Rows all = w.rows;
    const int num = all.to - all.from, blocks = (num + PANEL - 1) / PANEL;
    const int parts = w.own_rows ? (num + PART_ROWS - 1) / PART_ROWS : 1;
    for (int i = 0; i < parts; i++) {
      const Rows part = cut(num, blocks, i, parts);
      w.rows = {all.from + part.from, all.from + part.to};
      f();
    }
    w.rows = all;
  }

  template <class F>
  void each_row(Worker& w, F&& f) {
    if (!w.own_rows) return w.team.each(w.rows.to, f);
    for (int row = w.rows.from; row < w.rows.to; row++) f(row);
  }

  void multiply(Worker& w, const Activations<T>& a, const void* data, int n, const Out& finish) {
    const Weight<T> b = weight(data, n, a.k);
    auto each_panel = [&](auto&& panel) {
      if (!w.own_rows) return w.team.each(b.num_panels(), panel);
      for (int index = 0; index < b.num_panels(); index++) panel(index);
    };
#if TG_AMX
    if constexpr (sizeof(T) == 2)
      if (amx_) {
        TileGemm tiles(a, w.rows, b, w.scratch.sums.data(), finish);
        each_panel([&](int index) {
          tiles.panel(index);
          if (!w.own_rows) tiles.flush();
        });
        return tiles.flush();
      }
#endif
    each_panel([&](int index) { panel_by_rows<T>(a, w.rows, b, index, finish); });
  }

  const Config c_;
  const std::vector<Layer> layers_;
  const std::vector<float> inv_freq_;
  const bool amx_;
  const Shape shape_;
  Attention<T> attention_;
  std::deque<Scratch> scratch_;  // one a thread
  std::vector<Place> places_;    // one a row
  Buffer<float> residual_;       // [rows][hidden]; float32, so that layers add to it without rounding
  Buffer<float> qkv_, angles_;
  Buffer<T> q_, normed_data_, attended_data_, gated_data_;
  Activations<T> normed_{}, attended_{}, gated_{};
};

}  // namespace tg
