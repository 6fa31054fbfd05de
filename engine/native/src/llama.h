// A whole step of a Llama-shaped model in one call: one team of threads, a barrier between phases.
#pragma once
#include <omp.h>

#include <deque>

#include "attention.h"

namespace tg {

// These three mirror ctypes in library.py.
struct Config {
  int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, block_size;
  float norm_eps, softmax_scale, rope_scale;  // rope_scale multiplies cos and sin
  const float* inv_freq;                      // [head_dim / 2]
  const void* embedding;                      // row-major [vocab][hidden]; null: read from `head`, the heads are tied
  const void* head;
  const float* final_norm;
};

struct Layer {
  const void *qkv, *o, *gate_up, *down;
  const float *qkv_bias, *o_bias;                  // padded to 32, or null
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
        attention_({config.heads, config.kv_heads, config.head_dim, config.block_size,
                    config.softmax_scale * 1.44269504f}, amx_) {}

  void step(const Batch& batch) {
    reserve(batch);
    attention_.plan(batch.sequences, batch.num_sequences, batch.tables, batch.threads);
#pragma omp parallel num_threads(batch.threads)
    {
      TileScope tiles(amx_);
      run(batch, threads_[omp_get_thread_num()]);
    }
  }

 private:
  struct Thread {
    Buffer<float> sums;
    Buffer<T> head;
    AttentionScratch attention;
  };

  int q_width() const { return c_.heads * c_.head_dim; }
  int qkv_width() const { return q_width() + 2 * c_.kv_heads * c_.head_dim; }

  void reserve(const Batch& b) {
    const int rows = round_up(b.num_tokens, PANEL);
    residual_.reserve((size_t)rows * c_.hidden);
    qkv_.reserve((size_t)rows * qkv_width());
    q_.reserve((size_t)(rows + PANEL) * q_width());
    rope_.reserve((size_t)rows * c_.head_dim);
    place_.resize(b.num_tokens);
    normed_ = activations(normed_data_, rows, c_.hidden);
    attended_ = activations(attended_data_, rows, q_width());
    gated_ = activations(gated_data_, rows, c_.intermediate);
    while ((int)threads_.size() < b.threads) threads_.emplace_back();
    for (Thread& t : threads_) {
      t.sums.reserve((size_t)rows * PANEL);
      t.head.reserve(2 * c_.head_dim);
    }
    for (int s = 0; s < b.num_sequences; s++)
      for (int i = 0; i < b.sequences[s].num; i++)
        place_[b.sequences[s].row + i] = {b.sequences[s].start + i, b.sequences[s].table};
  }

  static Activations<T> activations(Buffer<T>& data, int rows, int k) {
    data.reserve((size_t)rows * round_up(k, PANEL));
    return {data.data(), round_up(k, PANEL)};
  }

  void run(const Batch& b, Thread& mine) {
    embed(b);
    int rows = b.num_tokens;
    for (int l = 0; l < c_.layers; l++) {
      const Layer& layer = layers_[l];
      const KvLayer<T> kv{static_cast<T*>(layer.kv), c_.kv_heads, c_.head_dim, c_.block_size};
      normalise(layer.attn_norm, rows);
      multiply(normed_, rows, layer.qkv, qkv_width(), mine,
               {.kind = Epilogue<T>::STORE, .out = qkv_.data(), .n = qkv_width(), .bias = layer.qkv_bias});
      rotate(layer, kv, b.tables, rows, mine.head.data());
      if (l + 1 == c_.layers && b.num_rows == 0) return;  // only its KV was wanted
      attention_.run(kv, (int)layer.window, q_.data(), attended_, mine.attention);
      if (l + 1 == c_.layers && b.num_rows < rows) rows = keep(b);
      multiply(attended_, rows, layer.o, c_.hidden, mine,
               {.kind = Epilogue<T>::ADD, .out = residual_.data(), .n = c_.hidden, .bias = layer.o_bias});
      normalise(layer.mlp_norm, rows);
      multiply(normed_, rows, layer.gate_up, 2 * c_.intermediate, mine, {.kind = Epilogue<T>::SWIGLU, .act = gated_});
      multiply(gated_, rows, layer.down, c_.hidden, mine,
               {.kind = Epilogue<T>::ADD, .out = residual_.data(), .n = c_.hidden});
    }
    normalise(c_.final_norm, rows);
    multiply(normed_, rows, c_.head, c_.vocab, mine,
             {.kind = Epilogue<T>::STORE, .out = b.logits, .n = c_.vocab});
  }

  void multiply(const Activations<T>& a, int rows, const void* weight, int n, Thread& mine, const Epilogue<T>& finish) {
    const Weight<T> w{static_cast<const T*>(weight), n, a.k};
    gemm<T>(a, rows, w, mine.sums.data(), amx_, finish);
  }

