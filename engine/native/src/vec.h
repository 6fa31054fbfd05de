// Sixteen float lanes for every CPU: compilers lower the 64-byte vector type to AVX-512, AVX2 or NEON.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tg {

#define TG_INLINE inline __attribute__((always_inline))

struct bf16 {
  uint16_t bits;
};

typedef float f32v __attribute__((vector_size(64)));
typedef uint32_t u32v __attribute__((vector_size(64)));
typedef int32_t i32v __attribute__((vector_size(64)));
typedef uint16_t u16v __attribute__((vector_size(32)));

constexpr int LANES = 16;

// Elements of the summed dimension that lie side by side in one 32-bit word: VNNI order, as vdpbf16ps and AMX read it.
template <class T>
struct Packed;
template <>
struct Packed<float> {
  static constexpr int PER_WORD = 1;
  using Word = float;
};
template <>
struct Packed<bf16> {
  static constexpr int PER_WORD = 2;
  using Word = uint32_t;
};

template <class To, class From>
TG_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "sizes differ");
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}

TG_INLINE f32v splat(float x) { return f32v{} + x; }

TG_INLINE f32v load(const float* p) {
  f32v v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

TG_INLINE f32v load(const bf16* p) {
  u16v v;
  std::memcpy(&v, p, sizeof v);
  return bit_cast<f32v>(__builtin_convertvector(v, u32v) << 16);
}

TG_INLINE void store(float* p, f32v v) { std::memcpy(p, &v, sizeof v); }

TG_INLINE void store(bf16* p, f32v v) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
  u32v bits = bit_cast<u32v>(v);
  bits += 0x7fffu + ((bits >> 16) & 1u);  // round to nearest, ties to even
  u16v out = __builtin_convertvector(bits >> 16, u16v);
  std::memcpy(p, &out, sizeof out);
#endif
}

// acc[lane] += sum over one word of weights[lane] * x; `weights` holds 16 words.
TG_INLINE f32v mac(f32v acc, const float* weights, float x) { return acc + load(weights) * x; }

TG_INLINE f32v mac(f32v acc, const bf16* weights, uint32_t x) {
#if defined(__AVX512BF16__)
  const __m512bh both = (__m512bh)_mm512_loadu_si512(weights);
  return (f32v)_mm512_dpbf16_ps((__m512)acc, both, (__m512bh)_mm512_set1_epi32((int)x));
#else
  u32v pair;
  std::memcpy(&pair, weights, sizeof pair);
  acc += bit_cast<f32v>(pair << 16) * bit_cast<float>(x << 16);
  return acc + bit_cast<f32v>(pair & 0xffff0000u) * bit_cast<float>(x & 0xffff0000u);
#endif
}

TG_INLINE f32v max(f32v a, f32v b) {
#if defined(__AVX512F__)
  return (f32v)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

TG_INLINE f32v min(f32v a, f32v b) {
#if defined(__AVX512F__)
  return (f32v)_mm512_min_ps((__m512)a, (__m512)b);
#else
  return a < b ? a : b;
#endif
}

TG_INLINE float hmax(f32v v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float best = v[0];
  for (int i = 1; i < LANES; i++) best = v[i] > best ? v[i] : best;
  return best;
#endif
}

TG_INLINE float hsum(f32v v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float sum = 0;
  for (int i = 0; i < LANES; i++) sum += v[i];
  return sum;
#endif
}

TG_INLINE i32v lane_index() { return i32v{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// 2^x for x <= 126; far below it is 0, or 2^-120 where the CPU cannot scale by an exponent: not a denormal, on which
// arithmetic crawls. Minimax polynomials on [-0.5, 0.5] with a relative error of 7.5e-5 where the result is rounded to
// bfloat16 anyway, of float32's own otherwise.
template <class T>
TG_INLINE f32v exp2(f32v x) {
#if defined(__AVX512F__)
  const f32v whole = (f32v)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = max(x, splat(-120.f));
  const f32v magic = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer in the low mantissa bits
  const f32v shifted = x + magic, whole = shifted - magic;
#endif
  const f32v r = x - whole;
  f32v p;
  if constexpr (sizeof(T) == 2) {
    p = splat(5.51716649e-2f) * r + 2.42611122e-1f;
    p = p * r + 6.93260986e-1f;
    p = p * r + 9.99928074e-1f;
  } else {
    p = splat(1.53458116e-4f) * r + 1.33999312e-3f;
    p = p * r + 9.61848896e-3f;
    p = p * r + 5.55032878e-2f;
    p = p * r + 2.40226469e-1f;
    p = p * r + 6.93147206e-1f;
    p = p * r + 1.0f;
  }
#if defined(__AVX512F__)
  return (f32v)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
  return bit_cast<f32v>(bit_cast<u32v>(p) + (bit_cast<u32v>(shifted) << 23));
#endif
}

template <class T>
TG_INLINE f32v silu(f32v x) {
  const f32v denominator = 1.0f + exp2<T>(min(x * -1.44269504f, splat(126.f)));
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 2) return x * (f32v)_mm512_rcp14_ps((__m512)denominator);
#endif
  return x / denominator;
}

TG_INLINE void prefetch_l1(const void* p) { __builtin_prefetch(p, 0, 3); }
TG_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace tg
