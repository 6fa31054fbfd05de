// What happens to one token's row between two products.
#pragma once
#include "gemm.h"
#include "kv.h"

namespace tg {

inline float inverse_rms(const float* x, int n, float eps) {
  f32v squares{};
  for (int i = 0; i < n; i += LANES) squares += load(x + i) * load(x + i);
  return 1.f / std::sqrt(hsum(squares) / n + eps);
}

// RMSNorm (Zhang and Sennrich 2019) of a row into activations.
template <class T>
void normalise(const float* x, const float* weight, int n, float eps, Activations<T> out, int row) {
  const float inverse = inverse_rms(x, n, eps);
  for (int i = 0; i < n; i += LANES) store(out.at(row, i), load(x + i) * inverse * load(weight + i));
}

// Row `token` of the embedding, from its own table or from the packed head that it is tied to.
template <class T>
void embed(const T* table, const Weight<T>& head, int token, float* out) {
  if (table) {
    for (int i = 0; i < head.k; i += LANES) store(out + i, load(table + (size_t)token * head.k + i));
    return;
  }
  constexpr int W = Packed<T>::PER_WORD;
  const T* column = head.panel(token / PANEL) + token % PANEL * W;
  for (int i = 0; i < head.k; i++) {
    const T x = column[(size_t)(i / W) * PANEL * W + i % W];
    if constexpr (W == 2) out[i] = bit_cast<float>((uint32_t)x.bits << 16);
    else out[i] = x;
  }
}

// cos and sin of one position, `half` of each, times `scale`.
inline void rotary_angles(int position, const float* inv_freq, int half, float scale, float* out) {
  for (int i = 0; i < half; i++) {
    const float angle = (float)position * inv_freq[i];
    out[i] = std::cos(angle) * scale;
    out[half + i] = std::sin(angle) * scale;
  }
}

// One head: RMSNorm where the model has it (Qwen3), then the rotary embedding (Su et al. 2021), dimensions paired as
// transformers pairs them, i with half + i. `x` is overwritten.
template <class T>
void rotate_head(float* x, int dim, const float* norm, float eps, const float* angles, T* out) {
  const int half = dim / 2;
  if (norm) {
    const float inverse = inverse_rms(x, dim, eps);
    for (int i = 0; i < dim; i++) x[i] *= inverse * norm[i];
  }
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[half + i], cos = angles[i], sin = angles[half + i];
    x[i] = a * cos - b * sin;
    x[half + i] = b * cos + a * sin;
  }
  for (int i = 0; i < dim; i += LANES) store(out + i, load(x + i));
}

inline void add_to(float* x, const float* y, int n) {
  for (int i = 0; i < n; i += LANES) store(x + i, load(x + i) + load(y + i));
}

}  // namespace tg