  void embed(const Batch& b) {
    const int half = c_.head_dim / 2;
#pragma omp for schedule(static)
    for (int row = 0; row < b.num_tokens; row++) {
      float* to = residual_.data() + (size_t)row * c_.hidden;
      if (c_.embedding) {
        const T* from = static_cast<const T*>(c_.embedding) + (size_t)b.token_ids[row] * c_.hidden;
        for (int k = 0; k < c_.hidden; k += LANES) store(to + k, load(from + k));
      } else {
        unpack(b.token_ids[row], to);
      }
      float* rope = rope_.data() + (size_t)row * c_.head_dim;
      for (int d = 0; d < half; d++) {
        const float angle = (float)place_[row].position * inv_freq_[d];
        rope[d] = std::cos(angle) * c_.rope_scale;
        rope[half + d] = std::sin(angle) * c_.rope_scale;
      }
    }
  }

  // One row of the output head: a column of its panel.
  void unpack(int token, float* to) const {
    constexpr int W = Packed<T>::PER_WORD;
    const Weight<T> head{static_cast<const T*>(c_.head), c_.vocab, c_.hidden};
    const T* column = head.panel(token / PANEL) + token % PANEL * W;
    for (int k = 0; k < c_.hidden; k++) {
      const T x = column[(size_t)(k / W) * PANEL * W + k % W];
      if constexpr (W == 2) to[k] = bit_cast<float>((uint32_t)x.bits << 16);
      else to[k] = x;
    }
  }

  // RMSNorm (Zhang and Sennrich 2019) of the residual stream, which stays in float32.
  void normalise(const float* weight, int rows) {
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      const float* x = residual_.data() + (size_t)row * c_.hidden;
      const float inverse = inverse_rms(x, c_.hidden);
      for (int k = 0; k < c_.hidden; k += LANES) store(normed_.at(row, k), load(x + k) * inverse * load(weight + k));
    }
  }

  float inverse_rms(const float* x, int n) const {
    f32v squares{};
    for (int k = 0; k < n; k += LANES) squares += load(x + k) * load(x + k);
    return 1.f / std::sqrt(hsum(squares) / n + c_.norm_eps);
  }

  // Splits the fused projection: rotated queries to q_, rotated keys and the values to the pool.
  void rotate(const Layer& layer, const KvLayer<T>& kv, const int32_t* tables, int rows, T* scratch) {
    const int D = c_.head_dim;
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      float* x = qkv_.data() + (size_t)row * qkv_width();
      const float* rope = rope_.data() + (size_t)row * D;
      for (int h = 0; h < c_.heads; h++, x += D)
        rotate_head(x, layer.q_norm, rope, q_.data() + (size_t)row * q_width() + h * D);
      for (int h = 0; h < c_.kv_heads; h++, x += D) {
        const float* value = x + c_.kv_heads * D;
        rotate_head(x, layer.k_norm, rope, scratch);
        for (int d = 0; d < D; d += LANES) store(scratch + D + d, load(value + d));
        kv.write(tables + place_[row].table, place_[row].position, h, scratch, scratch + D);
      }
    }
  }

  void rotate_head(float* x, const float* norm, const float* rope, T* out) const {
    const int half = c_.head_dim / 2;
    if (norm) {
      const float inverse = inverse_rms(x, c_.head_dim);
      for (int d = 0; d < c_.head_dim; d++) x[d] *= inverse * norm[d];
    }
    for (int d = 0; d < half; d++) {
      const float a = x[d], b = x[half + d], cos = rope[d], sin = rope[half + d];
      x[d] = a * cos - b * sin;
      x[half + d] = b * cos + a * sin;
    }
    for (int d = 0; d < c_.head_dim; d += LANES) store(out + d, load(x + d));
  }

  // In the last layer only the rows whose logits are asked for go on; they move to the front.
  int keep(const Batch& b) {
#pragma omp single
    for (int i = 0; i < b.num_rows; i++) {
      const int row = b.rows[i];
      for (int k = 0; k < attended_.k; k += 32) std::memmove(attended_.at(i, k), attended_.at(row, k), 32 * sizeof(T));
      std::memmove(residual_.data() + (size_t)i * c_.hidden, residual_.data() + (size_t)row * c_.hidden,
                   c_.hidden * sizeof(float));
    }
    return b.num_rows;
  }

  struct Place {
    int position, table;
  };

  const Config c_;
  const std::vector<Layer> layers_;
  const std::vector<float> inv_freq_;
  const bool amx_;
  Attention<T> attention_;
  std::deque<Thread> threads_;
  std::vector<Place> place_;
  Buffer<float> residual_, qkv_, rope_;
  Buffer<T> q_, normed_data_, attended_data_, gated_data_;
  Activations<T> normed_{}, attended_{}, gated_{};
};

}  // namespace tg
